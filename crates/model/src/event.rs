//! Events, which are the same whether they come from an API server or from a folder of manifests.

use crate::api;
use crate::names::NamespacedName;

/// One change to the objects that the proxy follows.
///
/// A source emits `Listing`, then every object of the kind as applied, then `Listed`. It lists again when it may have missed
/// events; objects that it does not apply between the two have been deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Listing(Kind),
    Listed(Kind),
    ServiceApplied(Box<api::Service>),
    ServiceDeleted(NamespacedName),
    SliceApplied(Box<api::EndpointSlice>),
    SliceDeleted(NamespacedName),
    /// Always the node that the proxy runs on.
    NodeApplied(Box<api::Node>),
    NodeDeleted,
    ServiceCidrApplied(Box<api::ServiceCidr>),
    ServiceCidrDeleted(String),
}

/// The kinds that are listed. The proxy's own node is a single object and needs no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Service,
    EndpointSlice,
    ServiceCidr,
}
