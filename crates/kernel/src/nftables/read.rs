//! Reads our table back from the kernel, in the types of `plan`.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use model::address::Family;
use model::names::Port;
use netlink::nftables::{FoundChain, FoundDatum, FoundElement, FoundSet, NftablesSocket, Value, Verdict};
use plan::nftables::desired::DesiredTable;
use plan::nftables::elements::FrontendKey;
use plan::nftables::frontend_chains::FrontendChain;
use plan::nftables::program::{Program, ProgramChain, ProgramSettings};
use plan::nftables::sets::{
    Data, Element, ElementKey, ListOfFrontend, LookupBy, Set, SetKind, Sticky, Type, address,
};
use plan::nftables::steps::{Boundaries, TableContent, Unexpected};

use super::TABLE;
use super::batch::address_length;
use super::compile::{declare, fingerprint, hook};
use crate::wire_family;

/// The table that has our name.
#[derive(Debug)]
pub enum Found {
    Absent,
    /// It has another program, and has to be replaced.
    Foreign,
    /// Another running process owns it, whose netlink port this is.
    OwnedBy(u32),
    Ours(Ours),
}

/// A table with the desired program.
#[derive(Debug)]
pub struct Ours {
    /// With the number of elements, where the kernel reports it.
    pub sets: Vec<(Set, Option<u32>)>,
    /// The session-affinity timeouts that have chains.
    pub timeouts: BTreeSet<u32>,
    /// Sets and chains that are not part of the program.
    pub unexpected: Unexpected,
    pub owner: Option<u32>,
    pub persistent: bool,
}

/// Progress of reading the sets of our table.
#[derive(Debug, Default)]
pub struct Reading {
    done: BTreeSet<Set>,
    content: TableContent,
}

impl Reading {
    /// The content of the table, once all sets have been read.
    pub fn finish(self, timeouts: BTreeSet<u32>, unexpected: Unexpected) -> TableContent {
        TableContent { timeouts, unexpected, ..self.content }
    }
}

/// The connections that an element of [`Set::Endpoints`] has counted.
#[derive(Debug)]
pub struct CountedSlot {
    pub list: u32,
    pub slot: u32,
    pub endpoint: (IpAddr, Port),
    pub count: u64,
}

#[derive(Debug)]
pub struct Reader<'a> {
    pub socket: &'a mut NftablesSocket,
    pub family: Family,
    /// The largest set that is listed as a whole.
    pub max_listed: usize,
}

impl Reader<'_> {
    pub fn find(&mut self, settings: &ProgramSettings) -> io::Result<Found> {
        let tables = self.socket.tables(wire_family(self.family))?;
        let Some(table) = tables.into_iter().find(|table| table.name == TABLE) else {
            return Ok(Found::Absent);
        };
        if let Some(owner) = table.owner.filter(|owner| *owner != self.socket.port()) {
            return Ok(Found::OwnedBy(owner));
        }
        let found = self.socket.sets(wire_family(self.family), TABLE)?;
        let chains = self.socket.chains(wire_family(self.family), TABLE)?;
        let timeouts = timeouts(&chains);
        let program = Program::new(settings, &timeouts);
        if !self.has_sets_of(&program, &found)
            || !self.has_chains_of(&program, &chains)?
            || !self.has_verdicts_of(&program)?
        {
            return Ok(Found::Foreign);
        }
        let count = |set: &Set| found.iter().find(|found| found.name == set.name())?.count;
        let sets = program.sets.iter().filter(|set| set.kind() != SetKind::Fixed);
        let sets = sets.map(|set| (*set, count(set))).collect();
        let unexpected = unexpected(&program, &found, &chains);
        let (owner, persistent) = (table.owner, table.persistent);
        Ok(Found::Ours(Ours { sets, timeouts, unexpected, owner, persistent }))
    }

    /// Reads the sets that have not been read yet. Of a set that is too large to be listed, only the desired elements are looked
    /// up. They depend on the ids that service ports have in the kernel, so those are read first.
    pub fn content(
        &mut self,
        sets: &[(Set, Option<u32>)],
        desired: &DesiredTable,
        reading: &mut Reading,
    ) -> io::Result<()> {
        let (ids, rest): (Vec<_>, Vec<_>) =
            sets.iter().copied().partition(|(set, _)| matches!(set, Set::Lists(..)));
        self.read_sets(&ids, desired, reading)?;
        let mut desired = desired.clone();
        desired.adopt_ids(&reading.content.ids);
        self.read_sets(&rest, &desired, reading)
    }

    fn read_sets(
        &mut self,
        sets: &[(Set, Option<u32>)],
        desired: &DesiredTable,
        reading: &mut Reading,
    ) -> io::Result<()> {
        // Computed only if a set is too large to be listed.
        let elements = OnceCell::new();
        let desired = |set| of_set(elements.get_or_init(|| desired.elements()), set);
        for (set, count) in sets {
            if !reading.done.contains(set) {
                let count = count.map(|count| count as usize);
                self.read_set(*set, count, || desired(*set), &mut reading.content)?;
                reading.done.insert(*set);
            }
        }
        Ok(())
    }

    /// Adds the elements of one set to the content; none on error.
    fn read_set<'a>(
        &mut self,
        set: Set,
        count: Option<usize>,
        desired: impl Fn() -> &'a [Element],
        content: &mut TableContent,
    ) -> io::Result<()> {
        if set == Set::ServiceCidrs {
            content.service_cidrs = self.service_cidrs()?;
        } else if set == Set::NodePortIps {
            content.node_port_ips = self.node_port_ips()?;
        } else if set.kind() != SetKind::Dynamic {
            let elements = self.elements(set, count, &desired)?;
            if matches!(set, Set::Lists(..)) {
                content.ids.extend(match &elements {
                    Some(elements) => elements.clone(),
                    None => self.look_up(set, desired())?,
                });
            }
            match elements {
                Some(elements) => content.elements.extend(elements),
                None => content.unreadable.push(set),
            }
        }
        Ok(())
    }

    /// The elements of a set. The time that the kernel takes to list a set grows with the square of its size, so of a large one
    /// only the desired elements are looked up. `None` if the set has others, or may have.
    fn elements<'a>(
        &mut self,
        set: Set,
        count: Option<usize>,
        desired: impl Fn() -> &'a [Element],
    ) -> io::Result<Option<Vec<Element>>> {
        if set.kind() == SetKind::Ranges || count.unwrap_or_else(|| desired().len()) <= self.max_listed {
            return self.listed(set).map(Some);
        }
        if count.is_none() {
            return Ok(None);
        }
        let found = self.look_up(set, desired())?;
        Ok((Some(found.len()) == count).then_some(found))
    }

    /// Lists all elements of a set.
    pub fn listed(&mut self, set: Set) -> io::Result<Vec<Element>> {
        let family = self.family;
        self.read(set, |element| element_of(set, element, family))
    }

    /// Looks up the keys of the desired elements, none of which may be a range.
    pub fn look_up(&mut self, set: Set, desired: &[Element]) -> io::Result<Vec<Element>> {
        let family = self.family;
        let name = set.name();
        let keys = desired.iter().map(|element| Value::concatenation(&[element.key.as_bytes()]));
        let read =
            |element: FoundElement<'_>| element_of(set, &element, family).ok_or_else(|| malformed(name));
        let found = self.socket.elements_at(wire_family(family), TABLE, name, keys, read)?;
        found.into_iter().flatten().collect()
    }

    /// The first address of each range of [`Set::ServiceCidrs`] and, with `true`, the first address after it.
    pub fn service_cidrs(&mut self) -> io::Result<Boundaries> {
        self.read(Set::ServiceCidrs, |element| Some((address(element.key)?, element.interval_end)))
    }

    pub fn node_port_ips(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        self.read(Set::NodePortIps, |element| address(element.key))
    }

    /// Whether a table with our name exists, whichever process owns it.
    pub fn has_table(&mut self) -> io::Result<bool> {
        let tables = self.socket.tables(wire_family(self.family))?;
        Ok(tables.iter().any(|table| table.name == TABLE))
    }

    /// The sets of the table. Empty if there is no table.
    pub fn sets(&mut self) -> io::Result<Vec<FoundSet>> {
        match self.socket.sets(wire_family(self.family), TABLE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            sets => sets,
        }
    }

    /// The new connections that each frontend has counted.
    pub fn counted_frontends(&mut self, by: LookupBy) -> io::Result<Vec<(FrontendKey, u64)>> {
        let family = self.family;
        self.read(Set::Frontends(by), |element| {
            let (frontend, _) = FrontendKey::from_key(element.key, by, family)?;
            Some((frontend, element.counter?.packets))
        })
    }

    /// The new connections that each slot has counted.
    pub fn counted_slots(&mut self) -> io::Result<Vec<CountedSlot>> {
        let family = self.family;
        self.read(Set::Endpoints, |element| {
            let (list, slot, endpoint) = element_of(Set::Endpoints, element, family)?.slot()?;
            Some(CountedSlot { list, slot, endpoint, count: element.counter?.packets })
        })
    }

    /// The new connections that a frontend has counted. `None` if the kernel has no such frontend.
    pub fn count(&mut self, frontend: FrontendKey) -> io::Result<Option<u64>> {
        let by = frontend.lookup_by();
        let key = Value::concatenation(&[frontend.key().as_bytes()]);
        let read = |element: FoundElement<'_>| element.counter.map(|counter| counter.packets);
        let name = Set::Frontends(by).name();
        let family = wire_family(self.family);
        let found = self.socket.elements_at(family, TABLE, name, [key], read)?;
        Ok(found.into_iter().flatten().flatten().next())
    }

    fn has_sets_of(&self, program: &Program, found: &[FoundSet]) -> bool {
        program.sets.iter().all(|set| {
            let name = set.name();
            let found = found.iter().find(|found| found.name == name);
            found.is_some_and(|found| declare(*set, self.family, |desired| desired.agrees_with(found)))
        })
    }

    /// Whether each chain of the program exists with exactly its rules. Other chains have no effect, since none of ours leads to
    /// them.
    fn has_chains_of(&mut self, program: &Program, chains: &[FoundChain]) -> io::Result<bool> {
        let chains: BTreeMap<&str, &FoundChain> = chains.iter().map(|chain| (&*chain.name, chain)).collect();
        let mut rules: BTreeMap<String, Vec<Option<u64>>> = BTreeMap::new();
        for rule in self.socket.rules(wire_family(self.family), TABLE)? {
            rules.entry(rule.chain).or_default().push(rule.fingerprint);
        }
        Ok(program.chains.iter().all(|chain| {
            let desired: Vec<_> =
                chain.rules.iter().map(|rule| Some(fingerprint(rule, self.family))).collect();
            chains.get(&*chain.name).is_some_and(|found| has_hook_of(found, chain))
                && rules.get(&*chain.name).map_or(desired.is_empty(), |found| *found == desired)
        }))
    }

    fn has_verdicts_of(&mut self, program: &Program) -> io::Result<bool> {
        let mut found = self.verdicts(program)?;
        found.sort_unstable();
        Ok(found == program.verdicts)
    }

    /// The elements of the sets of kind [`SetKind::Fixed`], as far as they can be ours.
    pub fn verdicts(&mut self, program: &Program) -> io::Result<Vec<Element>> {
        let mut all = Vec::new();
        for set in program.sets.iter().filter(|set| set.kind() == SetKind::Fixed) {
            let family = self.family;
            let found: Vec<Option<Element>> =
                self.read(*set, |element| Some(element_of(*set, element, family)))?;
            all.extend(found.into_iter().flatten());
        }
        Ok(all)
    }

    /// Applies `read` to all elements of a set. An error if it returns `None` for one: then the set is not ours.
    fn read<C: FromIterator<T>, T>(
        &mut self,
        set: Set,
        mut read: impl FnMut(&FoundElement<'_>) -> Option<T>,
    ) -> io::Result<C> {
        let name = set.name();
        let found = self.socket.elements(wire_family(self.family), TABLE, name, |element| read(&element))?;
        found.into_iter().map(|found| found.ok_or_else(|| malformed(name))).collect()
    }
}

/// The elements of one set, out of sorted elements.
pub fn of_set(elements: &[Element], set: Set) -> &[Element] {
    let start = elements.partition_point(|element| element.set < set);
    let end = elements.partition_point(|element| element.set <= set);
    elements.get(start..end).unwrap_or_default()
}

/// Whether the chain has the hook of the desired one.
pub fn has_hook_of(found: &FoundChain, desired: &ProgramChain) -> bool {
    match (found.hook, hook(desired)) {
        // We leave the policy to the kernel, which reports its default.
        (Some(a), Some(b)) => (a.kind, a.point, a.priority) == (b.kind, b.point, b.priority),
        (a, b) => a.is_none() && b.is_none(),
    }
}

pub fn malformed(set: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed element in set {set}"))
}

/// The session-affinity timeouts that have chains.
pub fn timeouts(chains: &[FoundChain]) -> BTreeSet<u32> {
    let seconds =
        |by: LookupBy| chains.iter().filter_map(move |chain| by.affinity_chain_seconds(&chain.name));
    LookupBy::BOTH.into_iter().flat_map(seconds).collect()
}

fn unexpected(program: &Program, sets: &[FoundSet], chains: &[FoundChain]) -> Unexpected {
    let known: BTreeSet<&str> = program.sets.iter().map(|set| set.name()).collect();
    let sets = sets.iter().map(|set| &set.name).filter(|name| !known.contains(&***name));
    let known: BTreeSet<&str> = program.chains.iter().map(|chain| &*chain.name).collect();
    let chains = chains.iter().map(|chain| &chain.name).filter(|name| !known.contains(&***name));
    Unexpected { sets: sets.cloned().collect(), chains: chains.cloned().collect() }
}

pub fn element_of(set: Set, element: &FoundElement<'_>, family: Family) -> Option<Element> {
    let key = match element.key_end {
        // Both ends of the range begin with the frontend. Our key has it once.
        Some(end) => {
            let (_, last) = end.split_at_checked(end.len().checked_sub(address_length(family))?)?;
            ElementKey::from_wire(&[element.key, last].concat())?
        }
        None => ElementKey::from_wire(element.key)?,
    };
    let data = match (set.data(), element.data) {
        ([], None) => None,
        ([Type::Address, Type::Port], Some(_)) => {
            let (ip, port) = endpoint(element, family)?;
            Some(Data::Endpoint(ip, port))
        }
        ([Type::Number, _, _, _], Some(FoundDatum::Value(bytes))) => {
            Some(Data::List(ListOfFrontend::from_wire(bytes)?))
        }
        ([Type::Number, ..], Some(FoundDatum::Value(bytes))) => Some(Data::Sticky(Sticky::from_wire(bytes)?)),
        ([Type::Verdict], Some(FoundDatum::Verdict(verdict))) if !matches!(set, Set::Timeouts(_)) => {
            let target = FrontendChain::from_number(u32::from_ne_bytes(element.key.try_into().ok()?))?;
            let name = target.name();
            let desired = if target.returns() { Verdict::Jump(&name) } else { Verdict::Goto(&name) };
            (verdict == desired && target.set() == set).then_some(Data::Chain(target))
        }
        ([Type::Verdict], Some(FoundDatum::Verdict(Verdict::Goto(chain)))) => {
            let seconds = LookupBy::BOTH
                .into_iter()
                .find_map(|by| by.affinity_chain_seconds(chain).filter(|_| set == Set::Timeouts(by)));
            Some(Data::AffinityChain(seconds?))
        }
        _ => return None,
    };
    Some(Element { set, key, data })
}

fn endpoint(element: &FoundElement<'_>, family: Family) -> Option<(IpAddr, Port)> {
    let FoundDatum::Value(bytes) = element.data? else { return None };
    let (ip, port) = bytes.split_at_checked(address_length(family))?;
    let &[high, low, ..] = port else { return None };
    Some((address(ip)?, Port::from_api(u16::from_be_bytes([high, low]).into())?))
}
