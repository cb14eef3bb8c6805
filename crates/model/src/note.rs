//! What is worth telling about an object we read. The model does not log; the edge does.

use std::fmt;

/// Something in an object that we skipped or read differently than its author may have meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// A constant sentence, for those who search logs.
    pub message: &'static str,
    /// The object, as `namespace/name`.
    pub object: String,
    /// The field and its value, when one is to blame.
    pub detail: Option<(&'static str, String)>,
}

impl Note {
    pub fn new(message: &'static str, object: impl fmt::Display) -> Self {
        Self { message, object: object.to_string(), detail: None }
    }

    pub fn with(self, field: &'static str, value: impl fmt::Display) -> Self {
        Self { detail: Some((field, value.to_string())), ..self }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.message)?;
        match &self.detail {
            Some((field, value)) => write!(f, ": {field} {value:?}"),
            None => Ok(()),
        }
    }
}
