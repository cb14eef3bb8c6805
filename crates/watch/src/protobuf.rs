//! Decodes protobuf as the API server sends it: its messages into the types that JSON is decoded into, and its envelopes.
//!
//! A message is a sequence of fields in any order, each a number, a wire type and a value. Fields that a type does not name are
//! skipped. The encoding is described at <https://protobuf.dev/programming-guides/encoding>; `messages` has the field numbers.

#[cfg(test)]
pub(crate) mod encoder;
mod messages;

use std::sync::Arc;

/// Begins every object that stands alone (`k8s.io/apimachinery/pkg/runtime/serializer/protobuf`).
pub(crate) const PREFIX: &[u8; 4] = b"k8s\0";

/// `raw` of `Unknown`, the envelope of every object that stands alone (`k8s.io/apimachinery/pkg/runtime/generated.proto`).
pub(crate) const UNKNOWN_RAW: u64 = 2;
/// `raw` of `RawExtension` in the same file.
const RAW_EXTENSION_RAW: u64 = 1;
/// `type` and `object` of `WatchEvent` (`k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`).
const WATCH_EVENT_TYPE: u64 = 1;
const WATCH_EVENT_OBJECT: u64 = 2;

/// Bytes that are no protobuf, or not the expected message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed protobuf: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// A type that takes values of fields. A message takes the fields of another occurrence in addition.
pub(crate) trait FromProtobuf: Default {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed>;
}

pub(crate) fn decode<T: FromProtobuf>(message: &[u8]) -> Result<T, Malformed> {
    let mut decoded = T::default();
    decoded.merge(Value { wire_type: WireType::Length, bytes: message })?;
    Ok(decoded)
}

/// The message of an object that stands alone.
pub(crate) fn unwrap(object: &[u8]) -> Result<&[u8], Malformed> {
    let envelope = object.strip_prefix(PREFIX).ok_or(Malformed("not an object of Kubernetes"))?;
    bytes_field(envelope, UNKNOWN_RAW)
}

/// The type of a `WatchEvent` and the message of its object. The event itself has no envelope, its object has one.
pub(crate) fn watch_event(event: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    let r#type = text(bytes_field(event, WATCH_EVENT_TYPE)?)?;
    let object = bytes_field(bytes_field(event, WATCH_EVENT_OBJECT)?, RAW_EXTENSION_RAW)?;
    Ok((r#type, unwrap(object)?))
}

/// A field of bytes that may be absent, which is the same as empty.
fn bytes_field(message: &[u8], number: u64) -> Result<&[u8], Malformed> {
    let mut found: &[u8] = &[];
    for field in fields(message) {
        let (field, value) = field?;
        if field == number {
            found = value.bytes()?;
        }
    }
    Ok(found)
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed("a string is not UTF-8"))
}

/// The numbers and values of the fields of a message. Does not end at an error: the caller must.
pub(crate) fn fields(message: &[u8]) -> impl Iterator<Item = Result<(u64, Value<'_>), Malformed>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut next = || {
            let header = Header::read(rest)?.ok_or(TRUNCATED)?;
            let (value, after) = header.split(rest).ok_or(TRUNCATED)?;
            rest = after;
            Ok((header.number, value))
        };
        Some(next())
    })
}

const TRUNCATED: Malformed = Malformed("a field ends behind its message");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireType {
    Varint,
    Fixed,
    /// A string, bytes or a message.
    Length,
}

/// What precedes the value of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) number: u64,
    wire_type: WireType,
    /// Of the header itself.
    pub(crate) length: usize,
    /// As the message says, which may be anything.
    pub(crate) value_length: u64,
}

impl Header {
    /// Returns `None` if its end is missing.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let Some((tag, length)) = varint(bytes)? else { return Ok(None) };
        let value = bytes.get(length..).unwrap_or_default();
        let number = tag >> 3;
        let fixed = |value_length| Self { number, wire_type: WireType::Fixed, length, value_length };
        Ok(match tag & 7 {
            0 => varint(value)?.map(|(_, size)| Self { wire_type: WireType::Varint, ..fixed(size as u64) }),
            1 => Some(fixed(8)),
            2 => varint(value)?.map(|(value_length, size)| Self {
                number,
                wire_type: WireType::Length,
                length: length + size,
                value_length,
            }),
            5 => Some(fixed(4)),
            _ => return Err(Malformed("an unknown wire type")),
        })
    }

    /// The length of the header and the value.
    pub(crate) fn field_length(&self) -> u64 {
        self.value_length.saturating_add(self.length as u64)
    }

    /// The length of a value that is a message.
    pub(crate) fn message_length(&self) -> Result<u64, Malformed> {
        if self.wire_type == WireType::Length { Ok(self.value_length) } else { Err(OTHER_TYPE) }
    }

    /// The value and what follows it, or `None` if the value is not complete.
    pub(crate) fn split<'a>(&self, bytes: &'a [u8]) -> Option<(Value<'a>, &'a [u8])> {
        let value_length = usize::try_from(self.value_length).ok()?;
        let (value, after) = bytes.get(self.length..)?.split_at_checked(value_length)?;
        Some((Value { wire_type: self.wire_type, bytes: value }, after))
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value<'a> {
    wire_type: WireType,
    bytes: &'a [u8],
}

impl<'a> Value<'a> {
    pub(crate) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self.wire_type {
            WireType::Length => Ok(self.bytes),
            WireType::Varint | WireType::Fixed => Err(OTHER_TYPE),
        }
    }

    fn text(self) -> Result<&'a str, Malformed> {
        text(self.bytes()?)
    }

    /// Negative numbers are encoded with all 64 bits, whatever the type of the field.
    fn integer(self) -> Result<i64, Malformed> {
        match (self.wire_type, varint(self.bytes)?) {
            (WireType::Varint, Some((value, _))) => Ok(value.cast_signed()),
            _ => Err(OTHER_TYPE),
        }
    }

    /// An entry of a map.
    fn entry(self) -> Result<(&'a str, &'a str), Malformed> {
        let entry = self.bytes()?;
        Ok((text(bytes_field(entry, 1)?)?, text(bytes_field(entry, 2)?)?))
    }
}

const OTHER_TYPE: Malformed = Malformed("a field has another type");

/// A number in groups of seven bits, the lowest first, and the count of its bytes. `None` if its end is missing.
fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        number |= bits << (7 * at);
        if byte & 0x80 == 0 {
            // The tenth byte has room for one bit.
            return if at == 9 && bits > 1 { Err(TOO_LARGE) } else { Ok(Some((number, at + 1))) };
        }
    }
    if bytes.len() < 10 { Ok(None) } else { Err(TOO_LARGE) }
}

const TOO_LARGE: Malformed = Malformed("a number has more than 64 bits");

impl FromProtobuf for String {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        *self = value.text()?.to_owned();
        Ok(())
    }
}

impl FromProtobuf for Arc<str> {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        *self = value.text()?.into();
        Ok(())
    }
}

impl FromProtobuf for i64 {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        *self = value.integer()?;
        Ok(())
    }
}

impl FromProtobuf for u16 {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        *self = value.integer()?.try_into().map_err(|_| OTHER_TYPE)?;
        Ok(())
    }
}

impl FromProtobuf for u64 {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        *self = value.integer()?.try_into().map_err(|_| OTHER_TYPE)?;
        Ok(())
    }
}

impl FromProtobuf for bool {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        *self = value.integer()? != 0;
        Ok(())
    }
}

impl<T: FromProtobuf> FromProtobuf for Box<T> {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        (**self).merge(value)
    }
}

impl<T: FromProtobuf> FromProtobuf for Option<T> {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        self.get_or_insert_default().merge(value)
    }
}

impl<T: FromProtobuf> FromProtobuf for Vec<T> {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        let mut next = T::default();
        next.merge(value)?;
        self.push(next);
        Ok(())
    }
}
