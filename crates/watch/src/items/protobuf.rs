//! A list as protobuf.
//!
//! ```text
//!   k8s\0 │ typeMeta │ raw: │ metadata │ item │ item │  …  │ contentEncoding │ contentType
//!         └ Unknown         └ ServiceList ───────────────┘                               ┘
//! ```

use bytes::{Buf as _, BytesMut};

use crate::meta::ListMeta;
use crate::protobuf::{FromProtobuf as _, Header, Malformed, PREFIX, UNKNOWN_RAW};
use crate::wire::{MAX_OBJECT, Undecodable};

/// The fields of every list (`k8s.io/api/core/v1/generated.proto`, `ServiceList`).
const METADATA: u64 = 1;
const ITEMS: u64 = 2;

#[derive(Debug, Default)]
pub(crate) struct ProtobufItems {
    position: Position,
    /// What has arrived and is not decoded: an incomplete field, and a chunk during `push`.
    buffer: BytesMut,
    metadata: ListMeta,
}

/// What the buffer begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Prefix,
    /// A field of `Unknown`.
    Envelope,
    /// A field of the list, which has this many bytes left.
    List(u64),
}

impl ProtobufItems {
    pub(crate) fn push(&mut self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Undecodable> {
        self.buffer.extend_from_slice(bytes);
        while let Some((read, next)) = self.step(each)? {
            self.buffer.advance(read);
            self.position = next;
        }
        Ok(())
    }

    /// Decodes what the buffer begins with. Returns its length and what follows, or `None` until more bytes arrive.
    fn step(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<Option<(usize, Position)>, Undecodable> {
        match self.position {
            Position::Prefix => match self.buffer.first_chunk() {
                Some(PREFIX) => return Ok(Some((PREFIX.len(), Position::Envelope))),
                Some(_) => return Err(Malformed("not a list of Kubernetes").into()),
                None => return Ok(None),
            },
            Position::List(0) => return Ok(Some((0, Position::Envelope))),
            Position::Envelope | Position::List(_) => {}
        }
        let Some(header) = Header::read(&self.buffer)? else { return Ok(None) };
        let next = match self.position {
            Position::List(left) => Position::List(
                left.checked_sub(header.field_length()).ok_or(Malformed("a field ends behind its list"))?,
            ),
            Position::Prefix | Position::Envelope if header.number == UNKNOWN_RAW => {
                return Ok(Some((header.length, Position::List(header.message_length()?))));
            }
            Position::Prefix | Position::Envelope => Position::Envelope,
        };
        if header.value_length > MAX_OBJECT as u64 {
            return Err(Undecodable::TooLong);
        }
        let Some((value, after)) = header.split(&self.buffer) else { return Ok(None) };
        match (next, header.number) {
            (Position::List(_), METADATA) => self.metadata.merge(value)?,
            (Position::List(_), ITEMS) => each(value.bytes()?),
            _ => {}
        }
        Ok(Some((self.buffer.len() - after.len(), next)))
    }

    pub(crate) fn finish(self) -> Result<ListMeta, Malformed> {
        if self.position == Position::Envelope && self.buffer.is_empty() {
            Ok(self.metadata)
        } else {
            Err(Malformed("the list is not complete"))
        }
    }
}
