//! Compares the table with the desired one over a socket of its own, whichever process owns the table.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use model::address::Family;
use netlink::nftables::{FoundChain, FoundRule, FoundSet, NftablesSocket};
use plan::difference::{Class, Difference, DifferenceKind, KernelObject};
use plan::nftables::desired::{DesiredTable, RoutingChange, difference};
use plan::nftables::program::{Program, ProgramChain, ProgramSettings};
use plan::nftables::sets::{Clients, Element, ElementKey, LookupBy, Set, SetKind};
use plan::nftables::steps::{ActualState, ActualTable, TableContent};
use plan::served::KernelComparison;

use super::TABLE;
use super::compile::{declare, fingerprint};
use super::read::{Reader, has_hook_of, of_set};
use crate::inspection::Part;
use crate::wire_family;

/// The largest set that is listed as a whole. Listing it takes the kernel five seconds. Of a larger set only the desired
/// elements are looked up, and the others are counted.
const MAX_LISTED: usize = 200_000;

/// How often everything is compared while the ruleset keeps changing.
const MAX_ATTEMPTS: usize = 5;

/// What the table of one family should hold.
#[derive(Debug)]
pub struct TableSnapshot {
    table: DesiredTable,
    /// Whether slots and ids are part of the desired state. If not, those that the kernel holds are correct.
    has_slots: bool,
}

impl From<DesiredTable> for TableSnapshot {
    fn from(table: DesiredTable) -> Self {
        Self { table, has_slots: true }
    }
}

impl TableSnapshot {
    /// The desired state of a process that starts with these routings and adopts the table.
    pub fn new(
        settings: ProgramSettings,
        routings: Vec<RoutingChange>,
        service_cidrs: Vec<IpNet>,
        node_port_ips: Vec<IpAddr>,
    ) -> Self {
        let mut table = DesiredTable::new(settings);
        table.accept(routings);
        table.replace_service_cidrs(service_cidrs);
        table.replace_node_port_ips(node_port_ips);
        Self { table, has_slots: false }
    }

    /// Replaces all addresses of the node, which only the ipvs mode depends on.
    pub fn replace_node_ips(&mut self, ips: BTreeSet<IpAddr>) {
        self.table.replace_node_ips(ips);
    }

    pub fn desired(&self) -> &DesiredTable {
        &self.table
    }

    /// All desired elements, sorted.
    fn elements(&self) -> Vec<Element> {
        let ips = self.table.node_port_ips().iter();
        let mut elements = self.table.elements();
        elements.extend(ips.map(|ip| Element::new(Set::NodePortIps, ElementKey::EMPTY.address(*ip))));
        elements.extend(range_elements(&self.table.cidr_boundaries()));
        // Stable, because it is fast on elements that are nearly sorted.
        elements.sort();
        elements
    }
}

/// The table that has our name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentTable {
    /// Whether a version of this program wrote it, rather than upstream or a foreign writer.
    pub is_ours: bool,
    /// The addresses that serve node ports. `None` if all but loopback addresses do.
    pub node_port_ips: Option<BTreeSet<IpAddr>>,
    /// The number of sets, chains and rules, and of elements where the kernel reports it.
    pub objects: usize,
}

/// The table in the kernel that has our name, if there is one.
pub fn present(family: Family) -> io::Result<Option<PresentTable>> {
    let mut socket = NftablesSocket::open()?;
    let mut reader = Reader { family, socket: &mut socket, max_listed: MAX_LISTED };
    if !reader.has_table()? {
        return Ok(None);
    }
    let sets = reader.sets()?;
    let has = |name: &str| sets.iter().any(|set| set.name == name);
    let of_either_mode = has(Set::Endpoints.name()) || has(Set::BoundIps.name());
    let is_ours = has(Set::Frontends(LookupBy::Address).name()) && of_either_mode;
    // Upstream's set of the same name has elements of the same type.
    let node_port_ips = has(Set::NodePortIps.name()).then(|| reader.node_port_ips()).transpose()?;
    let elements: u32 = sets.iter().filter_map(|set| set.count).sum();
    let family = wire_family(family);
    let rules = socket.chains(family, TABLE)?.len() + socket.rules(family, TABLE)?.len();
    Ok(Some(PresentTable { is_ours, node_port_ips, objects: 1 + sets.len() + elements as usize + rules }))
}

/// A comparison of the kernel's table with the desired one.
#[derive(Debug)]
pub struct TableInspection {
    socket: NftablesSocket,
    desired: TableSnapshot,
    /// The desired elements, sorted.
    elements: Vec<Element>,
}

impl TableInspection {
    pub fn open(desired: TableSnapshot) -> io::Result<Self> {
        let elements = desired.elements();
        Ok(Self { socket: NftablesSocket::open()?, desired, elements })
    }

    pub fn parts(&self) -> Vec<Part> {
        let compared = self.program().sets.into_iter();
        let compared = compared.filter(|set| !matches!(set.kind(), SetKind::Dynamic | SetKind::Fixed));
        [Part::Program].into_iter().chain(compared.map(Part::Elements)).collect()
    }

    /// Compares everything.
    pub fn compare_all(&mut self) -> io::Result<KernelComparison> {
        let (differences, objects) = (self.stable_differences()?, self.objects());
        Ok(KernelComparison::of_elements(self.desired(), &self.elements, differences, objects))
    }

    pub fn desired(&self) -> &DesiredTable {
        &self.desired.table
    }

    /// The desired elements, sorted.
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// The number of desired objects.
    pub fn objects(&self) -> usize {
        let Program { sets, verdicts, chains, .. } = self.program();
        let rules: usize = chains.iter().map(|chain| chain.rules.len()).sum();
        1 + sets.len() + verdicts.len() + chains.len() + rules + self.elements.len()
    }

    /// The differences of everything, within one generation of the ruleset unless it keeps changing.
    pub fn stable_differences(&mut self) -> io::Result<Vec<Difference>> {
        let mut differences = Vec::new();
        for _ in 0..MAX_ATTEMPTS {
            let generation = self.socket.generation()?.id;
            differences = self.differences()?;
            if differences.is_empty() || self.socket.generation()?.id == generation {
                break;
            }
        }
        Ok(differences)
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

    /// Assigns to endpoints the slots and to service ports the ids that they have in the kernel, as adopting the table does.
    fn adopt_slots(&mut self) -> io::Result<()> {
        let found = self.reader().sets()?;
        let mut read = |sets: &[Set]| -> io::Result<Vec<Element>> {
            let mut elements = Vec::new();
            for set in sets {
                if let Some(found) = self.declared(*set, &found) {
                    elements.extend(self.actual(*set, found.count)?.0);
                }
            }
            Ok(elements)
        };
        let lists = LookupBy::BOTH.map(|by| Clients::BOTH.map(|clients| Set::Lists(by, clients)));
        let ids = read(lists.as_flattened())?;
        let mut elements = read(&[Set::Endpoints])?;
        elements.sort_unstable();
        let content = TableContent { elements, ids, ..TableContent::default() };
        self.desired.table.steps_from(&ActualState { generation: None, table: ActualTable::Ours(content) });
        self.elements = self.desired.elements();
        Ok(())
    }

    /// Compares one part; a part of another mode never differs.
    pub fn compare(&mut self, part: Part) -> io::Result<Vec<Difference>> {
        match part {
            Part::Program => self.compare_program(),
            Part::Elements(set) => self.compare_elements(set),
            Part::Table(_) | Part::Servers => Ok(Vec::new()),
        }
    }

    /// Compares chains, rules, and the declarations of sets, but not the elements of sets.
    pub fn compare_program(&mut self) -> io::Result<Vec<Difference>> {
        let program = self.program();
        let family = wire_family(self.family());
        if !self.reader().has_table()? {
            let rules: usize = program.chains.iter().map(|chain| chain.rules.len()).sum();
            let (chains, sets) = (program.chains.len(), program.sets.len());
            let table = format!("table {family} {TABLE} ({chains} chains, {rules} rules, {sets} sets)");
            return Ok(vec![Difference::new(
                DifferenceKind::Missing,
                KernelObject::Other(Class::Table, table),
            )]);
        }
        let sets = self.reader().sets()?;
        let mut all = self.compare_sets(&program, &sets);
        if all.is_empty() {
            let mut found = self.reader().verdicts(&program)?;
            found.sort_unstable();
            all.extend(element_differences(&found, &program.verdicts, self.family()));
        }
        let chains = self.socket.chains(family, TABLE)?;
        let mut rules: BTreeMap<String, Vec<FoundRule>> = BTreeMap::new();
        for rule in self.socket.rules(family, TABLE)? {
            rules.entry(rule.chain.clone()).or_default().push(rule);
        }
        let by_name: BTreeMap<&str, &FoundChain> = chains.iter().map(|chain| (&*chain.name, chain)).collect();
        let chain = |kind, name: &str| Difference::new(kind, KernelObject::Chain(name.to_owned()));
        for desired in &program.chains {
            let Some(found) = by_name.get(&*desired.name) else {
                all.push(chain(DifferenceKind::Missing, &desired.name));
                continue;
            };
            if !has_hook_of(found, desired) {
                all.push(chain(DifferenceKind::Changed, &desired.name));
            }
            let found = rules.get(&*desired.name).map(Vec::as_slice).unwrap_or_default();
            all.extend(compare_rules(desired, found, self.family()));
        }
        // Other chains have no effect, since none of ours leads to them, and stay. Only chains of unused timeouts are
        // unexpected. If the program differs, the table is replaced with all its chains, and they are listed, too.
        let differs = !all.is_empty();
        let is_affinity_chain =
            |name: &str| LookupBy::BOTH.iter().any(|by| by.affinity_chain_seconds(name).is_some());
        let desired: BTreeSet<&str> = program.chains.iter().map(|chain| &*chain.name).collect();
        let other = by_name.into_keys().filter(|name| !desired.contains(name));
        let unexpected = other.filter(|name| differs || is_affinity_chain(name));
        all.extend(unexpected.map(|name| chain(DifferenceKind::Unexpected, name)));
        Ok(all)
    }

    fn compare_sets(&self, program: &Program, found: &[FoundSet]) -> Vec<Difference> {
        let mut all = Vec::new();
        for set in program.sets.iter().filter(|set| self.declared(**set, found).is_none()) {
            let exists = found.iter().any(|found| found.name == set.name());
            let kind = if exists { DifferenceKind::Changed } else { DifferenceKind::Missing };
            let noun = if set.data().is_empty() { "set" } else { "map" };
            let object = KernelObject::Other(Class::Set, format!("{noun} {}", set.name()));
            all.push(Difference::new(kind, object));
        }
        all
    }

    /// Compares the elements of one set.
    pub fn compare_elements(&mut self, set: Set) -> io::Result<Vec<Difference>> {
        let sets = self.reader().sets()?;
        self.compare_elements_of(set, self.declared(set, &sets))
    }

    fn compare_elements_of(&mut self, set: Set, found: Option<&FoundSet>) -> io::Result<Vec<Difference>> {
        let (mut actual, unread) = match found {
            Some(found) => self.actual(set, found.count)?,
            None => (Vec::new(), 0),
        };
        actual.sort_unstable();
        let mut all = element_differences(&actual, of_set(&self.elements, set), self.family());
        if unread > 0 {
            let text = format!("{unread} elements of {}", set.name());
            all.push(Difference::new(DifferenceKind::Unexpected, KernelObject::Other(Class::Element, text)));
        }
        Ok(all)
    }

    /// The elements of a set, and how many more it has that were not read because they are not desired.
    fn actual(&mut self, set: Set, count: Option<u32>) -> io::Result<(Vec<Element>, usize)> {
        if set == Set::ServiceCidrs {
            return Ok((range_elements(&self.reader().service_cidrs()?), 0));
        }
        let count = count.map(|count| count as usize);
        let desired = of_set(&self.elements, set).to_vec();
        if set.kind() == SetKind::Ranges || count.unwrap_or(desired.len()) <= MAX_LISTED {
            return Ok((self.reader().listed(set)?, 0));
        }
        let actual = self.reader().look_up(set, &desired)?;
        let unread = count.map_or(0, |count| count.saturating_sub(actual.len()));
        Ok((actual, unread))
    }

    /// The set, if the kernel has it with our declaration.
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
            socket: &mut self.socket,
            max_listed: MAX_LISTED,
        }
    }
}

/// Both slices are sorted.
fn element_differences(actual: &[Element], desired: &[Element], family: Family) -> Vec<Difference> {
    let (unexpected, missing) = difference(actual, desired);
    let of_kind = |kind, elements: Vec<Element>| {
        elements.into_iter().map(move |it| Difference::new(kind, KernelObject::Element(family, it)))
    };
    of_kind(DifferenceKind::Unexpected, unexpected).chain(of_kind(DifferenceKind::Missing, missing)).collect()
}

/// Compares rules by the fingerprints that we store with them. Foreign rules have none.
fn compare_rules(desired: &ProgramChain, found: &[FoundRule], family: Family) -> Vec<Difference> {
    let rule = |kind, text| Difference::new(kind, KernelObject::Other(Class::Rule, text));
    let prints: Vec<Option<u64>> = desired.rules.iter().map(|rule| Some(fingerprint(rule, family))).collect();
    let actual: Vec<Option<u64>> = found.iter().map(|found| found.fingerprint).collect();
    let mut all = Vec::new();
    for (missing, _) in desired.rules.iter().zip(&prints).filter(|(_, print)| !actual.contains(print)) {
        all.push(rule(DifferenceKind::Missing, format!("rule {} {}", desired.name, missing.show(family))));
    }
    for unexpected in found.iter().filter(|found| !prints.contains(&found.fingerprint)) {
        let expressions: Vec<&str> = unexpected.expression_names().collect();
        let comment = unexpected.comment.as_ref().map(|comment| format!(" comment \"{comment}\""));
        let (name, handle, expressions) = (&desired.name, unexpected.handle, expressions.join(" "));
        let text = format!("rule {name} handle {handle} ({expressions}){}", comment.unwrap_or_default());
        all.push(rule(DifferenceKind::Unexpected, text));
    }
    if all.is_empty() && actual != prints {
        let text = format!("chain {}: its rules are in another order, or repeated", desired.name);
        all.push(Difference::new(DifferenceKind::Changed, KernelObject::Other(Class::Chain, text)));
    }
    all
}

/// The elements of [`Set::ServiceCidrs`] with these boundaries.
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
        Element::new(Set::ServiceCidrs, ElementKey::EMPTY.address(first).address(last))
    };
    let mut ranges = Vec::new();
    let mut start: Option<IpAddr> = None;
    for (address, is_end) in boundaries {
        if let Some(first) = start.take() {
            ranges.push(element(first, before(*address)));
        }
        if !is_end {
            start = Some(*address);
        }
    }
    ranges.extend(start.map(|first| element(first, last(first))));
    ranges
}
