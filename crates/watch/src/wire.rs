//! The two encodings of the API server's answers. The `Content-Type` of an answer says which one it has.
//!
//! ```text
//!   body of a list  ─▶ Items ──────────────────────▶ Object ─┐
//!   body of a watch ─▶ Frames ─▶ WatchEvent, with an Object ─┴▶ event_decoder
//! ```

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::meta::{AnyObject, Identity};
use crate::protobuf::{self, FromProtobuf, Malformed};

pub(crate) const JSON: &str = "application/json";
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// No object comes near this: etcd refuses objects of more than a few MiB.
pub(crate) const MAX_OBJECT: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Json,
    Protobuf,
}

/// Why bytes of an answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecodable {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Protobuf(#[from] Malformed),
    #[error("an object without end")]
    TooLong,
}

/// An encoded object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object<'a> {
    Json(&'a [u8]),
    /// The message itself, without the envelope of [`protobuf::unwrap`].
    Protobuf(&'a [u8]),
}

/// `metav1.WatchEvent`.
#[derive(Debug)]
pub(crate) struct WatchEvent<'a> {
    pub(crate) r#type: &'a str,
    pub(crate) object: Object<'a>,
}

impl Wire {
    /// An answer that does not say is JSON.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let is_protobuf = |value: &[u8]| value.starts_with(PROTOBUF.as_bytes());
        match headers.get(CONTENT_TYPE) {
            Some(value) if is_protobuf(value.as_bytes()) => Self::Protobuf,
            Some(_) | None => Self::Json,
        }
    }

    /// An answer that is one object.
    pub(crate) fn object(self, answer: &[u8]) -> Result<Object<'_>, Undecodable> {
        Ok(match self {
            Self::Json => Object::Json(answer),
            Self::Protobuf => Object::Protobuf(protobuf::unwrap(answer)?),
        })
    }

    /// One event of a watch.
    pub(crate) fn event(self, frame: &[u8]) -> Result<WatchEvent<'_>, Undecodable> {
        #[derive(Deserialize)]
        struct Line<'a> {
            r#type: &'a str,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        Ok(match self {
            Self::Json => {
                let Line { r#type, object } = serde_json::from_slice(frame)?;
                WatchEvent { r#type, object: Object::Json(object.get().as_bytes()) }
            }
            Self::Protobuf => {
                let (r#type, object) = protobuf::watch_event(frame)?;
                WatchEvent { r#type, object: Object::Protobuf(object) }
            }
        })
    }
}

impl Object<'_> {
    pub(crate) fn decode<T: DeserializeOwned + FromProtobuf>(self) -> Result<T, Undecodable> {
        Ok(match self {
            Self::Json(text) => serde_json::from_slice(text)?,
            Self::Protobuf(message) => protobuf::decode(message)?,
        })
    }

    pub(crate) fn identity(self) -> Result<Identity, Undecodable> {
        self.decode::<AnyObject>().map(|object| object.metadata)
    }
}

#[cfg(test)]
impl Wire {
    pub(crate) const BOTH: [Self; 2] = [Self::Json, Self::Protobuf];

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => JSON,
            Self::Protobuf => PROTOBUF,
        }
    }

    /// An object that stands alone.
    pub(crate) fn encode(self, object: &serde_json::Value) -> Vec<u8> {
        match self {
            Self::Json => object.to_string().into_bytes(),
            Self::Protobuf => protobuf::encoder::object(object),
        }
    }

    /// An event of a watch.
    pub(crate) fn encode_event(self, r#type: &str, object: &serde_json::Value) -> Vec<u8> {
        match self {
            Self::Json => format!("{}\n", serde_json::json!({"type": r#type, "object": object})).into_bytes(),
            Self::Protobuf => protobuf::encoder::event(r#type, object),
        }
    }
}

#[cfg(test)]
mod tests;
