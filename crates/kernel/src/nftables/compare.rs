//! What the table holds otherwise than it should: read by a connection of its own, whoever owns the table.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use model::address::Family;
use model::names::{Port, ServicePortName};
use netlink::nftables::{Connection, FoundChain, FoundRule, FoundSet};
use plan::nftables::desired::{Changed, DesiredTable, difference};
use plan::nftables::elements::{Frontend, Shared};
use plan::nftables::program::{Chain, Program, Settings};
use plan::nftables::sets::{Bank, Data, Element, Nature, Set, Sticky, Type, address, show_range};
use plan::nftables::steps::{Held, HeldTable, TableContent};

use super::TABLE;
use super::compile::{declare, fingerprint};
use super::read::{Reader, is_entered_as, of_set};
use crate::difference::{Class, Difference, Fact, Kind, Part};
use crate::wire_family;

/// The largest set that is listed to be compared: five seconds for the kernel. Of a larger one we ask for what should be
/// in it, and know of the rest only how much it is.
const LISTED: usize = 200_000;

/// How often it is looked again because something changed meanwhile.
const ATTEMPTS: usize = 5;

/// What the table of one family should hold.
#[derive(Debug)]
pub struct Wanted {
    desired: DesiredTable,
    /// Whether endpoints have the slots they should have. If not, they are content with those they have in the kernel.
    is_seated: bool,
}

impl From<DesiredTable> for Wanted {
    fn from(desired: DesiredTable) -> Self {
        Self { desired, is_seated: true }
    }
}

impl Wanted {
    /// What a table would be made to hold that is adopted by a process which has these routings from the start.
    pub fn new(
        settings: Settings,
        routings: Vec<Changed>,
        service_cidrs: Vec<IpNet>,
        node_port_ips: Vec<IpAddr>,
    ) -> Self {
        let mut desired = DesiredTable::new(settings);
        desired.accept(routings);
        desired.replace_service_cidrs(service_cidrs);
        desired.replace_node_port_ips(node_port_ips);
        Self { desired, is_seated: false }
    }
}

/// Whose table there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// This program's, of whatever version; otherwise the reference's, or somebody's.
    pub is_ours: bool,
    /// The addresses that serve node ports; none if all but loopback do.
    pub node_port_ips: Option<BTreeSet<IpAddr>>,
    /// Sets, chains, rules and elements, as far as the kernel tells how many.
    pub objects: usize,
}

/// What is in the kernel by the name of our table.
pub fn present(family: Family) -> io::Result<Option<Present>> {
    let mut connection = Connection::open()?;
    let mut reader = Reader { family, connection: &mut connection, listed: LISTED };
    if !reader.has_table()? {
        return Ok(None);
    }
    let sets = reader.sets()?;
    let has = |name: &str| sets.iter().any(|set| set.name == name);
    let is_ours = has(Set::Frontends(Bank::Addresses).name()) && has(Set::Endpoints(Bank::Addresses).name());
    // The reference has a set of that name, too, and elements of the same kind in it.
    let node_port_ips = has(Set::NodePortIps.name()).then(|| reader.node_port_ips()).transpose()?;
    let elements: u32 = sets.iter().filter_map(|set| set.count).sum();
    let family = wire_family(family);
    let rules = connection.chains(family, TABLE)?.len() + connection.rules(family, TABLE)?.len();
    Ok(Some(Present { is_ours, node_port_ips, objects: 1 + sets.len() + elements as usize + rules }))
}

/// A comparison of the kernel's table with the one that is wanted.
#[derive(Debug)]
pub struct Inspection {
    connection: Connection,
    wanted: Wanted,
    /// In order.
    elements: Vec<Element>,
}

impl Inspection {
    pub fn open(wanted: Wanted) -> io::Result<Self> {
        let elements = wanted.desired.elements();
        Ok(Self { connection: Connection::open()?, wanted, elements })
    }

    pub fn parts(&self) -> Vec<Part> {
        let compared = self.program().sets.into_iter().filter(|set| set.nature() != Nature::Learning);
        [Part::Program].into_iter().chain(compared.map(Part::Elements)).collect()
    }

    pub fn objects(&self) -> usize {
        let program = self.program();
        let rules: usize = program.chains.iter().map(|chain| chain.rules.len()).sum();
        let addresses = self.wanted.desired.node_port_ips().len();
        let cidrs = ranges(&self.wanted.desired.cidr_boundaries()).len();
        let elements = self.elements.len() + addresses + cidrs;
        1 + program.sets.len() + program.chains.len() + rules + elements
    }

    /// Everything, at one moment if the ruleset lets us.
    pub fn differences(&mut self) -> io::Result<Vec<Difference>> {
        let mut found = Vec::new();
        for _ in 0..ATTEMPTS {
            let generation = self.connection.generation()?.id;
            found = self.look()?;
            if found.is_empty() || self.connection.generation()?.id == generation {
                break;
            }
        }
        Ok(found)
    }

    fn look(&mut self) -> io::Result<Vec<Difference>> {
        if !self.wanted.is_seated {
            self.take_seats()?;
        }
        let sets = self.reader().sets()?;
        let mut all = Vec::new();
        for part in self.parts() {
            all.extend(match part {
                Part::Program => self.compare_program()?,
                Part::Elements(set) => self.compare_elements_among(&sets, set)?,
                Part::Table(_) => Vec::new(),
            });
        }
        Ok(all)
    }

    /// Endpoints sit where they do in the kernel and ids are those of the kernel, as when the table is adopted.
    fn take_seats(&mut self) -> io::Result<()> {
        let found = self.reader().sets()?;
        let mut content = TableContent::default();
        for set in self.program().sets {
            let elements = match set {
                Set::Endpoints(_) | Set::EndpointsInside(_) => &mut content.elements,
                Set::Sticky(_) => &mut content.ids,
                Set::ClusterIps
                | Set::ServiceCidrs
                | Set::NodePortIps
                | Set::Frontends(_)
                | Set::ExternalLocal(_)
                | Set::StickyEndpoints
                | Set::Affinity
                | Set::Timeouts(_)
                | Set::NoEndpoints(_)
                | Set::NoLocalEndpoints(_)
                | Set::Firewalled
                | Set::AllowedSources
                | Set::Hairpin => continue,
            };
            if let Some(found) = self.declared(set, &found) {
                elements.extend(self.held(set, found.count)?.0);
            }
        }
        content.elements.sort_unstable();
        self.wanted.desired.steps_from(&Held { generation: None, table: HeldTable::Ours(content) });
        self.elements = self.wanted.desired.elements();
        Ok(())
    }

    /// The rules, and the sets they need; not what the sets hold.
    pub fn compare_program(&mut self) -> io::Result<Vec<Difference>> {
        if !self.reader().has_table()? {
            let Program { chains, sets, .. } = self.program();
            let rules: usize = chains.iter().map(|chain| chain.rules.len()).sum();
            let (family, chains, sets) = (wire_family(self.family()), chains.len(), sets.len());
            let object = format!("table {family} {TABLE} ({chains} chains, {rules} rules, {sets} sets)");
            return Ok(vec![difference_of(Kind::Missing, Class::Table, object)]);
        }
        let sets = self.reader().sets()?;
        let program = self.program();
        let mut all = self.compare_sets(&program, &sets);
        let family = wire_family(self.family());
        let chains = self.connection.chains(family, TABLE)?;
        let mut rules: BTreeMap<String, Vec<FoundRule>> = BTreeMap::new();
        for rule in self.connection.rules(family, TABLE)? {
            rules.entry(rule.chain.clone()).or_default().push(rule);
        }
        let by_name: BTreeMap<&str, &FoundChain> = chains.iter().map(|chain| (&*chain.name, chain)).collect();
        for wanted in &program.chains {
            let object = || format!("chain {}", wanted.name);
            match by_name.get(&*wanted.name) {
                None => all.push(difference_of(Kind::Missing, Class::Chain, object())),
                Some(found) => {
                    if !is_entered_as(found, wanted) {
                        all.push(difference_of(Kind::Changed, Class::Chain, object()));
                    }
                    let found = rules.get(&*wanted.name).map(Vec::as_slice).unwrap_or_default();
                    all.extend(compare_rules(wanted, found, self.family()));
                }
            }
        }
        // More chains than ours do no harm, for nothing of ours leads to them; only those of timeouts that are out of use
        // have to go. But in a table that is not ours they tell whose it is, and go with it.
        let is_foreign = !all.is_empty();
        let is_learner = |name: &str| Bank::BOTH.iter().any(|bank| bank.learner_seconds(name).is_some());
        let wanted: BTreeSet<&str> = program.chains.iter().map(|chain| &*chain.name).collect();
        let more = chains.iter().map(|found| &*found.name);
        let more = more.filter(|name| !wanted.contains(name) && (is_foreign || is_learner(name)));
        all.extend(more.map(|name| difference_of(Kind::Surplus, Class::Chain, format!("chain {name}"))));
        self.name_learners(&mut all)?;
        Ok(all)
    }

    /// Says of chains that learn whose timeout it is.
    fn name_learners(&mut self, all: &mut [Difference]) -> io::Result<()> {
        let seconds = |difference: &Difference| {
            let name = difference.object.strip_prefix("chain ")?;
            Bank::BOTH.into_iter().find_map(|bank| Some((bank, bank.learner_seconds(name)?)))
        };
        if all.iter().all(|difference| seconds(difference).is_none()) {
            return Ok(());
        }
        let held = self.stickiness()?;
        let wanted = self.wanted.desired.shared_owners();
        for difference in all {
            let Some((bank, seconds)) = seconds(difference) else { continue };
            let wanted = wanted.get(&Shared::Timeout(bank, seconds).element()).copied();
            difference.service = wanted.or_else(|| by_timeout(&held, seconds)).cloned();
        }
        Ok(())
    }

    /// What the frontends of the kernel that have session affinity lead to, and whose they are.
    fn stickiness(&mut self) -> io::Result<Vec<(Sticky, ServicePortName)>> {
        let found = self.reader().sets()?;
        let mut all = Vec::new();
        for set in Bank::BOTH.map(Set::Sticky) {
            let Some(found) = self.declared(set, &found) else { continue };
            for element in self.held(set, found.count)?.0 {
                let owner = self.wanted.desired.owner_of(&element).cloned();
                if let (Some(Data::Sticky(sticky)), Some(owner)) = (element.data, owner) {
                    all.push((sticky, owner));
                }
            }
        }
        Ok(all)
    }

    fn compare_sets(&self, program: &Program, found: &[FoundSet]) -> Vec<Difference> {
        let mut all = Vec::new();
        for set in &program.sets {
            let kind = match found.iter().find(|found| found.name == set.name()) {
                None => Kind::Missing,
                Some(found) if !agrees(*set, self.family(), found) => Kind::Changed,
                Some(_) => continue,
            };
            let word = if set.data().is_empty() { "set" } else { "map" };
            all.push(difference_of(kind, Class::Set, format!("{word} {}", set.name())));
        }
        all
    }

    /// What one set holds. Clients that the kernel has learned are none of our business.
    pub fn compare_elements(&mut self, set: Set) -> io::Result<Vec<Difference>> {
        let sets = self.reader().sets()?;
        self.compare_elements_among(&sets, set)
    }

    fn compare_elements_among(&mut self, sets: &[FoundSet], set: Set) -> io::Result<Vec<Difference>> {
        let found = self.declared(set, sets);
        let family = self.family();
        if set == Set::ServiceCidrs {
            let wanted = ranges(&self.wanted.desired.cidr_boundaries());
            let held = match found {
                Some(_) => ranges(&self.reader().service_cidrs()?),
                None => BTreeSet::new(),
            };
            return Ok(by_text(set, &held, &wanted, |range| show_range(*range)));
        }
        if set == Set::NodePortIps {
            let wanted = self.wanted.desired.node_port_ips().iter().copied().collect();
            let held = match found {
                Some(_) => self.reader().node_port_ips()?,
                None => BTreeSet::new(),
            };
            return Ok(by_text(set, &held, &wanted, IpAddr::to_string));
        }
        if set.nature() == Nature::Learning {
            return Ok(Vec::new());
        }
        let (mut held, unknown) = match found {
            Some(found) => self.held(set, found.count)?,
            None => (Vec::new(), 0),
        };
        held.sort_unstable();
        let (surplus, missing) = difference(&held, self.wanted_in(set));
        let mut all: Vec<Difference> = Vec::new();
        let is_of_affinity = matches!(set, Set::StickyEndpoints | Set::Timeouts(_));
        let sticky = if is_of_affinity && !surplus.is_empty() { self.stickiness()? } else { Vec::new() };
        let plan = &self.wanted.desired;
        let differs = surplus.len() + missing.len() > 0;
        let is_shared = matches!(set, Set::ClusterIps | Set::Hairpin | Set::Timeouts(_));
        let shared = if is_shared && differs { plan.shared_owners() } else { HashMap::default() };
        let is_sticky = set == Set::StickyEndpoints;
        let mut ids = if is_sticky && differs { plan.id_owners() } else { HashMap::default() };
        for (sticky, owner) in &sticky {
            ids.entry(sticky.service_port()).or_insert(owner);
        }
        let owner = |element: &Element| {
            let by_id = element.service_port().and_then(|id| ids.get(&id)).copied();
            let by_timeout = || match element.data {
                Some(Data::Learn(seconds)) => by_timeout(&sticky, seconds),
                Some(Data::Endpoint(..) | Data::Sticky(_)) | None => None,
            };
            let by_frontend = || plan.owner_of(element);
            shared.get(element).copied().or(by_id).or_else(by_timeout).or_else(by_frontend).cloned()
        };
        for (kind, elements) in [(Kind::Surplus, surplus), (Kind::Missing, missing)] {
            all.extend(elements.iter().map(|element| Difference {
                kind,
                class: Class::Element,
                object: format!("element {} {{ {} }}", set.name(), element.show(family)),
                service: owner(element),
                fact: fact(element, family),
            }));
        }
        if unknown > 0 {
            let object = format!("{unknown} elements of {}", set.name());
            all.push(difference_of(Kind::Surplus, Class::Element, object));
        }
        Ok(all)
    }

    /// What a set of the kernel holds, and how many more that nobody wants.
    fn held(&mut self, set: Set, count: Option<u32>) -> io::Result<(Vec<Element>, usize)> {
        let count = count.map(|count| count as usize);
        let wanted = self.wanted_in(set).to_vec();
        if set.nature() == Nature::Ranges || count.unwrap_or(wanted.len()) <= LISTED {
            return Ok((self.reader().listed(set)?, 0));
        }
        let held = self.reader().among(set, &wanted)?;
        let unknown = count.map_or(0, |count| count.saturating_sub(held.len()));
        Ok((held, unknown))
    }

    fn wanted_in(&self, set: Set) -> &[Element] {
        of_set(&self.elements, set)
    }

    /// The set, if the kernel has it as we would make it.
    fn declared<'a>(&self, set: Set, found: &'a [FoundSet]) -> Option<&'a FoundSet> {
        found.iter().find(|found| found.name == set.name() && agrees(set, self.family(), found))
    }

    fn program(&self) -> Program {
        self.wanted.desired.program()
    }

    fn family(&self) -> Family {
        self.wanted.desired.settings().family
    }

    fn reader(&mut self) -> Reader<'_> {
        Reader {
            family: self.wanted.desired.settings().family,
            connection: &mut self.connection,
            listed: LISTED,
        }
    }
}

/// The first by name whose frontends have this timeout.
fn by_timeout(sticky: &[(Sticky, ServicePortName)], seconds: u32) -> Option<&ServicePortName> {
    sticky.iter().filter(|(sticky, _)| sticky.seconds == seconds).map(|(_, owner)| owner).min()
}

fn agrees(set: Set, family: Family, found: &FoundSet) -> bool {
    declare(set, family, |wanted| wanted.agrees_with(found))
}

/// Rules are known by what we wrote beside them; those of others have no such thing.
fn compare_rules(wanted: &Chain, found: &[FoundRule], family: Family) -> Vec<Difference> {
    let prints: Vec<Option<u64>> = wanted.rules.iter().map(|rule| Some(fingerprint(rule, family))).collect();
    let missing = wanted
        .rules
        .iter()
        .zip(&prints)
        .filter(|(_, print)| found.iter().all(|found| found.fingerprint != **print));
    let mut all: Vec<Difference> = missing
        .map(|(rule, _)| {
            let object = format!("rule {} {}", wanted.name, rule.show(family));
            difference_of(Kind::Missing, Class::Rule, object)
        })
        .collect();
    for rule in found.iter().filter(|found| !prints.contains(&found.fingerprint)) {
        let words: Vec<&str> = rule.expression_names().collect();
        let comment =
            rule.comment.as_ref().map(|comment| format!(" comment \"{comment}\"")).unwrap_or_default();
        let object = format!("rule {} handle {} ({}){comment}", wanted.name, rule.handle, words.join(" "));
        all.push(difference_of(Kind::Surplus, Class::Rule, object));
    }
    let held: Vec<Option<u64>> = found.iter().map(|found| found.fingerprint).collect();
    if all.is_empty() && held != prints {
        let object = format!("chain {}: its rules are in another order, or repeated", wanted.name);
        all.push(difference_of(Kind::Changed, Class::Chain, object));
    }
    all
}

fn by_text<T: Ord>(
    set: Set,
    held: &BTreeSet<T>,
    wanted: &BTreeSet<T>,
    show: impl Fn(&T) -> String,
) -> Vec<Difference> {
    let surplus = held.difference(wanted).map(|it| (Kind::Surplus, it));
    let missing = wanted.difference(held).map(|it| (Kind::Missing, it));
    let object = |it| format!("element {} {{ {} }}", set.name(), show(it));
    surplus.chain(missing).map(|(kind, it)| difference_of(kind, Class::Element, object(it))).collect()
}

/// The first and last addresses of the ranges with these [`boundaries`].
fn ranges(boundaries: &BTreeSet<(IpAddr, bool)>) -> BTreeSet<(IpAddr, IpAddr)> {
    let before = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_sub(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_sub(1).into()),
    };
    let last = |ip: IpAddr| match ip {
        IpAddr::V4(_) => IpAddr::V4(u32::MAX.into()),
        IpAddr::V6(_) => IpAddr::V6(u128::MAX.into()),
    };
    let mut ranges = BTreeSet::new();
    let mut begun: Option<IpAddr> = None;
    for (address, is_end) in boundaries {
        if let Some(first) = begun.take() {
            ranges.insert((first, before(*address)));
        }
        if !is_end {
            begun = Some(*address);
        }
    }
    ranges.extend(begun.map(|first| (first, last(first))));
    ranges
}

/// Of what an element does, as far as a user of the service would notice.
fn fact(element: &Element, family: Family) -> Option<Fact> {
    let frontend =
        |bank| Frontend::from_key(element.key.as_bytes(), bank, family).map(|(frontend, _)| frontend);
    match element.set {
        Set::Frontends(bank) => frontend(bank).map(Fact::Frontend),
        Set::Endpoints(bank) | Set::EndpointsInside(bank) => {
            let (ip, port) = element.endpoint()?;
            Some(Fact::Endpoint { at: Some(frontend(bank)?), ip, port })
        }
        Set::Sticky(bank) => {
            let Data::Sticky(sticky) = element.data? else { return None };
            Some(Fact::Affinity { at: Some(frontend(bank)?), to: None, seconds: sticky.seconds })
        }
        Set::NoEndpoints(bank) => frontend(bank).map(Fact::Refused),
        Set::NoLocalEndpoints(bank) => frontend(bank).map(Fact::Dropped),
        Set::AllowedSources => {
            let range = show_range(element.admitted(family)?);
            Some(Fact::Admitted { at: frontend(Bank::Addresses), range })
        }
        Set::Firewalled => frontend(Bank::Addresses).map(Fact::Restricted),
        Set::ExternalLocal(bank) => frontend(bank).map(|at| Fact::KeepsClients(Some(at))),
        Set::ClusterIps => address(element.key.as_bytes()).map(Fact::ClusterIp),
        Set::ServiceCidrs | Set::NodePortIps | Set::StickyEndpoints | Set::Affinity | Set::Timeouts(_) => {
            None
        }
        Set::Hairpin => {
            let (ip, rest) = element.key.as_bytes().split_at_checked(Type::Address.length(family))?;
            let (_, rest) = rest.split_at_checked(Type::Address.length(family))?;
            let &[_, _, _, _, high, low, ..] = rest else { return None };
            let port = Port::from_api(u16::from_be_bytes([high, low]).into())?;
            Some(Fact::Hairpin { ip: address(ip)?, port })
        }
    }
}

fn difference_of(kind: Kind, class: Class, object: String) -> Difference {
    Difference { kind, class, object, service: None, fact: None }
}
