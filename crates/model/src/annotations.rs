//! The annotations of this project, and those that are ignored, so that each is noted once, however often its object changes.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use crate::address::Family;
use crate::hashing::{ClientHash, HASH_ANNOTATION};
use crate::names::NamespacedName;
use crate::note::Note;
use crate::weights::{SliceWeights, WEIGHT_ANNOTATION};

/// Why an annotation is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IgnoredReason {
    Invalid,
    /// The mode of the proxy, or the kernel, cannot hash clients.
    Unsupported,
    /// The clients of [`MAX_HASHED`] older service ports are hashed.
    ///
    /// [`MAX_HASHED`]: crate::hashing::MAX_HASHED
    OverLimit,
}

#[derive(Debug)]
pub(crate) struct AnnotationReader {
    family: Family,
    /// Whether the mode and the kernel can hash clients to endpoints.
    can_hash: bool,
    /// By slice.
    invalid_weights: HashMap<NamespacedName, String, RandomState>,
    /// By Service, and why.
    ignored_hashes: HashMap<NamespacedName, (String, IgnoredReason), RandomState>,
}

impl AnnotationReader {
    pub fn new(family: Family, can_hash: bool) -> Self {
        Self { family, can_hash, invalid_weights: HashMap::default(), ignored_hashes: HashMap::default() }
    }

    /// How clients of a Service are hashed; `None` if it does not ask for that, or is ignored.
    pub fn read_hash(
        &mut self,
        service: &NamespacedName,
        text: Option<&str>,
        notes: &mut Vec<Note>,
    ) -> Option<ClientHash> {
        let hash = text.and_then(ClientHash::parse);
        let why = match (text, hash) {
            (Some(_), None) => IgnoredReason::Invalid,
            (Some(_), Some(_)) if !self.can_hash => IgnoredReason::Unsupported,
            (Some(_), Some(_)) | (None, _) => {
                self.forget_service(service);
                return hash;
            }
        };
        let ignored = (shortened(text.unwrap_or_default()), why);
        if self.ignored_hashes.get(service) != Some(&ignored) {
            notes.push(ignored_hash_note(service, &ignored.0, why));
            self.ignored_hashes.insert(service.clone(), ignored);
        }
        None
    }

    /// The weights of the endpoints of a slice; the default ones if it has none, or invalid ones.
    pub fn read_weights(
        &mut self,
        slice: &NamespacedName,
        text: Option<&str>,
        notes: &mut Vec<Note>,
    ) -> SliceWeights {
        let weights =
            text.map_or_else(|| Some(SliceWeights::default()), |text| SliceWeights::parse(text, self.family));
        if let Some(weights) = weights {
            self.forget_slice(slice);
            return weights;
        }
        let invalid = shortened(text.unwrap_or_default());
        if self.invalid_weights.get(slice) != Some(&invalid) {
            let note = Note::new("Ignoring invalid weights of endpoints", slice);
            notes.push(note.with(WEIGHT_ANNOTATION, &invalid));
            self.invalid_weights.insert(slice.clone(), invalid);
        }
        SliceWeights::default()
    }

    pub fn forget_service(&mut self, name: &NamespacedName) {
        self.ignored_hashes.remove(name);
    }

    pub fn forget_slice(&mut self, name: &NamespacedName) {
        self.invalid_weights.remove(name);
    }

    /// The annotation of a Service that asks for hashing and is ignored, and why.
    pub fn ignored_hash(&self, service: &NamespacedName) -> Option<(&str, IgnoredReason)> {
        self.ignored_hashes.get(service).map(|(text, why)| (text.as_str(), *why))
    }

    /// The annotation of a slice whose weights are ignored.
    pub fn invalid_weights(&self, slice: &NamespacedName) -> Option<&str> {
        self.invalid_weights.get(slice).map(String::as_str)
    }
}

/// Says that the annotation of a Service is ignored, and why.
pub(crate) fn ignored_hash_note(service: &NamespacedName, text: &str, why: IgnoredReason) -> Note {
    let note = match why {
        IgnoredReason::Invalid => Note::new("Ignoring invalid hash of clients", service),
        IgnoredReason::Unsupported => {
            let message = "Ignoring hash of clients, which this mode or kernel does not support";
            Note::new(message, service).with_event(service, "HashingNotSupported")
        }
        IgnoredReason::OverLimit => {
            let message =
                "Ignoring hash of clients at some ports or all, since older services reach the limit";
            Note::new(message, service).with_event(service, "HashingLimitReached")
        }
    };
    note.with(HASH_ANNOTATION, text)
}

/// The beginning of an annotation, which may be long.
fn shortened(text: &str) -> String {
    text.chars().take(200).collect()
}
