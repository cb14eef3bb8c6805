//! Turns what the API server sends about one resource into events, and remembers how much has been received.

use std::cell::RefCell;

use model::event::Event;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{ApiError, Status};
use crate::resource::{Identity, Resource};

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

/// Why a line of a watch, or the end of a list, cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// The API server ended the watch by an event of type `ERROR`.
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("unable to decode the server's answer: {0}")]
    Undecodable(#[from] serde_json::Error),
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

    /// Applies one line of a watch.
    pub(crate) fn receive(&mut self, line: &[u8], emit: &Emit<'_>) -> Result<(), Unusable> {
        #[derive(Deserialize)]
        struct Line<'a> {
            r#type: &'a str,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        let Line { r#type, object } = serde_json::from_slice(line)?;
        let object = object.get();
        match r#type {
            "ADDED" | "MODIFIED" => self.apply(object.as_bytes(), emit),
            "DELETED" => {
                let deleted = Identity::of(object)?;
                send(emit, self.resource.deleted(&deleted));
            }
            "BOOKMARK" => {
                let bookmark = Identity::of(object)?;
                if bookmark.ends_list() && self.listing.is_some() {
                    return self.end_list(bookmark.resource_version, emit);
                }
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(object)?;
                return Err(ApiError::from_status(status).into());
            }
            other => tracing::warn!("type" = other, "Unknown watch event"),
        }
        // The resource versions inside a list that has not ended are not in order: a watch cannot resume from them.
        if self.listing.is_none()
            && let Ok(Identity { resource_version, .. }) = Identity::of(object)
            && !resource_version.is_empty()
        {
            self.position = Some(resource_version);
        }
        Ok(())
    }

    /// Applies one object. One that cannot be decoded is logged and skipped, so that it does not stop the others.
    pub(crate) fn apply(&mut self, object: &[u8], emit: &Emit<'_>) {
        if let Some(count) = &mut self.listing {
            *count += 1;
        }
        let decoded = std::str::from_utf8(object).map_err(|error| error.to_string()).and_then(|object| {
            self.resource.applied(object).map_err(|error| {
                let Identity { namespace, name, .. } = Identity::of(object).unwrap_or_default();
                format!("{namespace}/{name}: {error}")
            })
        });
        match decoded {
            Ok(event) => send(emit, event),
            Err(err) => {
                tracing::error!(err, "type" = self.resource.type_name(), "Skipping an unreadable object")
            }
        }
    }
}

fn send(emit: &Emit<'_>, event: Event) {
    (emit.borrow_mut())(event);
}
