//! Looks up what our table holds for one packet. It only reads, so it does not matter which process owns the table.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use model::address::Family;
use netlink::nftables::{NftablesSocket, Value};
use plan::nftables::interpreter::{Sets, Slots};
use plan::nftables::sets::{Element, ElementKey, Set, Type, address};
use plan::nftables::slots::{HASH_RANGE, SlotRange, slot_ranges};

use super::TABLE;
use super::read::{element_of, malformed};
use crate::wire_family;

/// Looks up single elements of the table.
#[derive(Debug)]
pub struct Lookup {
    socket: NftablesSocket,
    family: Family,
    sets: BTreeSet<String>,
    /// The slots that were read. The program looks up the same list several times.
    slots: BTreeMap<u32, Slots>,
}

impl Lookup {
    /// Opens the table in the network namespace of the calling thread. An error of kind `NotFound` if there is none.
    pub fn open(family: Family) -> io::Result<Self> {
        let mut socket = NftablesSocket::open()?;
        let sets = socket.sets(wire_family(family), TABLE)?;
        if sets.is_empty() {
            let what = format!("there is no nftables table {TABLE} for {family}");
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        let sets = sets.into_iter().map(|set| set.name).collect();
        Ok(Self { socket, family, sets, slots: BTreeMap::new() })
    }

    fn at(&mut self, set: Set, keys: Vec<ElementKey>) -> io::Result<Vec<Element>> {
        let (name, family) = (set.name(), self.family);
        if !self.sets.contains(name) {
            return Ok(Vec::new());
        }
        let keys = keys.iter().map(|key| Value::concatenation(&[key.as_bytes()]));
        let found = self.socket.elements_at(wire_family(family), TABLE, name, keys, |element| {
            element_of(set, &element, family).ok_or_else(|| malformed(name))
        })?;
        found.into_iter().flatten().collect()
    }
}

impl Sets for Lookup {
    type Error = io::Error;

    /// Finds no entries of clients with session affinity, since the desired state does not determine them.
    fn find(&mut self, set: Set, key: ElementKey) -> io::Result<Option<Element>> {
        let exists = if set == Set::Affinity {
            false
        } else if set == Set::AllowedSources {
            self.admits(key)?
        } else if set == Set::ServiceCidrs {
            self.has_service_cidr_of(key)?
        } else {
            return Ok(self.at(set, vec![key])?.pop());
        };
        Ok(exists.then(|| Element::new(set, key)))
    }

    /// Slot ranges are filled from their first slot on, so that the first slot shows whether a large range is in use.
    fn slots(&mut self, list: u32) -> io::Result<Slots> {
        if let Some(slots) = self.slots.get(&list) {
            return Ok(slots.clone());
        }
        let key = ElementKey::EMPTY.number(list);
        let firsts = ranges().map(|table| key.slot(table.first)).collect();
        let used: BTreeSet<u32> =
            self.at(Set::Endpoints, firsts)?.iter().filter_map(slot).map(|(slot, _)| slot).collect();
        let mut slots = Vec::new();
        for SlotRange { first, count } in ranges().filter(|table| used.contains(&table.first)) {
            let all = (first..first.saturating_add(count)).map(|slot| key.slot(slot)).collect();
            slots.extend(self.at(Set::Endpoints, all)?.iter().filter_map(slot));
        }
        slots.sort_unstable();
        let slots: Slots = slots.into();
        self.slots.insert(list, slots.clone());
        Ok(slots)
    }
}

fn ranges() -> impl Iterator<Item = SlotRange> {
    slot_ranges().chain([HASH_RANGE])
}

fn slot(element: &Element) -> Option<(u32, SocketAddr)> {
    let (_, slot, (ip, port)) = element.slot()?;
    Some((slot, SocketAddr::new(ip, port.get())))
}

impl Lookup {
    /// Whether source ranges admit a client to a frontend. The key consists of both.
    fn admits(&mut self, key: ElementKey) -> io::Result<bool> {
        let (set, family) = (Set::AllowedSources, self.family);
        let length = Type::Address.length(family);
        let bytes = key.as_bytes();
        let Some((frontend, source)) = bytes.split_at_checked(bytes.len().saturating_sub(length)) else {
            return Ok(false);
        };
        let Some(source) = address(source) else { return Ok(false) };
        let found = self.socket.elements(wire_family(family), TABLE, set.name(), |element| {
            let element = element_of(set, &element, family)?;
            element.key.as_bytes().starts_with(frontend).then(|| element.range(family))?
        })?;
        Ok(found.into_iter().flatten().any(|(first, last)| first <= source && source <= last))
    }

    fn has_service_cidr_of(&mut self, key: ElementKey) -> io::Result<bool> {
        let Some(ip) = address(key.as_bytes()) else { return Ok(false) };
        let name = Set::ServiceCidrs.name();
        let found = self.socket.elements(wire_family(self.family), TABLE, name, |element| {
            Some((address(element.key)?, !element.interval_end))
        })?;
        // A range begins at one element and ends before the next. Another range may begin at the same address.
        let before = found.into_iter().flatten().filter(|(bound, _)| *bound <= ip);
        Ok(before.max().is_some_and(|(_, begins)| begins))
    }
}
