//! Splits a list into its objects while it arrives, so that the whole list is never in memory.

mod json;
mod protobuf;

use crate::meta::ListMeta;
use crate::wire::{Object, Undecodable, Wire};
use json::JsonItems;
use protobuf::ProtobufItems;

/// A list of which a part has arrived.
#[derive(Debug)]
pub(crate) enum Items {
    Json(JsonItems),
    Protobuf(ProtobufItems),
}

impl Items {
    pub(crate) fn new(wire: Wire) -> Self {
        match wire {
            Wire::Json => Self::Json(JsonItems::default()),
            Wire::Protobuf => Self::Protobuf(ProtobufItems::default()),
        }
    }

    /// Reads the next chunk, and calls `each` with every item that it completes.
    pub(crate) fn push(&mut self, bytes: &[u8], each: &mut dyn FnMut(Object<'_>)) -> Result<(), Undecodable> {
        match self {
            Self::Json(items) => items.push(bytes, &mut |item| each(Object::Json(item))),
            Self::Protobuf(items) => items.push(bytes, &mut |item| each(Object::Protobuf(item))),
        }
    }

    /// The metadata, once the list is complete.
    pub(crate) fn finish(self) -> Result<ListMeta, Undecodable> {
        match self {
            Self::Json(items) => Ok(items.finish()?),
            Self::Protobuf(items) => Ok(items.finish()?),
        }
    }
}
