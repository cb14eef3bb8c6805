//! What our table holds for one packet. Reads, and writes nothing, whoever owns the table.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use model::address::Family;
use model::names::Port;
use netlink::nftables::{Connection, Value};
use plan::nftables::sets::{Key, Set, address};
use plan::trace::live::Sets;

use super::TABLE;
use super::read::{element_of, odd};
use crate::wire_family;

/// A table that is asked for single elements.
#[derive(Debug)]
pub struct Lookup {
    connection: Connection,
    family: Family,
    sets: BTreeSet<String>,
}

impl Lookup {
    /// An error of kind `NotFound` if there is no table of ours. Belongs to the network namespace of the calling thread.
    pub fn open(family: Family) -> io::Result<Self> {
        let mut connection = Connection::open()?;
        let sets = connection.sets(wire_family(family), TABLE)?;
        if sets.is_empty() {
            let what = format!("there is no nftables table {TABLE} for {family}");
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        let sets = sets.into_iter().map(|set| set.name).collect();
        Ok(Self { connection, family, sets })
    }

    fn at(&mut self, set: Set, keys: Vec<Key>) -> io::Result<Vec<plan::nftables::sets::Element>> {
        let (name, family) = (set.name(), self.family);
        if !self.sets.contains(name) {
            return Ok(Vec::new());
        }
        let keys = keys.iter().map(|key| Value::concatenation(&[key.as_bytes()]));
        let found = self.connection.elements_at(wire_family(family), TABLE, name, keys, |element| {
            element_of(set, &element, family).ok_or_else(|| odd(name))
        })?;
        found.into_iter().flatten().collect()
    }
}

impl Sets for Lookup {
    type Error = io::Error;

    fn contains(&mut self, set: Set, key: Key) -> io::Result<bool> {
        Ok(!self.at(set, vec![key])?.is_empty())
    }

    fn endpoints(&mut self, map: Set, keys: Vec<Key>) -> io::Result<Vec<(IpAddr, Port)>> {
        Ok(self.at(map, keys)?.into_iter().filter_map(|element| element.endpoint()).collect())
    }

    fn admits(&mut self, frontend: Key, source: IpAddr) -> io::Result<bool> {
        let (set, family) = (Set::AllowedSources, self.family);
        let name = set.name();
        let found = self.connection.elements(wire_family(family), TABLE, name, |element| {
            let element = element_of(set, &element, family)?;
            let range = element.key.as_bytes().strip_prefix(frontend.as_bytes())?;
            let (first, last) = range.split_at_checked(range.len() / 2)?;
            Some((address(first)?, address(last)?))
        })?;
        Ok(found.into_iter().flatten().any(|(first, last)| first <= source && source <= last))
    }

    fn has_service_cidr_of(&mut self, ip: IpAddr) -> io::Result<bool> {
        let name = Set::ServiceCidrs.name();
        let found = self.connection.elements(wire_family(self.family), TABLE, name, |element| {
            Some((address(element.key)?, !element.interval_end))
        })?;
        // Every range begins at one element and ends before the next; where one ends, another may begin.
        let before = found.into_iter().flatten().filter(|(bound, _)| *bound <= ip);
        Ok(before.max().is_some_and(|(_, begins)| begins))
    }

    fn node_port_ips(&mut self) -> io::Result<Option<BTreeSet<IpAddr>>> {
        let name = Set::NodePortIps.name();
        if !self.sets.contains(name) {
            return Ok(None);
        }
        let read = |element: netlink::nftables::FoundElement<'_>| address(element.key);
        let found = self.connection.elements(wire_family(self.family), TABLE, name, read)?;
        Ok(Some(found.into_iter().flatten().collect()))
    }
}
