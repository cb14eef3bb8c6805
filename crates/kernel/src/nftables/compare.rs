//! The table compared with the desired one: read by a connection of its own, so that it does not matter which process
//! owns the table.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use model::address::Family;
use netlink::nftables::{Connection, FoundChain, FoundRule, FoundSet};
use plan::difference::{Class, Difference, KernelObject, Kind};
use plan::nftables::desired::{Changed, DesiredTable, difference};
use plan::nftables::program::{Chain, Program, Settings};
use plan::nftables::sets::{Bank, Element, Key, Nature, Set};
use plan::nftables::steps::{Held, HeldTable, TableContent};
use plan::served::KernelComparison;

use super::TABLE;
use super::compile::{declare, fingerprint};
use super::read::{Reader, is_entered_as, of_set};
use crate::inspection::Part;
use crate::wire_family;

/// The largest set that is listed to be compared, which takes the kernel five seconds. Of a larger one only the desired
/// elements are looked up, and the others counted.
const MAX_LISTED: usize = 200_000;

/// How often everything is compared again because the ruleset changed meanwhile.
const ATTEMPTS: usize = 5;

/// What the table of one family should hold.
#[derive(Debug)]
pub struct TableSnapshot {
    table: DesiredTable,
    /// Whether `table` says which slots and ids there should be. If not, those of the kernel are right.
    has_slots: bool,
}

impl From<DesiredTable> for TableSnapshot {
    fn from(table: DesiredTable) -> Self {
        Self { table, has_slots: true }
    }
}

impl TableSnapshot {
    /// What the table should hold for a process that starts with these routings and adopts the table.
    pub fn new(
        settings: Settings,
        routings: Vec<Changed>,
        service_cidrs: Vec<IpNet>,
        node_port_ips: Vec<IpAddr>,
    ) -> Self {
        let mut table = DesiredTable::new(settings);
        table.accept(routings);
        table.replace_service_cidrs(service_cidrs);
        table.replace_node_port_ips(node_port_ips);
        Self { table, has_slots: false }
    }

    /// In order.
    fn elements(&self) -> Vec<Element> {
        let ips = self.table.node_port_ips().iter();
        let mut elements = self.table.elements();
        elements.extend(ips.map(|ip| Element::new(Set::NodePortIps, Key::EMPTY.address(*ip))));
        elements.extend(range_elements(&self.table.cidr_boundaries()));
        // They are nearly in order.
        elements.sort();
        elements
    }
}

/// Whose table there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentTable {
    /// Whether this program wrote it, in any version; otherwise upstream or a foreign writer did.
    pub is_ours: bool,
    /// The addresses that serve node ports; none if all but loopback do.
    pub node_port_ips: Option<BTreeSet<IpAddr>>,
    /// Sets, chains, rules and elements, as far as the kernel tells how many.
    pub objects: usize,
}

/// What is in the kernel by the name of our table.
pub fn present(family: Family) -> io::Result<Option<PresentTable>> {
    let mut connection = Connection::open()?;
    let mut reader = Reader { family, connection: &mut connection, listed: MAX_LISTED };
    if !reader.has_table()? {
        return Ok(None);
    }
    let sets = reader.sets()?;
    let has = |name: &str| sets.iter().any(|set| set.name == name);
    let is_ours = has(Set::Frontends(Bank::Addresses).name()) && has(Set::Endpoints(Bank::Addresses).name());
    // Upstream has a set of that name, too, with elements of the same kind.
    let node_port_ips = has(Set::NodePortIps.name()).then(|| reader.node_port_ips()).transpose()?;
    let elements: u32 = sets.iter().filter_map(|set| set.count).sum();
    let family = wire_family(family);
    let rules = connection.chains(family, TABLE)?.len() + connection.rules(family, TABLE)?.len();
    Ok(Some(PresentTable { is_ours, node_port_ips, objects: 1 + sets.len() + elements as usize + rules }))
}

/// A comparison of the kernel's table with the desired one.
#[derive(Debug)]
pub struct TableInspection {
    connection: Connection,
    desired: TableSnapshot,
    /// In order.
    elements: Vec<Element>,
}

impl TableInspection {
    pub fn open(desired: TableSnapshot) -> io::Result<Self> {
        let elements = desired.elements();
        Ok(Self { connection: Connection::open()?, desired, elements })
    }

    pub fn parts(&self) -> Vec<Part> {
        let compared = self.program().sets.into_iter().filter(|set| set.nature() != Nature::Learning);
        [Part::Program].into_iter().chain(compared.map(Part::Elements)).collect()
    }

    /// Compares everything, in one state of the ruleset if it does not keep changing.
    pub fn compare_all(&mut self) -> io::Result<KernelComparison> {
        let mut differences = Vec::new();
        for _ in 0..ATTEMPTS {
            let generation = self.connection.generation()?.id;
            differences = self.differences()?;
            if differences.is_empty() || self.connection.generation()?.id == generation {
                break;
            }
        }
        let Program { sets, chains, .. } = self.program();
        let rules: usize = chains.iter().map(|chain| chain.rules.len()).sum();
        let objects = 1 + sets.len() + chains.len() + rules + self.elements.len();
        let (table, elements) = (&self.desired.table, &self.elements);
        Ok(KernelComparison::of_elements(table, elements, differences, objects))
    }

    fn differences(&mut self) -> io::Result<Vec<Difference>> {
        if !self.desired.has_slots {
            self.adopt_slots()?;
        }
        let sets = self.reader().sets()?;
        let mut all = self.compare_program()?;
        for part in self.parts() {
            if let Part::Elements(set) = part {
                all.extend(self.compare_elements_of(set, self.declared(set, &sets))?);
            }
        }
        Ok(all)
    }

    /// Gives endpoints the slots and service ports the ids that they have in the kernel, as when the table is adopted.
    fn adopt_slots(&mut self) -> io::Result<()> {
        let found = self.reader().sets()?;
        let mut read = |sets: &[Set]| -> io::Result<Vec<Element>> {
            let mut elements = Vec::new();
            for set in sets {
                if let Some(found) = self.declared(*set, &found) {
                    elements.extend(self.held(*set, found.count)?.0);
                }
            }
            Ok(elements)
        };
        let ids = read(&Bank::BOTH.map(Set::Sticky))?;
        let slots = Bank::BOTH.map(|bank| [Set::Endpoints(bank), Set::EndpointsInside(bank)]);
        let mut elements = read(slots.as_flattened())?;
        elements.sort_unstable();
        let content = TableContent { elements, ids, ..TableContent::default() };
        self.desired.table.steps_from(&Held { generation: None, table: HeldTable::Ours(content) });
        self.elements = self.desired.elements();
        Ok(())
    }

    /// Compares the rules, and which sets there are; not what the sets hold.
    pub fn compare_program(&mut self) -> io::Result<Vec<Difference>> {
        let program = self.program();
        let family = wire_family(self.family());
        if !self.reader().has_table()? {
            let rules: usize = program.chains.iter().map(|chain| chain.rules.len()).sum();
            let (chains, sets) = (program.chains.len(), program.sets.len());
            let table = format!("table {family} {TABLE} ({chains} chains, {rules} rules, {sets} sets)");
            return Ok(vec![Difference::new(Kind::Missing, KernelObject::Other(Class::Table, table))]);
        }
        let sets = self.reader().sets()?;
        let mut all = self.compare_sets(&program, &sets);
        let chains = self.connection.chains(family, TABLE)?;
        let mut rules: BTreeMap<String, Vec<FoundRule>> = BTreeMap::new();
        for rule in self.connection.rules(family, TABLE)? {
            rules.entry(rule.chain.clone()).or_default().push(rule);
        }
        let by_name: BTreeMap<&str, &FoundChain> = chains.iter().map(|chain| (&*chain.name, chain)).collect();
        let chain = |kind, name: &str| Difference::new(kind, KernelObject::Chain(name.to_owned()));
        for desired in &program.chains {
            let Some(found) = by_name.get(&*desired.name) else {
                all.push(chain(Kind::Missing, &desired.name));
                continue;
            };
            if !is_entered_as(found, desired) {
                all.push(chain(Kind::Changed, &desired.name));
            }
            let found = rules.get(&*desired.name).map(Vec::as_slice).unwrap_or_default();
            all.extend(compare_rules(desired, found, self.family()));
        }
        // Further chains do no harm, for none of ours leads to them; only those of timeouts that are no longer in use have
        // to go. But those of a foreign table go with it, and show that it is foreign.
        let is_foreign = !all.is_empty();
        let is_learner = |name: &str| Bank::BOTH.iter().any(|bank| bank.learner_seconds(name).is_some());
        let desired: BTreeSet<&str> = program.chains.iter().map(|chain| &*chain.name).collect();
        let further = by_name.into_keys().filter(|name| !desired.contains(name));
        let unexpected = further.filter(|name| is_foreign || is_learner(name));
        all.extend(unexpected.map(|name| chain(Kind::Unexpected, name)));
        Ok(all)
    }

    fn compare_sets(&self, program: &Program, found: &[FoundSet]) -> Vec<Difference> {
        let mut all = Vec::new();
        for set in program.sets.iter().filter(|set| self.declared(**set, found).is_none()) {
            let exists = found.iter().any(|found| found.name == set.name());
            let kind = if exists { Kind::Changed } else { Kind::Missing };
            let noun = if set.data().is_empty() { "set" } else { "map" };
            let object = KernelObject::Other(Class::Set, format!("{noun} {}", set.name()));
            all.push(Difference::new(kind, object));
        }
        all
    }

    /// Compares what one set holds.
    pub fn compare_elements(&mut self, set: Set) -> io::Result<Vec<Difference>> {
        let sets = self.reader().sets()?;
        self.compare_elements_of(set, self.declared(set, &sets))
    }

    fn compare_elements_of(&mut self, set: Set, found: Option<&FoundSet>) -> io::Result<Vec<Difference>> {
        let (mut held, uncounted) = match found {
            Some(found) => self.held(set, found.count)?,
            None => (Vec::new(), 0),
        };
        held.sort_unstable();
        let (unexpected, missing) = difference(&held, of_set(&self.elements, set));
        let family = self.family();
        let of_kind = |kind, elements: Vec<Element>| {
            elements.into_iter().map(move |it| Difference::new(kind, KernelObject::Element(family, it)))
        };
        let mut all: Vec<Difference> =
            of_kind(Kind::Unexpected, unexpected).chain(of_kind(Kind::Missing, missing)).collect();
        if uncounted > 0 {
            let text = format!("{uncounted} elements of {}", set.name());
            all.push(Difference::new(Kind::Unexpected, KernelObject::Other(Class::Element, text)));
        }
        Ok(all)
    }

    /// What a set of the kernel holds, and how many more elements that are not desired.
    fn held(&mut self, set: Set, count: Option<u32>) -> io::Result<(Vec<Element>, usize)> {
        if set == Set::ServiceCidrs {
            return Ok((range_elements(&self.reader().service_cidrs()?), 0));
        }
        let count = count.map(|count| count as usize);
        let desired = of_set(&self.elements, set).to_vec();
        if set.nature() == Nature::Ranges || count.unwrap_or(desired.len()) <= MAX_LISTED {
            return Ok((self.reader().listed(set)?, 0));
        }
        let held = self.reader().among(set, &desired)?;
        let uncounted = count.map_or(0, |count| count.saturating_sub(held.len()));
        Ok((held, uncounted))
    }

    /// The set, if the kernel has it as we would make it.
    fn declared<'a>(&self, set: Set, found: &'a [FoundSet]) -> Option<&'a FoundSet> {
        let agrees = |found: &&FoundSet| declare(set, self.family(), |desired| desired.agrees_with(found));
        found.iter().find(|found| found.name == set.name()).filter(agrees)
    }

    fn program(&self) -> Program {
        self.desired.table.program()
    }

    fn family(&self) -> Family {
        self.desired.table.settings().family
    }

    fn reader(&mut self) -> Reader<'_> {
        Reader {
            family: self.desired.table.settings().family,
            connection: &mut self.connection,
            listed: MAX_LISTED,
        }
    }
}

/// Rules are known by the fingerprint that we write beside them; foreign rules have none.
fn compare_rules(desired: &Chain, found: &[FoundRule], family: Family) -> Vec<Difference> {
    let rule = |kind, text| Difference::new(kind, KernelObject::Other(Class::Rule, text));
    let prints: Vec<Option<u64>> = desired.rules.iter().map(|rule| Some(fingerprint(rule, family))).collect();
    let held: Vec<Option<u64>> = found.iter().map(|found| found.fingerprint).collect();
    let mut all = Vec::new();
    for (missing, _) in desired.rules.iter().zip(&prints).filter(|(_, print)| !held.contains(print)) {
        all.push(rule(Kind::Missing, format!("rule {} {}", desired.name, missing.show(family))));
    }
    for unexpected in found.iter().filter(|found| !prints.contains(&found.fingerprint)) {
        let expressions: Vec<&str> = unexpected.expression_names().collect();
        let comment = unexpected.comment.as_ref().map(|comment| format!(" comment \"{comment}\""));
        let (name, handle, expressions) = (&desired.name, unexpected.handle, expressions.join(" "));
        let text = format!("rule {name} handle {handle} ({expressions}){}", comment.unwrap_or_default());
        all.push(rule(Kind::Unexpected, text));
    }
    if all.is_empty() && held != prints {
        let text = format!("chain {}: its rules are in another order, or repeated", desired.name);
        all.push(Difference::new(Kind::Changed, KernelObject::Other(Class::Chain, text)));
    }
    all
}

/// The elements of [`Set::ServiceCidrs`] with these [`boundaries`].
fn range_elements(boundaries: &BTreeSet<(IpAddr, bool)>) -> Vec<Element> {
    let before = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_sub(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_sub(1).into()),
    };
    let last = |ip: IpAddr| match ip {
        IpAddr::V4(_) => IpAddr::V4(u32::MAX.into()),
        IpAddr::V6(_) => IpAddr::V6(u128::MAX.into()),
    };
    let element = |first: IpAddr, last: IpAddr| {
        Element::new(Set::ServiceCidrs, Key::EMPTY.address(first).address(last))
    };
    let mut ranges = Vec::new();
    let mut begun: Option<IpAddr> = None;
    for (address, is_end) in boundaries {
        if let Some(first) = begun.take() {
            ranges.push(element(first, before(*address)));
        }
        if !is_end {
            begun = Some(*address);
        }
    }
    ranges.extend(begun.map(|first| element(first, last(first))));
    ranges
}
