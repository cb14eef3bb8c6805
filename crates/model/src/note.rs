//! What should be logged about an object. The model does not log: its caller does.

use std::fmt;

use crate::names::NamespacedName;

/// A part of an object that the model ignores, or interprets differently than its author may have meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Constant, so that operators can search for it.
    pub message: &'static str,
    /// The object, as `namespace/name`.
    pub object: String,
    /// The field at fault and its value, if there is one.
    pub detail: Option<(&'static str, String)>,
    /// An event that should also be recorded: the Service, and the reason.
    pub event: Option<(NamespacedName, &'static str)>,
}

impl Note {
    pub fn new(message: &'static str, object: impl fmt::Display) -> Self {
        Self { message, object: object.to_string(), detail: None, event: None }
    }

    pub fn with_event(self, service: &NamespacedName, reason: &'static str) -> Self {
        Self { event: Some((service.clone(), reason)), ..self }
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
