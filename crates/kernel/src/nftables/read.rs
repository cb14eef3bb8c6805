//! What the kernel holds of our table, read back in our own terms.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use model::address::Family;
use model::names::Port;
use netlink::nftables::{Connection, FoundChain, FoundDatum, FoundElement, FoundSet, Value, Verdict};
use plan::nftables::desired::DesiredTable;
use plan::nftables::elements::Frontend;
use plan::nftables::program::{Chain, Program, Settings};
use plan::nftables::sets::{Bank, Data, Element, Key, Nature, Set, Sticky, Type, address};
use plan::nftables::steps::{Boundaries, TableContent, Unexpected};

use super::TABLE;
use super::batch::address_length;
use super::compile::{declare, fingerprint, hook};
use crate::wire_family;

/// What goes by the name of our table.
#[derive(Debug)]
pub enum Found {
    Absent,
    /// It has another program: to be replaced.
    Foreign,
    /// A running process owns it, by its netlink port.
    OwnedBy(u32),
    Ours(Ours),
}

/// A table with the program we want.
#[derive(Debug)]
pub struct Ours {
    /// With the number of elements, where the kernel tells it.
    pub sets: Vec<(Set, Option<u32>)>,
    /// Timeouts of session affinity that the program has chains for.
    pub timeouts: BTreeSet<u32>,
    /// Sets and chains that the program does not have.
    pub unexpected: Unexpected,
    pub owner: Option<u32>,
    pub persistent: bool,
}

/// The sets of our table that have been read.
#[derive(Debug, Default)]
pub struct Reading {
    done: BTreeSet<Set>,
    content: TableContent,
}

impl Reading {
    /// All sets have been read.
    pub fn finish(self, timeouts: BTreeSet<u32>, unexpected: Unexpected) -> TableContent {
        TableContent { timeouts, unexpected, ..self.content }
    }
}

/// What an element has counted.
#[derive(Debug)]
pub struct Counted {
    pub frontend: Frontend,
    pub endpoint: Option<(IpAddr, Port)>,
    pub count: u64,
}

#[derive(Debug)]
pub struct Reader<'a> {
    pub connection: &'a mut Connection,
    pub family: Family,
    /// The largest set that is listed as a whole.
    pub listed: usize,
}

impl Reader<'_> {
    pub fn find(&mut self, settings: &Settings) -> io::Result<Found> {
        let tables = self.connection.tables(wire_family(self.family))?;
        let Some(table) = tables.into_iter().find(|table| table.name == TABLE) else {
            return Ok(Found::Absent);
        };
        if let Some(owner) = table.owner.filter(|owner| *owner != self.connection.port()) {
            return Ok(Found::OwnedBy(owner));
        }
        let found = self.connection.sets(wire_family(self.family), TABLE)?;
        let chains = self.connection.chains(wire_family(self.family), TABLE)?;
        let timeouts = timeouts(&chains);
        let program = Program::new(settings, &timeouts);
        if !self.declares(&program, &found) || !self.runs(&program, &chains)? {
            return Ok(Found::Foreign);
        }
        let count = |set: &Set| found.iter().find(|found| found.name == set.name())?.count;
        let sets = program.sets.iter().map(|set| (*set, count(set))).collect();
        let unexpected = unexpected(&program, &found, &chains);
        let (owner, persistent) = (table.owner, table.persistent);
        Ok(Found::Ours(Ours { sets, timeouts, unexpected, owner, persistent }))
    }

    /// What the sets hold that have not been read yet. Of one that is too large to be listed only what it should hold is
    /// asked for, which follows from the ids that service ports have in the kernel: those are read first.
    pub fn content(
        &mut self,
        sets: &[(Set, Option<u32>)],
        desired: &DesiredTable,
        reading: &mut Reading,
    ) -> io::Result<()> {
        let (ids, rest): (Vec<_>, Vec<_>) =
            sets.iter().copied().partition(|(set, _)| matches!(set, Set::Sticky(_)));
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
        // Few sets are so large that it has to be known what they should hold.
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

    /// Adds to the content what one set holds; nothing if that fails.
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
        } else if set.nature() != Nature::Learning {
            let elements = self.elements(set, count, &desired)?;
            if matches!(set, Set::Sticky(_)) {
                content.ids.extend(match &elements {
                    Some(elements) => elements.clone(),
                    None => self.among(set, desired())?,
                });
            }
            match elements {
                Some(elements) => content.elements.extend(elements),
                None => content.unclear.push(set),
            }
        }
        Ok(())
    }

    /// What a set holds. To list it takes the kernel time with the square of its size, so of a large one we ask only for
    /// what it should hold; if that is not all there is, or may not be, there is no answer.
    fn elements<'a>(
        &mut self,
        set: Set,
        count: Option<usize>,
        desired: impl Fn() -> &'a [Element],
    ) -> io::Result<Option<Vec<Element>>> {
        if set.nature() == Nature::Ranges || count.unwrap_or_else(|| desired().len()) <= self.listed {
            return self.listed(set).map(Some);
        }
        if count.is_none() {
            return Ok(None);
        }
        let found = self.among(set, desired())?;
        Ok((Some(found.len()) == count).then_some(found))
    }

    /// Everything that a set holds.
    pub fn listed(&mut self, set: Set) -> io::Result<Vec<Element>> {
        let family = self.family;
        self.read(set, |element| element_of(set, element, family))
    }

    /// What a set holds under the keys of those that are wanted, none of which may be a range.
    pub fn among(&mut self, set: Set, wanted: &[Element]) -> io::Result<Vec<Element>> {
        let family = self.family;
        let name = set.name();
        let keys = wanted.iter().map(|element| Value::concatenation(&[element.key.as_bytes()]));
        let read = |element: FoundElement<'_>| element_of(set, &element, family).ok_or_else(|| odd(name));
        let found = self.connection.elements_at(wire_family(family), TABLE, name, keys, read)?;
        found.into_iter().flatten().collect()
    }

    /// Where ranges of [`Set::ServiceCidrs`] begin, and with `true` the first address after each.
    pub fn service_cidrs(&mut self) -> io::Result<Boundaries> {
        self.read(Set::ServiceCidrs, |element| Some((address(element.key)?, element.interval_end)))
    }

    pub fn node_port_ips(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        self.read(Set::NodePortIps, |element| address(element.key))
    }

    /// Whether there is our table, whoever has it.
    pub fn has_table(&mut self) -> io::Result<bool> {
        let tables = self.connection.tables(wire_family(self.family))?;
        Ok(tables.iter().any(|table| table.name == TABLE))
    }

    /// The sets of the table; none if there is no table.
    pub fn sets(&mut self) -> io::Result<Vec<FoundSet>> {
        match self.connection.sets(wire_family(self.family), TABLE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            sets => sets,
        }
    }

    /// New connections counted by each element of a set of that bank.
    pub fn counters(&mut self, set: Set, bank: Bank) -> io::Result<Vec<Counted>> {
        let family = self.family;
        self.read(set, |element| {
            let (frontend, _) = Frontend::from_key(element.key, bank, family)?;
            Some(Counted { frontend, endpoint: endpoint(element, family), count: element.counter?.packets })
        })
    }

    /// New connections counted by a frontend; none if there is no such one.
    pub fn count(&mut self, frontend: Frontend) -> io::Result<Option<u64>> {
        let bank = if frontend.ip.is_some() { Bank::Addresses } else { Bank::NodePorts };
        let key = Value::concatenation(&[frontend.key().as_bytes()]);
        let read = |element: FoundElement<'_>| element.counter.map(|counter| counter.packets);
        let name = Set::Frontends(bank).name();
        let family = wire_family(self.family);
        let found = self.connection.elements_at(family, TABLE, name, [key], read)?;
        Ok(found.into_iter().flatten().flatten().next())
    }

    fn declares(&self, program: &Program, found: &[FoundSet]) -> bool {
        program.sets.iter().all(|set| {
            let name = set.name();
            let found = found.iter().find(|found| found.name == name);
            found.is_some_and(|found| declare(*set, self.family, |wanted| wanted.agrees_with(found)))
        })
    }

    /// Whether each chain is there with exactly the rules it should have. More chains than ours do no harm, for nothing
    /// of ours leads to them.
    fn runs(&mut self, program: &Program, chains: &[FoundChain]) -> io::Result<bool> {
        let chains: BTreeMap<&str, &FoundChain> = chains.iter().map(|chain| (&*chain.name, chain)).collect();
        let mut rules: BTreeMap<String, Vec<Option<u64>>> = BTreeMap::new();
        for rule in self.connection.rules(wire_family(self.family), TABLE)? {
            rules.entry(rule.chain).or_default().push(rule.fingerprint);
        }
        Ok(program.chains.iter().all(|chain| {
            let wanted: Vec<_> =
                chain.rules.iter().map(|rule| Some(fingerprint(rule, self.family))).collect();
            chains.get(&*chain.name).is_some_and(|found| is_entered_as(found, chain))
                && rules.get(&*chain.name).map_or(wanted.is_empty(), |found| *found == wanted)
        }))
    }

    /// What `read` makes of every element of a set. One that it can make nothing of is not ours, nor is then the set.
    fn read<C: FromIterator<T>, T>(
        &mut self,
        set: Set,
        mut read: impl FnMut(&FoundElement<'_>) -> Option<T>,
    ) -> io::Result<C> {
        let name = set.name();
        let found =
            self.connection.elements(wire_family(self.family), TABLE, name, |element| read(&element))?;
        found.into_iter().map(|found| found.ok_or_else(|| odd(name))).collect()
    }
}

/// Those of one set, of elements that are in order.
pub fn of_set(elements: &[Element], set: Set) -> &[Element] {
    let start = elements.partition_point(|element| element.set < set);
    let end = elements.partition_point(|element| element.set <= set);
    elements.get(start..end).unwrap_or_default()
}

/// Whether packets enter the chain where they should.
pub fn is_entered_as(found: &FoundChain, wanted: &Chain) -> bool {
    match (found.hook, hook(wanted)) {
        // The kernel tells the policy that we left to it.
        (Some(a), Some(b)) => (a.kind, a.point, a.priority) == (b.kind, b.point, b.priority),
        (a, b) => a.is_none() && b.is_none(),
    }
}

pub fn odd(set: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("odd element in set {set}"))
}

/// Timeouts of session affinity that there are chains for.
pub fn timeouts(chains: &[FoundChain]) -> BTreeSet<u32> {
    let seconds = |bank: Bank| chains.iter().filter_map(move |chain| bank.learner_seconds(&chain.name));
    Bank::BOTH.into_iter().flat_map(seconds).collect()
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
        // Both ends of the range begin with the same frontend; we keep it once.
        Some(end) => {
            let (_, last) = end.split_at_checked(end.len().checked_sub(address_length(family))?)?;
            Key::from_wire(&[element.key, last].concat())?
        }
        None => Key::from_wire(element.key)?,
    };
    let data = match (set.data(), element.data) {
        ([], None) => None,
        ([Type::Address, Type::Port], Some(_)) => {
            let (ip, port) = endpoint(element, family)?;
            Some(Data::Endpoint(ip, port))
        }
        ([Type::Number, ..], Some(FoundDatum::Value(bytes))) => Some(Data::Sticky(Sticky::from_wire(bytes)?)),
        ([Type::Verdict], Some(FoundDatum::Verdict(Verdict::Goto(chain)))) => {
            let seconds = Bank::BOTH
                .into_iter()
                .find_map(|bank| bank.learner_seconds(chain).filter(|_| set == Set::Timeouts(bank)));
            Some(Data::Learn(seconds?))
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
