//! Turns what the API server sends about one resource into events, and remembers how much has been received.

use std::cell::RefCell;

use model::event::Event;

use crate::client::ApiError;
use crate::meta::Identity;
use crate::resource::Resource;
use crate::wire::{Object, Undecodable, WatchEvent};

/// Receives the events of all resources.
pub(crate) type Emit<'a> = RefCell<&'a mut dyn FnMut(Event)>;

#[derive(Debug)]
pub(crate) struct EventDecoder {
    pub(crate) resource: Resource,
    /// The resource version up to which every change has been received. A list comes first while there is none.
    pub(crate) position: Option<String>,
    /// The number of objects received of a list that has not ended.
    pub(crate) listing: Option<usize>,
    /// Whether a list has ever ended.
    pub(crate) synced: bool,
}

/// Why an event of a watch, or the end of a list, cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// The API server ended the watch by an event of type `ERROR`.
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("unable to decode the server's answer: {0}")]
    Undecodable(#[from] Undecodable),
    #[error("the list has no resourceVersion")]
    NoResourceVersion,
}

impl EventDecoder {
    pub(crate) fn new(resource: Resource) -> Self {
        Self { resource, position: None, listing: None, synced: false }
    }

    pub(crate) fn begin_list(&mut self, emit: &Emit<'_>) {
        self.listing = Some(0);
        if let Some(event) = self.resource.listing() {
            send(emit, event);
        }
    }

    pub(crate) fn end_list(&mut self, resource_version: String, emit: &Emit<'_>) -> Result<(), Unusable> {
        if resource_version.is_empty() {
            return Err(Unusable::NoResourceVersion);
        }
        let count = self.listing.take().unwrap_or_default();
        self.position = Some(resource_version);
        if let Some(event) = self.resource.listed(count) {
            send(emit, event);
        }
        tracing::debug!(v = 2, "type" = self.resource.type_name(), count, "Caches populated");
        if !self.synced {
            self.synced = true;
            tracing::info!(controller = self.resource.controller(), "Caches are synced");
        }
        Ok(())
    }

    /// Applies one event of a watch.
    pub(crate) fn receive(&mut self, event: &WatchEvent<'_>, emit: &Emit<'_>) -> Result<(), Unusable> {
        let object = event.object;
        match event.r#type {
            "ADDED" | "MODIFIED" => self.apply(object, emit),
            "DELETED" => {
                let deleted = object.identity()?;
                send(emit, self.resource.deleted(&deleted));
            }
            "BOOKMARK" => {
                let bookmark = object.identity()?;
                if bookmark.ends_list() && self.listing.is_some() {
                    return self.end_list(bookmark.resource_version, emit);
                }
            }
            "ERROR" => return Err(ApiError::from_status(object.decode()?).into()),
            other => tracing::warn!("type" = other, "Unknown watch event"),
        }
        // The resource versions inside a list that has not ended are not in order: a watch cannot resume from them.
        if self.listing.is_none()
            && let Ok(Identity { resource_version, .. }) = object.identity()
            && !resource_version.is_empty()
        {
            self.position = Some(resource_version);
        }
        Ok(())
    }

    /// Applies one object. One that cannot be decoded is logged and skipped, so that it does not stop the others.
    pub(crate) fn apply(&mut self, object: Object<'_>, emit: &Emit<'_>) {
        if let Some(count) = &mut self.listing {
            *count += 1;
        }
        match self.resource.applied(object) {
            Ok(event) => send(emit, event),
            Err(error) => {
                let Identity { namespace, name, .. } = object.identity().unwrap_or_default();
                let err = format!("{namespace}/{name}: {error}");
                tracing::error!(err, "type" = self.resource.type_name(), "Skipping an unreadable object");
            }
        }
    }
}

fn send(emit: &Emit<'_>, event: Event) {
    (emit.borrow_mut())(event);
}
