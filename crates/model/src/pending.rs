//! Collects changes until they are drained, each name once, however often it changed.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::names::NamespacedName;

/// Maps each changed name to the value at the last drain. A value that returns to that is no change.
#[derive(Debug)]
pub struct Pending<V>(HashMap<NamespacedName, Option<V>, RandomState>);

impl<V> Default for Pending<V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<V: PartialEq> Pending<V> {
    /// Records that `before` was replaced by `after`, where `None` means absent. Returns whether a change is pending.
    pub fn changed(&mut self, name: &NamespacedName, before: Option<V>, after: Option<&V>) -> bool {
        match self.0.get(name) {
            Some(drained) if drained.as_ref() == after => {
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

    /// Every changed name with its value at the last drain.
    pub fn drain(&mut self) -> impl Iterator<Item = (NamespacedName, Option<V>)> {
        std::mem::take(&mut self.0).into_iter()
    }

    /// The value at the last drain, if the name has changed since. It counts as drained from now on.
    pub fn take(&mut self, name: &NamespacedName) -> Option<Option<V>> {
        self.0.remove(name)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
