//! What changed since someone last asked, each thing once, however often it changed.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::names::NamespacedName;

/// Remembers each changed thing as it was; one that becomes that again has not changed.
#[derive(Debug)]
pub struct Pending<V>(HashMap<NamespacedName, Option<V>, RandomState>);

impl<V> Default for Pending<V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<V: PartialEq> Pending<V> {
    /// Tells that `before` was replaced by `after`; `None` is absence. Returns whether that leaves a change.
    pub fn changed(&mut self, name: &NamespacedName, before: Option<V>, after: Option<&V>) -> bool {
        match self.0.get(name) {
            Some(settled) if settled.as_ref() == after => {
                self.0.remove(name);
                false
            }
            Some(_) => true,
            None if before.as_ref() == after => false,
            None => {
                self.0.insert(name.clone(), before);
                true
            }
        }
    }

    /// Every changed name with what it was when last drained.
    pub fn drain(&mut self) -> impl Iterator<Item = (NamespacedName, Option<V>)> {
        std::mem::take(&mut self.0).into_iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
