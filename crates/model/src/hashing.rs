//! Consistent hashing: a Service may ask that its clients are not assigned to endpoints at random, but by a hash, which is the same
//! on every node. How many may is limited.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::names::NamespacedName;
use crate::service::{Created, ServiceInfo};

/// The annotation of a Service.
pub const HASH_ANNOTATION: &str = "service.sluice.io/hash";

/// What is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClientHash {
    /// All connections of a client go to the same endpoint.
    Address,
    /// Each connection is hashed on its own.
    AddressAndPort,
}

impl ClientHash {
    pub const BOTH: [Self; 2] = [Self::Address, Self::AddressAndPort];

    /// The value of the annotation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "ClientIP",
            Self::AddressAndPort => "ClientIPAndPort",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|hash| hash.name() == text)
    }
}

/// How many service ports of a family may have their clients hashed. In the nftables mode each needs a table for each of its
/// endpoint lists, of 2 MiB of kernel memory and 0.2 MiB more for each processor. So these take 64 MiB and 6.4 MiB more for each
/// processor, or twice as much if all have local lists, and no author of Services can make nodes run out of memory.
pub const MAX_HASHED: usize = 32;

/// The Services that ask for hashing. The oldest get it, as with addresses that several Services claim. So all nodes hash the clients
/// of the same service ports, whatever happened before.
///
/// The cost of a change depends on the limit, not on the number of Services.
#[derive(Debug)]
pub(crate) struct HashRequests {
    limit: usize,
    /// The number of service ports of each Service; never zero.
    by_age: BTreeMap<(Created, NamespacedName), usize>,
    /// How many service ports of a Service have their clients hashed, the first ones; never zero.
    granted: BTreeMap<NamespacedName, usize>,
    /// The same according to the routings that were last taken.
    taken: BTreeMap<NamespacedName, usize>,
    /// Services that did not get all that they ask for, and of which this has been reported.
    reported: BTreeSet<NamespacedName>,
}

impl HashRequests {
    pub fn new(limit: usize) -> Self {
        let (by_age, granted, taken, reported) = Default::default();
        Self { limit, by_age, granted, taken, reported }
    }

    /// Replaces what a Service asks for. Returns the Services that do not get all that they ask for, each once until it does.
    pub fn replace(
        &mut self,
        name: &NamespacedName,
        before: Option<&ServiceInfo>,
        after: Option<&ServiceInfo>,
    ) -> Vec<NamespacedName> {
        let request = |service: Option<&ServiceInfo>| {
            let service = service.filter(|service| service.hash.is_some())?;
            Some(((service.created, name.clone()), service.ports.len()))
        };
        let (before, after) = (request(before), request(after));
        if before == after {
            return Vec::new();
        }
        let asks = after.is_some();
        before.iter().for_each(|(key, _)| _ = self.by_age.remove(key));
        self.by_age.extend(after);
        let had = std::mem::take(&mut self.granted);
        let mut left = self.limit;
        let mut lose: Vec<NamespacedName> = Vec::new();
        for ((_, name), ports) in &self.by_age {
            if left == 0 {
                break;
            }
            let granted = left.min(*ports);
            left -= granted;
            self.granted.insert(name.clone(), granted);
            if granted == *ports {
                self.reported.remove(name);
            } else {
                lose.push(name.clone());
            }
        }
        if asks {
            lose.extend((!self.granted.contains_key(name)).then(|| name.clone()));
        } else {
            self.reported.remove(name);
        }
        lose.extend(had.into_keys().filter(|had| had != name && !self.granted.contains_key(had)));
        lose.retain(|name| self.reported.insert(name.clone()));
        lose
    }

    /// How many service ports of a Service have their clients hashed, the first ones.
    pub fn granted(&self, name: &NamespacedName) -> usize {
        self.granted.get(name).copied().unwrap_or_default()
    }

    /// The routings of a Service are decided by what it has been granted.
    pub fn take(&mut self, name: &NamespacedName) {
        match self.granted.get(name) {
            Some(granted) => _ = self.taken.insert(name.clone(), *granted),
            None => _ = self.taken.remove(name),
        }
    }

    /// The Services whose routings have to be decided again since others came or went.
    pub fn changed(&self) -> impl Iterator<Item = &NamespacedName> {
        let either = self.granted.keys().chain(self.taken.keys());
        either.filter(|name| self.granted.get(name) != self.taken.get(name))
    }
}
