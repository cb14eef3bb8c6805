//! What a source tells: the same from an API server and from a folder of manifests.

use crate::api;
use crate::names::NamespacedName;

/// One thing that happened to the objects we follow.
///
/// A source begins each kind with `Listing`, applies everything there is and ends with `Listed`. It does so again
/// whenever it cannot know what it missed; what is not applied between the two is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Listing(Kind),
    Listed(Kind),
    ServiceApplied(Box<api::Service>),
    ServiceDeleted(NamespacedName),
    SliceApplied(Box<api::EndpointSlice>),
    SliceDeleted(NamespacedName),
    /// This node, not any other.
    NodeApplied(Box<api::Node>),
    NodeDeleted,
    ServiceCidrApplied(Box<api::ServiceCidr>),
    ServiceCidrDeleted(String),
}

/// The kinds of which there are many. This node is one, and is simply applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Service,
    EndpointSlice,
    ServiceCidr,
}
