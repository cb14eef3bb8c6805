//! The fixed program: the rules that the packets of new connections traverse, whatever Services exist.
//!
//! ```text
//!   prerouting, output  -110  firewall-check        load-balancer source ranges
//!   prerouting, output  -100  services ─┬▶ cluster-ip-N ─▶ draw-N
//!                                      ├▶ cluster-ip | external | external-local ─▶ pick | pick-inside ─▶ draw-N
//!                                      └▶ nodeport-external | nodeport-external-local ─▶ nodeport-pick ...
//!   input, forward, output 0  input-check | forward-check ─▶ nodeport-endpoints-check, service-endpoints-check, cluster-ips-check
//!   input, postrouting     0  learn ─▶ remember | nodeport-remember ─▶ learn-N   updates session affinity
//!   postrouting          100  masquerading
//! ```
//!
//! [`ProgramSettings`] holds what differs between nodes, and the sets hold what differs between Services. The only exception:
//! the kernel requires a timeout to be a constant of a rule, so each timeout of session affinity in use has two chains, `learn-N`
//! and `nodeport-learn-N`.
//!
//! This is the program of the nftables mode; `ipvs` has the smaller one of the ipvs mode.

mod ipvs;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use model::address::Family;
use model::hashing::ClientHash;
use model::local::FromPod;

use crate::mark::Mark;
use crate::nftables::frontend_chains::FrontendChain;
use crate::nftables::sets::{Balancer, Clients, Element, EndpointList, LookupBy, Set};
use crate::nftables::slots::{SlotRange, random_slots, slot_ranges};
use crate::nftables::statements::{
    Affinity, Interface, ListUse, PacketField, ProgramRule, Statement, frontend_fields,
};

/// What the program depends on, besides the timeouts in use. Constant while the proxy runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSettings {
    pub family: Family,
    pub balancer: Balancer,
    pub mark: Mark,
    pub masquerade_all: bool,
    /// How rules recognize traffic from pods; without it, some rules are left out.
    pub from_pod: Option<FromPod>,
    /// Whether every address of the node serves node ports, rather than those in [`Set::NodePortIps`].
    pub node_ports_everywhere: bool,
    /// Whether the kernel can hash clients. If not, no routing may ask for it.
    pub can_hash: bool,
}

impl ProgramSettings {
    /// Whether [`Set::NodePortIps`] exists. IPVS has a virtual server for each of its addresses.
    pub fn lists_node_port_ips(&self) -> bool {
        !self.node_ports_everywhere || self.balancer == Balancer::Ipvs
    }
}

/// A chain and its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramChain {
    pub name: Cow<'static, str>,
    pub hook: Option<ProgramHook>,
    pub rules: Vec<ProgramRule>,
}

/// The hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramHook {
    pub kind: HookKind,
    pub point: PacketHook,
    pub priority: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    Filter,
    Nat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketHook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

/// Every set and chain of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub family: Family,
    pub balancer: Balancer,
    pub sets: Vec<Set>,
    /// The elements of sets of kind [`SetKind::Fixed`], sorted.
    ///
    /// [`SetKind::Fixed`]: crate::nftables::sets::SetKind::Fixed
    pub verdicts: Vec<Element>,
    /// Ordered so that each chain comes after those it leads to.
    pub chains: Vec<ProgramChain>,
}

impl Program {
    /// `timeouts` are the seconds of session affinity that any service asks for. IPVS has its own affinity.
    pub fn new(settings: &ProgramSettings, timeouts: &BTreeSet<u32>) -> Self {
        let ProgramSettings { family, balancer, .. } = *settings;
        let mut sets = Set::fixed(balancer);
        sets.extend(settings.lists_node_port_ips().then_some(Set::NodePortIps));
        let chains = match balancer {
            Balancer::Slots => slot_chains(settings, timeouts),
            Balancer::Ipvs => ipvs::chains(settings),
        };
        let mut verdicts: Vec<Element> = match balancer {
            Balancer::Slots => FrontendChain::all(settings.can_hash).map(FrontendChain::element).collect(),
            Balancer::Ipvs => Vec::new(),
        };
        verdicts.sort_unstable();
        Self { family, balancer, sets, verdicts, chains }
    }
}

fn slot_chains(settings: &ProgramSettings, timeouts: &BTreeSet<u32>) -> Vec<ProgramChain> {
    let mut chains: Vec<ProgramChain> = Vec::new();
    chains.extend(translation(settings));
    chains.push(firewall_check("firewall-check", FRONTEND));
    chains.extend(checks(settings));
    chains.extend(timeouts.iter().flat_map(|seconds| affinity_chains(*seconds)));
    chains.extend(affinity_update(settings));
    let masqueraded = [Statement::StatusDnat, hairpin(), Statement::Masquerade];
    chains.push(masquerading(settings.mark, rule(masqueraded)));
    chains.extend(entries());
    chains
}

const FRONTEND: &[PacketField] = frontend_fields(LookupBy::Address, false);
const NODE_PORT: &[PacketField] = frontend_fields(LookupBy::NodePort, false);

/// The chains from a client's destination to an endpoint.
fn translation(settings: &ProgramSettings) -> Vec<ProgramChain> {
    let to_first = |by| Statement::List(by, Clients::All, ListUse::GotoFirst);
    let by_address =
        [Statement::In(FRONTEND.into(), Set::Frontends(LookupBy::Address)), to_first(LookupBy::Address)];
    let by_node_port =
        [Statement::In(NODE_PORT.into(), Set::Frontends(LookupBy::NodePort)), to_first(LookupBy::NodePort)];
    let by_node_port = at_node_port_address(settings, true).into_iter().chain(by_node_port);
    let services = vec![
        rule(by_address).because("the first chain that @lists has for the frontend"),
        rule(by_node_port).because("the first chain that @nodeport-lists has for the node port"),
    ];
    let mut chains = Vec::new();
    for (by, clients) in LookupBy::BOTH.into_iter().flat_map(|by| Clients::BOTH.map(|clients| (by, clients)))
    {
        chains.extend(slot_ranges().map(|range| draw(by, clients, range)));
        let hashes = ClientHash::BOTH.into_iter().filter(|_| settings.can_hash);
        chains.extend(hashes.map(|hash| hash_chain(by, clients, hash)));
        chains.push(pick(by, clients));
    }
    chains.extend(slot_ranges().map(|range| cluster_ip_with(range, settings)));
    chains.push(frontend_chain(FrontendChain::StickyClusterIp, cluster_ip(settings)));
    for by in LookupBy::BOTH {
        chains.push(frontend_chain(FrontendChain::External(by), vec![external(settings, by)]));
        chains.push(frontend_chain(FrontendChain::ExternalLocal(by), external_local(settings, by)));
    }
    chains.push(chain("services", services));
    chains
}

fn frontend_chain(chain: FrontendChain, rules: Vec<ProgramRule>) -> ProgramChain {
    ProgramChain { name: chain.name(), hook: None, rules }
}

/// Draws a slot at once. Should that fail, the endpoints have moved meanwhile to another slot range.
fn cluster_ip_with(range: SlotRange, settings: &ProgramSettings) -> ProgramChain {
    let draw = FrontendChain::Draw(LookupBy::Address, Clients::All, range);
    let mut rules: Vec<ProgramRule> = mark_cluster_ip_traffic(settings).into_iter().collect();
    rules.push(rule([Statement::Jump(draw.name())]));
    rules.push(rule([Statement::Goto("pick")]).because("should endpoints have moved meanwhile"));
    frontend_chain(FrontendChain::ClusterIp(range), rules)
}

fn cluster_ip(settings: &ProgramSettings) -> Vec<ProgramRule> {
    let mark = mark_cluster_ip_traffic(settings);
    mark.into_iter().chain([rule([Statement::Goto("pick")])]).collect()
}

fn mark_cluster_ip_traffic(settings: &ProgramSettings) -> Option<ProgramRule> {
    let mark = Statement::SetMark(settings.mark);
    if settings.masquerade_all {
        return Some(rule([mark]).because("masquerade all cluster IP traffic"));
    }
    let from_pod = settings.from_pod.as_ref()?;
    Some(rule([not(from_pod), mark]).because("masquerade cluster IP traffic from outside the cluster"))
}

fn external(settings: &ProgramSettings, by: LookupBy) -> ProgramRule {
    let pick = Statement::Goto(pick_name(by, Clients::All));
    rule([Statement::SetMark(settings.mark), pick]).because("masquerade external traffic")
}

/// Clients from outside keep their address, so only this node can serve them. Pods and the node itself get the endpoints of the
/// cluster IP.
fn external_local(settings: &ProgramSettings, by: LookupBy) -> Vec<ProgramRule> {
    let pick = |clients| Statement::Goto(pick_name(by, clients));
    let mut rules = Vec::new();
    if let Some(from_pod) = &settings.from_pod {
        rules.push(rule([is(from_pod), pick(Clients::Inside)]).because("short-circuit pod traffic"));
    }
    let from_node = Statement::IsLocal(PacketField::Source);
    rules.push(
        rule([from_node, Statement::SetMark(settings.mark), pick(Clients::Inside)])
            .because("short-circuit node traffic"),
    );
    rules.push(rule([pick(Clients::All)]));
    rules
}

/// The endpoint that the client used last, or else a random one. A commit may move the endpoints to another slot range while a
/// packet is between the lookups of the range and of a slot: a packet that finds no endpoint tries once more.
fn pick(by: LookupBy, clients: Clients) -> ProgramChain {
    let list = match clients {
        Clients::All => None,
        Clients::Inside => Some(EndpointList::Cluster),
    };
    let before = affinity(by, Affinity::Dnat(list))
        .because("where @affinity has the client, if @sticky has the frontend");
    let draw = || rule([Statement::List(by, clients, ListUse::JumpDraw)]);
    let first = draw().because("the chain that @lists has for the frontend");
    let again = draw().because("should endpoints have moved meanwhile");
    chain(pick_name(by, clients), vec![before, first, again])
}

fn pick_name(by: LookupBy, clients: Clients) -> &'static str {
    match (by, clients) {
        (LookupBy::Address, Clients::All) => "pick",
        (LookupBy::Address, Clients::Inside) => "pick-inside",
        (LookupBy::NodePort, Clients::All) => "nodeport-pick",
        (LookupBy::NodePort, Clients::Inside) => "nodeport-pick-inside",
    }
}

/// A random endpoint: see [`random_slots`].
fn draw(by: LookupBy, clients: Clients, range: SlotRange) -> ProgramChain {
    let rules = random_slots(range)
        .into_iter()
        .map(|random| rule([Statement::List(by, clients, ListUse::Dnat(random))]))
        .collect();
    frontend_chain(FrontendChain::Draw(by, clients, range), rules)
}

/// The endpoint in the slot that the client is hashed to.
fn hash_chain(by: LookupBy, clients: Clients, hash: ClientHash) -> ProgramChain {
    let rules = vec![rule([Statement::List(by, clients, ListUse::HashDnat(hash))])];
    frontend_chain(FrontendChain::Hash(by, clients, hash), rules)
}

/// Drops packets to a frontend, given by these fields, that its source ranges do not allow.
fn firewall_check(name: &'static str, frontend: &[PacketField]) -> ProgramChain {
    let allowed = [frontend, &[PacketField::Source]].concat();
    let firewalled = Statement::In(frontend.into(), Set::Firewalled);
    chain(name, vec![rule([firewalled, Statement::NotIn(allowed, Set::AllowedSources), Statement::Drop])])
}

/// The chains for packets without an endpoint.
fn checks(settings: &ProgramSettings) -> Vec<ProgramChain> {
    vec![
        no_endpoints("nodeport-no-endpoints", LookupBy::NodePort),
        chain(
            "nodeport-endpoints-check",
            vec![rule(at_node_port_address(settings, false).into_iter().chain([
                Statement::In(NODE_PORT.into(), Set::NoEndpoints(LookupBy::NodePort)),
                Statement::Goto("nodeport-no-endpoints"),
            ]))],
        ),
        no_endpoints("no-endpoints", LookupBy::Address),
        chain(
            "service-endpoints-check",
            vec![rule([
                Statement::In(FRONTEND.into(), Set::NoEndpoints(LookupBy::Address)),
                Statement::Goto("no-endpoints"),
            ])],
        ),
        chain(
            "cluster-ports-check",
            vec![
                // The conntrack entry is older than the rules and will be deleted, and the next packet is translated. An
                // endpoint may be at another Service's external address, but not at a cluster IP.
                rule([Statement::List(LookupBy::Address, Clients::All, ListUse::Has), Statement::Drop])
                    .because("Drop what was first sent before @lists had the frontend"),
                rule([Statement::Reject]).because("Reject traffic to invalid ports of ClusterIPs"),
            ],
        ),
        chain(
            "cluster-ips-check",
            vec![
                rule([
                    Statement::In(vec![PacketField::Destination], Set::ClusterIps),
                    Statement::Goto("cluster-ports-check"),
                ]),
                rule([Statement::In(vec![PacketField::Destination], Set::ServiceCidrs), Statement::Drop])
                    .because("Drop traffic to unallocated ClusterIPs"),
            ],
        ),
    ]
}

/// Packets to a frontend without endpoints. Most others need only one lookup to find that they have some.
fn no_endpoints(name: &'static str, by: LookupBy) -> ProgramChain {
    let no_local = Statement::In(frontend_fields(by, false).into(), Set::NoLocalEndpoints(by));
    chain(name, vec![rule([no_local, Statement::Drop]), rule([Statement::Reject])])
}

/// The chains that update [`Set::Affinity`]. After the translation and before masquerading, rules see both the client and the
/// endpoint.
fn affinity_update(settings: &ProgramSettings) -> Vec<ProgramChain> {
    let is_sticky = |by| Statement::Affinity(by, Affinity::Has);
    let chains_for = |by: LookupBy| {
        let [cluster, local, remember] = names(by);
        [
            forget(cluster, by, EndpointList::Cluster),
            forget(local, by, EndpointList::Local),
            chain(
                remember,
                vec![
                    rule([Statement::Jump(cluster.into())]),
                    rule([Statement::Jump(local.into())]),
                    affinity(by, Affinity::GotoUpdate).because("by the seconds that @sticky has"),
                ],
            ),
        ]
    };
    let [_, _, by_address] = names(LookupBy::Address);
    let [_, _, by_node_port] = names(LookupBy::NodePort);
    // A frontend without affinity may have the same port as another Service's node port. If all addresses serve node ports, an
    // external frontend of this kind is taken for the node port, which does no harm: a client is added only with an endpoint of
    // the Service that has the node port.
    let at_node = if settings.node_ports_everywhere {
        Statement::NotIn(vec![PacketField::OriginalDestination], Set::ClusterIps)
    } else {
        Statement::In(vec![PacketField::OriginalDestination], Set::NodePortIps)
    };
    let learn = chain(
        "learn",
        vec![
            rule([is_sticky(LookupBy::Address), Statement::Goto(by_address)])
                .because("if @sticky has the frontend"),
            rule([at_node, is_sticky(LookupBy::NodePort), Statement::Goto(by_node_port)])
                .because("if @nodeport-sticky has the node port"),
        ],
    );
    LookupBy::BOTH.into_iter().flat_map(chains_for).chain([learn]).collect()
}

/// The names of the chains that delete a client, one for each endpoint list, and of the one that updates it.
fn names(by: LookupBy) -> [&'static str; 3] {
    match by {
        LookupBy::Address => ["forget", "forget-local", "remember"],
        LookupBy::NodePort => ["nodeport-forget", "nodeport-forget-local", "nodeport-remember"],
    }
}

/// Deletes a client whose endpoint is gone, since an update of its element renews only the timeout.
fn forget(name: &'static str, by: LookupBy, list: EndpointList) -> ProgramChain {
    let is_valid = rule([Statement::Affinity(by, Affinity::IsValid(list)), Statement::Return])
        .because("if @sticky-endpoints has what @affinity has for the client");
    chain(name, vec![is_valid, affinity(by, Affinity::Delete(list))])
}

/// The chains that update [`Set::Affinity`] with a timeout. An endpoint may be on both lists of its service port; the client then
/// uses it again through frontends of either list.
pub fn affinity_chains(seconds: u32) -> [ProgramChain; 2] {
    LookupBy::BOTH.map(|by| ProgramChain {
        name: by.affinity_chain(seconds).into(),
        hook: None,
        rules: EndpointList::BOTH
            .map(|list| affinity(by, Affinity::Update(list, seconds)).because("if @sticky-endpoints has it"))
            .into(),
    })
}

fn affinity(by: LookupBy, what: Affinity) -> ProgramRule {
    rule([Statement::Affinity(by, what)])
}

fn masquerading(mark: Mark, hairpin: ProgramRule) -> ProgramChain {
    let marked = rule([Statement::Marked(mark), Statement::ClearMark(mark), Statement::Masquerade]);
    chain("masquerading", vec![marked, hairpin])
}

/// A connection of an endpoint to itself.
fn hairpin() -> Statement {
    let fields = vec![
        PacketField::Source,
        PacketField::Destination,
        PacketField::Protocol,
        PacketField::DestinationPort,
    ];
    Statement::In(fields, Set::Hairpin)
}

/// The base chains. Every packet enters those of filters, so that each of them has one rule, which most packets do not match; only
/// the first packet of a connection enters those of nat.
fn entries() -> Vec<ProgramChain> {
    use HookKind::{Filter, Nat};
    use PacketHook::{Forward, Input, Output, Postrouting, Prerouting};
    let learn = || vec![rule([Statement::StatusDnat, Statement::Jump("learn".into())])];
    let jump = |chain: &'static str| vec![rule([Statement::Jump(chain.into())])];
    vec![
        chain("input-check", checks_of(["nodeport-endpoints-check", "service-endpoints-check"])),
        chain("forward-check", checks_of(["service-endpoints-check", "cluster-ips-check"])),
        entry("filter-prerouting-pre-dnat", Filter, Prerouting, -110, vec![new("firewall-check")]),
        entry("filter-output-pre-dnat", Filter, Output, -110, vec![new("firewall-check")]),
        entry("filter-input", Filter, Input, 0, vec![new("input-check")]),
        entry("filter-forward", Filter, Forward, 0, vec![new("forward-check")]),
        entry("filter-output", Filter, Output, 0, vec![new("forward-check")]),
        entry("nat-prerouting", Nat, Prerouting, -100, jump("services")),
        entry("nat-output", Nat, Output, -100, jump("services")),
        // Before any chain that translates the source, since the kernel enters no other chain after that. Packets to an endpoint
        // at an address of the node never reach postrouting.
        entry("nat-input-learn", Nat, Input, 0, learn()),
        entry("nat-postrouting-learn", Nat, Postrouting, 0, learn()),
        entry("nat-postrouting", Nat, Postrouting, 100, jump("masquerading")),
    ]
}

fn checks_of(chains: [&'static str; 2]) -> Vec<ProgramRule> {
    chains.map(|chain| rule([Statement::Jump(chain.into())])).into()
}

fn entry(
    name: &'static str,
    kind: HookKind,
    point: PacketHook,
    priority: i32,
    rules: Vec<ProgramRule>,
) -> ProgramChain {
    ProgramChain { name: name.into(), hook: Some(ProgramHook { kind, point, priority }), rules }
}

fn new(check: &'static str) -> ProgramRule {
    rule([Statement::StateNew, Statement::Jump(check.into())])
}

/// Loopback addresses never serve node ports in this mode. Only before routing do rules need to match that the destination is an
/// address of the node.
fn at_node_port_address(settings: &ProgramSettings, before_routing: bool) -> Vec<Statement> {
    if !settings.node_ports_everywhere {
        return vec![Statement::In(vec![PacketField::Destination], Set::NodePortIps)];
    }
    let not_loopback = Statement::NotWithin(PacketField::Destination, loopback(settings.family));
    if before_routing {
        vec![Statement::IsLocal(PacketField::Destination), not_loopback]
    } else {
        vec![not_loopback]
    }
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
        Family::V6 => IpNet::new_assert(Ipv6Addr::LOCALHOST.into(), 128),
    }
}

fn is(from_pod: &FromPod) -> Statement {
    match from_pod {
        FromPod::Source(net) => Statement::Within(PacketField::Source, *net),
        FromPod::Interface(name) => Statement::FromInterface(Interface::Named(name.clone())),
        FromPod::InterfacePrefix(prefix) => Statement::FromInterface(Interface::Prefixed(prefix.clone())),
    }
}

fn not(from_pod: &FromPod) -> Statement {
    match from_pod {
        FromPod::Source(net) => Statement::NotWithin(PacketField::Source, *net),
        FromPod::Interface(name) => Statement::NotFromInterface(Interface::Named(name.clone())),
        FromPod::InterfacePrefix(prefix) => Statement::NotFromInterface(Interface::Prefixed(prefix.clone())),
    }
}

fn chain(name: &'static str, rules: Vec<ProgramRule>) -> ProgramChain {
    ProgramChain { name: name.into(), hook: None, rules }
}

fn rule(statements: impl IntoIterator<Item = Statement>) -> ProgramRule {
    ProgramRule { statements: statements.into_iter().collect(), comment: None }
}

impl ProgramRule {
    fn because(self, comment: &'static str) -> Self {
        Self { comment: Some(comment), ..self }
    }
}
