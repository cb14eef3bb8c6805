//! The packet matrix judged by the interpreters of rules, `plan::nftables::interpreter` and `plan::iptables::interpreter`: no root, no
//! packets, no waiting. Where a packet would draw an endpoint, or IPVS would choose one, every endpoint is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use model::address::Family;
use model::cluster::Cluster;
use model::names::{Port, Protocol};
use plan::iptables::desired::DesiredRules;
use plan::iptables::interpreter::Tables;
use plan::iptables::listing::Listing;
use plan::iptables::program::RuleSettings;
use plan::iptables::rules::EndpointComments;
use plan::ipvs::desired::{DesiredIpvs, DesiredServers, ServerSettings, usable_node_ips};
use plan::ipvs::servers::{PERSISTENT, VirtualAddress};
use plan::mark::Mark;
use plan::nftables::desired::DesiredTable;
use plan::nftables::desired_sets::DesiredSets;
use plan::nftables::interpreter::{AffinityChange, Sets, Slots, WeightedServers};
use plan::nftables::program::{Program, ProgramSettings};
use plan::nftables::sets::{Balancer, Data, Element, ElementKey, Set};
use plan::walk::{Packet, PacketContext, PacketVerdict, Path};

use super::{Case, Expected, Mode, Probe, Reached, Step};
use crate::feed::{cluster, replace};
use crate::options::Options;
use testkit::lab::ClientPlace;
use testkit::manifests::write;
use testkit::network::Network;

/// What the program is before the judge runs it: as it is, unless a test changes it.
pub type Mutation<'a> = &'a dyn Fn(Program) -> Program;

/// A rule by its chain and its position there.
pub type RuleAt = (String, usize);

/// What a judge found.
#[derive(Debug, Default)]
pub struct Verdicts {
    pub surprises: Vec<String>,
    /// The rules that matched any packet. Of the nftables mode only.
    pub matched: BTreeSet<RuleAt>,
}

/// Judges a case in all of its families.
pub fn judge(case: &Case, mode: Mode) -> Vec<String> {
    case.families
        .iter()
        .flat_map(|family| judge_in(case, *family, mode, &|program| program).surprises)
        .collect()
}

/// Judges a case in one family.
pub fn judge_in(case: &Case, family: Family, mode: Mode, mutation: Mutation<'_>) -> Verdicts {
    let mut node = Node::new(family, mode, &case.options, mutation);
    let mut verdicts = Verdicts::default();
    for (number, step) in case.steps.iter().enumerate() {
        match step {
            Step::Hold(objects) => node.hold(&write(objects, family)),
            Step::Pass(time) => node.now += *time,
            Step::Own(address) => node.addresses.push(address.ip(family)),
            Step::KeepMark(mark) => node.mark = Some(*mark),
            // No rule changes what becomes of a packet that conntrack knows, so that there is nothing to remember.
            Step::OpenFlow(..) => {}
            Step::Probe(probe) => {
                if let Err(why) = node.judge(probe, &mut verdicts.matched) {
                    verdicts.surprises.push(format!("{}, step {}: {why}", case.name, number + 1));
                }
            }
        }
    }
    verdicts
}

/// What the program of a case depends on.
pub fn settings(family: Family, options: &Options) -> ProgramSettings {
    ProgramSettings {
        family,
        balancer: Balancer::Slots,
        mark: Mark::from_bit(options.masquerade_bit).unwrap(),
        masquerade_all: options.masquerade_all,
        from_pod: options.from_pod(family),
        node_ports_everywhere: options.node_port_addresses(family).match_all(),
        can_hash: true,
    }
}

/// One family of a proxy on the node of the test network, without a kernel.
struct Node<'a> {
    mode: Mode,
    family: Family,
    options: &'a Options,
    addresses: Vec<IpAddr>,
    mark: Option<u32>,
    /// Since the case began.
    now: Duration,
    cluster: Cluster,
    table: DesiredTable,
    mutation: Mutation<'a>,
    program: Program,
    listings: [Listing; 2],
    affinity: Affinity,
    recent: Recent,
    templates: Templates,
}

/// Where clients of the nftables mode went before, and until when that counts.
type Affinity = BTreeMap<ElementKey, ((IpAddr, Port), Duration)>;

/// When clients of the iptables mode last went to an endpoint, by the name of its list.
type Recent = BTreeMap<(String, IpAddr), Duration>;

/// Where clients of IPVS went before through a virtual server, and until when that counts.
type Templates = BTreeMap<(VirtualAddress, IpAddr), (SocketAddr, Duration)>;

/// The kernel renews a template for this long while connections live.
const TEMPLATE_RENEWAL: Duration = Duration::from_secs(60);

/// What may become of a packet.
#[derive(Debug)]
struct Seen {
    probability: f64,
    verdict: PacketVerdict,
    endpoint: Option<SocketAddr>,
    is_masqueraded: bool,
    mark: u32,
    changes: Changes,
}

#[derive(Debug)]
enum Changes {
    Affinity(Vec<AffinityChange>),
    Recent(Vec<String>),
    /// Where the client goes from now on, if the virtual server is persistent, and for how long.
    Template(Option<(VirtualAddress, SocketAddr, Duration)>),
}

impl Seen {
    fn new<Rule, Change>(path: &Path<'_, Rule, Change>, changes: Changes) -> Self {
        let Path { probability, verdict, endpoint, is_masqueraded, mark, .. } = *path;
        Self { probability, verdict, endpoint, is_masqueraded, mark, changes }
    }

    fn is_remembered(&self) -> bool {
        match &self.changes {
            Changes::Affinity(changes) => !changes.is_empty(),
            Changes::Recent(lists) => !lists.is_empty(),
            Changes::Template(template) => template.is_some(),
        }
    }
}

impl<'a> Node<'a> {
    fn new(family: Family, mode: Mode, options: &'a Options, mutation: Mutation<'a>) -> Self {
        let mut cluster = cluster(family);
        replace(&mut cluster, "");
        let balancer = if mode == Mode::Ipvs { Balancer::Ipvs } else { Balancer::Slots };
        let settings = ProgramSettings { balancer, ..settings(family, options) };
        let mut node = Self {
            mode,
            family,
            options,
            addresses: Network::node_ips(family).into(),
            mark: None,
            now: Duration::ZERO,
            cluster,
            program: mutation(Program::new(&settings, &BTreeSet::new())),
            table: DesiredTable::new(settings),
            mutation,
            listings: Default::default(),
            affinity: Affinity::new(),
            recent: Recent::new(),
            templates: Templates::new(),
        };
        node.sync();
        node
    }

    fn hold(&mut self, manifests: &str) {
        replace(&mut self.cluster, manifests);
        self.sync();
    }

    fn sync(&mut self) {
        let changes = self.cluster.take_changes();
        match self.mode {
            Mode::Nftables => {
                let node_ports = self.options.node_port_addresses(self.family);
                self.table.accept(changes.routings);
                self.table.replace_service_cidrs(self.cluster.service_cidrs());
                self.table.replace_node_port_ips(node_ports.among(&self.addresses));
                self.program = (self.mutation)(self.table.program());
            }
            Mode::Ipvs => {
                let node_ports = self.options.node_port_addresses(self.family).among(&self.addresses);
                self.table.accept(changes.routings);
                self.table.replace_node_port_ips(usable_node_ips(&node_ports, self.family).collect());
                self.table.replace_node_ips(usable_node_ips(&self.addresses, self.family).collect());
                self.program = (self.mutation)(self.table.program());
            }
            Mode::Iptables => {
                self.listings = self.desired_rules().tables();
                // A list goes with the last rule that names it.
                let [_, nat] = &self.listings;
                self.recent.retain(|(list, _), _| nat.0.contains_key(list));
            }
        }
    }

    fn desired_rules(&self) -> DesiredRules {
        let settings = RuleSettings {
            family: self.family,
            mark: Mark::from_bit(self.options.masquerade_bit).unwrap(),
            masquerade_all: self.options.masquerade_all,
            from_pod: self.options.from_pod(self.family),
            localhost_node_ports: true,
            node_port_addresses: self.options.node_port_addresses(self.family),
            abilities: Default::default(),
        };
        let (node_port_ips, _) = settings.node_port_ips(&self.addresses);
        let routings = self.cluster.routings().into_iter();
        DesiredRules {
            tail: settings.tail(&node_port_ips),
            services: routings
                .map(|(name, routing)| (name.clone(), routing.clone(), EndpointComments::Written))
                .collect(),
            stale: BTreeSet::new(),
            settings,
        }
    }

    /// Runs the rules over a packet.
    fn run(&self, context: &PacketContext<'_>, matched: &mut BTreeSet<RuleAt>) -> Vec<Seen> {
        match self.mode {
            Mode::Nftables => {
                let desired = DesiredSets::new(&self.table);
                let mut sets = Remembering { desired, affinity: &self.affinity, now: self.now };
                let Ok(walk) = plan::nftables::interpreter::run(&self.program, context, &mut sets);
                assert_eq!(walk.not_understood, [""; 0]);
                for rule in walk.paths.iter().flat_map(|path| &path.rules) {
                    matched.insert((rule.chain.to_owned(), rule.number));
                }
                let seen = |path: &Path<'_, _, AffinityChange>| {
                    Seen::new(path, Changes::Affinity(path.changes.clone()))
                };
                walk.paths.iter().map(seen).collect()
            }
            Mode::Ipvs => {
                let at = virtual_address(context.packet);
                let template = at.and_then(|at| self.templates.get(&(at, context.packet.source)));
                let seconds = at.and_then(|at| self.persistence(&at));
                let lasts = template.filter(|(_, until)| seconds.is_some() && self.now < *until);
                let stuck = lasts.map(|(to, _)| *to);
                let mut sets = Persisting { desired: DesiredIpvs::new(&self.table), stuck };
                let Ok(walk) = plan::nftables::interpreter::run(&self.program, context, &mut sets);
                assert_eq!(walk.not_understood, [""; 0]);
                for rule in walk.paths.iter().flat_map(|path| &path.rules) {
                    matched.insert((rule.chain.to_owned(), rule.number));
                }
                let template = |path: &Path<'_, _, AffinityChange>| {
                    let (at, to, seconds) = (at?, path.endpoint?, seconds?);
                    Some((at, to, Duration::from_secs(seconds.into()).max(TEMPLATE_RENEWAL)))
                };
                walk.paths.iter().map(|path| Seen::new(path, Changes::Template(template(path)))).collect()
            }
            Mode::Iptables => {
                let tables = Tables::desired(&self.listings);
                let remembers = |list: &str, ip: IpAddr, seconds: u32| {
                    let seen = self.recent.get(&(list.to_owned(), ip));
                    seen.is_some_and(|seen| self.now - *seen < Duration::from_secs(seconds.into()))
                };
                let walk = plan::iptables::interpreter::run(&tables, context, &remembers);
                assert_eq!(walk.not_understood, [""; 0]);
                let seen = |path: &plan::iptables::interpreter::RulesPath<'_>| {
                    let lists = path.changes.iter().map(|recent| recent.list.to_owned());
                    Seen::new(path, Changes::Recent(lists.collect()))
                };
                walk.paths.iter().map(seen).collect()
            }
        }
    }

    /// Remembers what the kernel would of a packet that took this path.
    fn remember(&mut self, source: IpAddr, changes: &Changes) {
        let now = self.now;
        match changes {
            Changes::Affinity(changes) => {
                for change in changes {
                    match *change {
                        AffinityChange::Delete { key } => _ = self.affinity.remove(&key),
                        AffinityChange::Update { key, endpoint, seconds } => {
                            let until = now + Duration::from_secs(seconds.into());
                            self.affinity.insert(key, (endpoint, until));
                        }
                    }
                }
            }
            Changes::Recent(lists) => {
                self.recent.extend(lists.iter().map(|list| ((list.clone(), source), now)));
            }
            Changes::Template(template) => {
                let template = template.map(|(at, to, lasts)| ((at, source), (to, now + lasts)));
                self.templates.extend(template);
            }
        }
    }

    /// The seconds of session affinity of a virtual server.
    fn persistence(&self, at: &VirtualAddress) -> Option<u32> {
        let settings = ServerSettings::new("rr", Vec::new());
        let found = DesiredServers { table: &self.table, settings: &settings }.at(at)?.server;
        (found.flags & PERSISTENT != 0).then_some(found.timeout)
    }

    fn judge(&mut self, probe: &Probe, matched: &mut BTreeSet<RuleAt>) -> Result<(), String> {
        let expected = probe.expected.in_mode(self.mode);
        let to = SocketAddr::new(probe.to.address.ip(self.family), probe.to.port);
        let surprise = |source: IpAddr, why: &str, seen: &[Seen]| {
            Err(format!("{source} to {to}/{}: {why}; expected {expected}, got {seen:?}", probe.protocol))
        };
        // One of a crowd asks once, others until they come to where they came before.
        let attempts = 4;
        let (mut reached, mut stuck) = (BTreeSet::new(), None);
        for attempt in 0..attempts {
            let source = probe.from.ip(self.family, attempt, to.ip());
            let packet = Packet {
                source,
                source_port: None,
                protocol: probe.protocol,
                destination: to,
                interface: probe.from.interface().map(Into::into),
            };
            let addresses = self.addresses.clone();
            let context = PacketContext {
                mark: self.mark.unwrap_or_default(),
                has_entry: probe.in_flow,
                ..PacketContext::new(&packet, &addresses)
            };
            let seen = self.run(&context, matched);
            let total: f64 = seen.iter().map(|seen| seen.probability).sum();
            if (total - 1.0).abs() > 1e-6 {
                return surprise(source, "probabilities do not add up", &seen);
            }
            let share = 1.0 / seen.len() as f64;
            // Not all endpoints can have the same number of the slots that clients are hashed to.
            if seen.iter().any(|seen| (seen.probability - share).abs() > 1e-4) {
                return surprise(source, "one is more likely than another", &seen);
            }
            if let Some(why) = seen.iter().find_map(|seen| self.surprise(seen, expected, &context)) {
                return surprise(source, why, &seen);
            }
            reached.extend(seen.iter().filter_map(|seen| seen.endpoint));
            if let (Expected::Sticks(_), Some(stuck)) = (expected, stuck)
                && seen.iter().any(|seen| seen.endpoint != stuck)
            {
                return surprise(source, "it did not stick", &seen);
            }
            // Another one each time, so that nothing depends on which.
            let chosen = seen.get(attempt % seen.len());
            stuck = chosen.map(|seen| seen.endpoint);
            if let Some(chosen) = chosen {
                self.remember(source, &chosen.changes);
            }
            let is_different = probe.from == ClientPlace::Crowd || seen.iter().any(Seen::is_remembered);
            if !is_different {
                break;
            }
        }
        if let Expected::Reaches(endpoints) = expected
            && !endpoints.iter().all(|one| reached.contains(&one.address(self.family)))
        {
            return Err(format!(
                "{to}/{}: an endpoint is never reached of {expected}: {reached:?}",
                probe.protocol
            ));
        }
        Ok(())
    }

    fn surprise(
        &self,
        seen: &Seen,
        expected: &Expected,
        context: &PacketContext<'_>,
    ) -> Option<&'static str> {
        let is_here = |ip: IpAddr| self.addresses.contains(&ip) || ip.is_loopback();
        let destination = seen.endpoint.unwrap_or(context.packet.destination);
        let is_among = |endpoints: &[Reached]| {
            endpoints.iter().any(|reached| {
                Some(reached.address(self.family)) == seen.endpoint
                    && reached.masqueraded == seen.is_masqueraded
            })
        };
        let accepted = seen.verdict == PacketVerdict::Accept;
        let leaves = context.is_from_node() || !is_here(destination.ip());
        if let Some(mark) = self.mark
            && accepted
            && leaves
            && seen.mark != mark
        {
            return Some("another mark");
        }
        let untouched = accepted && seen.endpoint.is_none() && !seen.is_masqueraded;
        let is_so = match expected {
            Expected::Reaches(endpoints) | Expected::Sticks(endpoints) => accepted && is_among(endpoints),
            Expected::Refused => seen.verdict == PacketVerdict::Reject,
            Expected::Silence => seen.verdict == PacketVerdict::Drop,
            Expected::Strays => untouched && !is_here(destination.ip()),
            Expected::Untouched => untouched && is_here(destination.ip()),
            Expected::Differs(..) | Expected::DiffersInIpvs(..) => false,
        };
        (!is_so).then_some("another result")
    }
}

/// What should be in the sets, and what packets have put there.
struct Remembering<'a> {
    desired: DesiredSets<'a>,
    affinity: &'a Affinity,
    now: Duration,
}

impl Sets for Remembering<'_> {
    type Error = Infallible;

    fn find(&mut self, set: Set, key: ElementKey) -> Result<Option<Element>, Infallible> {
        if set != Set::Affinity {
            return self.desired.find(set, key);
        }
        let known = self.affinity.get(&key).filter(|(_, until)| self.now < *until);
        Ok(known.map(|((ip, port), _)| Element { set, key, data: Some(Data::Endpoint(*ip, *port)) }))
    }

    fn slots(&mut self, list: u32) -> Result<Slots, Infallible> {
        self.desired.slots(list)
    }
}

/// What should be in the sets and virtual servers, and where IPVS remembers the client to have gone.
struct Persisting<'a> {
    desired: DesiredIpvs<'a>,
    stuck: Option<SocketAddr>,
}

impl Sets for Persisting<'_> {
    type Error = Infallible;

    fn find(&mut self, set: Set, key: ElementKey) -> Result<Option<Element>, Infallible> {
        self.desired.find(set, key)
    }

    fn slots(&mut self, list: u32) -> Result<Slots, Infallible> {
        self.desired.slots(list)
    }

    fn real_servers(
        &mut self,
        protocol: Protocol,
        destination: SocketAddr,
    ) -> Result<Option<WeightedServers>, Infallible> {
        let Ok(found) = self.desired.real_servers(protocol, destination);
        let stuck = self
            .stuck
            .filter(|to| found.as_ref().is_some_and(|found| found.iter().any(|(its, _)| its == to)));
        Ok(stuck.map_or(found, |to| Some([(to, 1)].into())))
    }
}

fn virtual_address(packet: &Packet) -> Option<VirtualAddress> {
    let Packet { protocol, destination, .. } = *packet;
    let port = Port::from_api(destination.port().into())?;
    Some(VirtualAddress { ip: destination.ip(), protocol, port })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::cases;

    fn check(mode: Mode, cases: &[Case]) {
        let begin = Instant::now();
        let surprises: Vec<String> = cases.iter().flat_map(|case| judge(case, mode)).collect();
        let probes: usize = cases.iter().map(Case::probes).sum();
        println!("{} cases, {probes} probes, {:?}", cases.len(), begin.elapsed());
        assert!(surprises.is_empty(), "{} surprises:\n{}", surprises.len(), surprises.join("\n"));
    }

    #[test]
    fn the_nftables_program_passes_the_matrix() {
        check(Mode::Nftables, &cases::of(Mode::Nftables));
    }

    #[test]
    fn the_program_around_ipvs_passes_the_matrix() {
        check(Mode::Ipvs, &cases::of(Mode::Ipvs));
    }

    #[test]
    fn the_iptables_rules_pass_the_matrix() {
        check(Mode::Iptables, &cases::of(Mode::Iptables));
    }
}
