//! What happens to a packet, and which rule decides it: a walk through the rules of a mode, and the reasons for it.
//!
//! ```text
//!   Packet ─▶ service ports that rules may name ─▶ their rules ─▶ interpreter ─▶ Walk ─▶ reasons ─▶ Explanation
//! ```
//!
//! The model has already decided each policy in the routings, and the interpreters, `nftables::interpreter` and
//! `iptables::interpreter`, follow the chains. This module finds out why a rule exists.

mod explanation;
mod iptables;
mod ipvs;
pub mod live;
mod nftables;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::annotations::IgnoredReason;
use model::cluster::{Cluster, CurrentServicePort};
use model::hashing::HASH_ANNOTATION;
use model::local::{FromPod, NodePortAddresses};
use model::names::{Port, Protocol, ServicePortName};
use model::routing::{Routing, Traffic};
use model::service::{Addresses, TrafficPolicy};
use model::topology;
use model::weights::WEIGHT_ANNOTATION;

use crate::mark::Mark;
use crate::mode::Mode;
use crate::nftables::claims::{Precedence, Rank};
use crate::nftables::elements::SlotAssignment;
use crate::nftables::sets::Balancer;
use crate::nftables::timeouts::rounded;
pub use crate::walk::Packet;
use crate::walk::PacketContext;
pub use explanation::{
    AppliedPolicy, ExplainedFrontend, Explanation, Fate, FrontendKind, HealthCheckAnswer, IgnoredAnnotation,
    Masquerade, Origin, PodDetection, PolicyField, PolicyValue, Reason, RuleContext, Target, UnusedEndpoint,
    UnusedReason,
};

/// What the path of a packet depends on, besides Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainSettings {
    pub mode: Mode,
    pub mark: Mark,
    pub masquerade_all: bool,
    pub from_pod: Option<FromPod>,
    pub node_port_addresses: NodePortAddresses,
    /// Whether node ports are served at 127.0.0.1: only the iptables mode can, and only for IPv4.
    pub serves_localhost: bool,
}

impl Mode {
    /// What follows the program in the modes that have one.
    fn balancer(self) -> Balancer {
        match self {
            Self::Nftables | Self::Iptables => Balancer::Slots,
            Self::Ipvs => Balancer::Ipvs,
        }
    }
}

/// Why a packet cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswerable {
    Families,
    /// Packets from pods are recognized by their interface, which the question does not name.
    Interface(FromPod),
    /// Only the node itself can send to its loopback addresses.
    Loopback,
}

/// Explains what becomes of a packet. `addresses` are all addresses of the node except those of `kube-ipvs0`, and `cluster` is that of the packet's IP
/// family. Endpoints are assigned to slots as if the kernel had none yet.
pub fn explain(
    packet: &Packet,
    settings: &ExplainSettings,
    addresses: &[IpAddr],
    cluster: &Cluster,
) -> Result<Explanation, Unanswerable> {
    explain_in_slots(packet, settings, addresses, cluster, |_| SlotAssignment::default())
}

/// Like [`explain`], with the slots that endpoints already have. Only the nftables mode uses them.
///
/// Renders rules of the concerned service ports only, instead of reading the backend's desired state: that lacks events which no
/// sync has taken, and the reasons (policies, unused endpoints).
pub fn explain_in_slots<'a>(
    packet: &Packet,
    settings: &ExplainSettings,
    addresses: &[IpAddr],
    cluster: &Cluster,
    slots: impl Fn(&ServicePortName) -> SlotAssignment<'a>,
) -> Result<Explanation, Unanswerable> {
    let question = Question::new(packet, settings, addresses, cluster)?;
    let answer = match settings.mode {
        Mode::Nftables => nftables::answer(&question, slots),
        Mode::Iptables => iptables::answer(&question),
        Mode::Ipvs => ipvs::answer(&question),
    };
    Ok(question.explain(answer, cluster.has_changes()))
}

/// A packet, and everything that the reasons for its path depend on.
struct Question<'a> {
    context: PacketContext<'a>,
    settings: &'a ExplainSettings,
    is_from_pod: bool,
    to_this_node: bool,
    /// The service ports that claim the destination, by address or by node port. Sorted by name.
    claims: Vec<CurrentServicePort<'a>>,
    /// All service ports with rules for the destination, or for one that it may be translated to. Sorted by name.
    concerned: Vec<CurrentServicePort<'a>>,
    service_cidrs: Vec<ipnet::IpNet>,
    /// The destination is a cluster IP, whether or not its Service has the port.
    to_cluster_ip: bool,
    /// The destination is the health check node port of a Service.
    health_check: Option<HealthCheckAnswer>,
}

/// What the rules of a mode do with the packet, and why.
struct Answer<'a> {
    /// The service port whose rules decide, and the kind of its frontend.
    matched: Option<(&'a CurrentServicePort<'a>, FrontendKind)>,
    end: End,
    chains: Vec<String>,
    otherwise: Option<Fate>,
}

enum End {
    /// To one of these endpoints.
    Translated {
        targets: Vec<PossibleTarget>,
        traffic: Traffic,
        short_circuit: bool,
    },
    Stopped(Fate, Reason),
}

/// An endpoint that a walk may lead to.
struct PossibleTarget {
    address: SocketAddr,
    probability: f64,
    masquerade: Option<Masquerade>,
}

impl<'a> Question<'a> {
    fn new(
        packet: &'a Packet,
        settings: &'a ExplainSettings,
        addresses: &'a [IpAddr],
        cluster: &'a Cluster,
    ) -> Result<Self, Unanswerable> {
        let (source, to) = (packet.source, packet.destination);
        if Family::of(source) != Family::of(to.ip()) {
            return Err(Unanswerable::Families);
        }
        let context = PacketContext::new(packet, addresses);
        if to.ip().is_loopback() && !context.is_from_node() {
            return Err(Unanswerable::Loopback);
        }
        let claims = cluster.current_service_ports(|service, port| {
            let by_address =
                port.port.get() == to.port() && any_address(&service.addresses, |ip| ip == to.ip());
            let by_node_port = port.node_port.is_some_and(|port| port.get() == to.port());
            port.protocol == packet.protocol && (by_address || by_node_port)
        });
        let endpoints = || claims.iter().flat_map(|claim| claim.routing.reachable());
        let ips: HashSet<IpAddr> = endpoints().map(|endpoint| endpoint.ip).chain([to.ip()]).collect();
        let ports: HashSet<u16> =
            endpoints().map(|endpoint| endpoint.port.get()).chain([to.port()]).collect();
        let is_health_check = |port: Port| settings.mode == Mode::Ipvs && port.get() == to.port();
        let concerned = cluster.current_service_ports(|service, port| {
            any_address(&service.addresses, |ip| ips.contains(&ip))
                || port.node_port.is_some_and(|port| ports.contains(&port.get()))
                || service.health_check_node_port.is_some_and(is_health_check)
        });
        // In the ipvs mode, the addresses of Services are addresses of the node.
        let is_bound = settings.mode == Mode::Ipvs
            && concerned.iter().any(|it| any_address(&it.routing.addresses, |ip| ip == to.ip()));
        let to_this_node = context.is_local(to.ip()) || is_bound;
        let is_at_health_check = packet.protocol == Protocol::Tcp && to_this_node && {
            let served = &settings.node_port_addresses;
            served.match_all() || served.among(addresses).contains(&to.ip())
        };
        let health_checks = is_at_health_check.then(|| cluster.health_checks_at(to.port()));
        let health_check = health_checks.into_iter().flatten().next();
        Ok(Self {
            context,
            settings,
            is_from_pod: is_from_pod(&context, settings)?,
            to_this_node,
            claims,
            concerned,
            service_cidrs: cluster.service_cidrs(),
            to_cluster_ip: cluster.has_cluster_ip(to.ip()),
            health_check: health_check
                .map(|(name, it)| HealthCheckAnswer::new(&name, it.local_endpoints, true)),
        })
    }

    fn destination(&self) -> SocketAddr {
        self.context.packet.destination
    }

    /// The service ports that claim the address, each with the kind of its frontend, in the order of upstream's rules.
    fn by_address(&self) -> impl Iterator<Item = (&CurrentServicePort<'a>, FrontendKind)> {
        let to = self.destination();
        let at = move |claim: &CurrentServicePort<'_>| {
            let addresses = &claim.routing.addresses;
            let is_its_port = claim.routing.port.get() == to.port();
            let kinds = [
                (FrontendKind::ClusterIp, addresses.cluster_ip == to.ip()),
                (FrontendKind::ExternalIp, addresses.external_ips.contains(&to.ip())),
                (FrontendKind::LoadBalancerIp, addresses.load_balancer_ips.contains(&to.ip())),
            ];
            kinds.into_iter().filter(move |(_, is_at)| is_its_port && *is_at).map(|(kind, _)| kind)
        };
        self.claims.iter().flat_map(move |claim| at(claim).map(move |kind| (claim, kind)))
    }

    /// The service ports that claim the port as a node port.
    fn by_node_port(&self) -> impl Iterator<Item = &CurrentServicePort<'a>> {
        let port = self.destination().port();
        self.claims.iter().filter(move |claim| claim.routing.node_port.is_some_and(|its| its.get() == port))
    }

    /// The service port that gets the address, and the kind of its frontend.
    fn owner_by_address(&self) -> Option<(&CurrentServicePort<'a>, FrontendKind)> {
        self.by_address().min_by_key(|&(claim, kind)| self.rank(claim, kind))
    }

    /// The service port that gets the node port.
    fn owner_by_node_port(&self) -> Option<&CurrentServicePort<'a>> {
        self.by_node_port().min_by_key(|&claim| self.rank(claim, FrontendKind::NodePort))
    }

    /// How a claim to the destination compares with others. In the iptables mode, as upstream, only the order of names counts.
    fn rank<'c>(
        &self,
        claim: &'c CurrentServicePort<'_>,
        kind: FrontendKind,
    ) -> (Option<Rank<'c>>, &'c ServicePortName) {
        let ip = (kind != FrontendKind::NodePort).then_some(self.destination().ip());
        let rank = match self.settings.mode {
            Mode::Nftables | Mode::Ipvs => Some(Rank::of(ip, &claim.name, &claim.routing)),
            Mode::Iptables => None,
        };
        (rank, &claim.name)
    }

    /// Whether the load-balancer source ranges allow the packet.
    fn is_admitted(&self, routing: &Routing) -> bool {
        let Addresses { source_ranges, load_balancer_ips, .. } = &*routing.addresses;
        let source = self.context.packet.source;
        source_ranges.is_empty()
            || source_ranges.iter().any(|range| range.contains(&source))
            || (routing.ranges_admit_node && load_balancer_ips.contains(&source))
    }

    /// The answer for a packet that no rule translates or stops.
    fn untouched(&self) -> Answer<'_> {
        let by_address = self.owner_by_address();
        let by_node_port = self.owner_by_node_port().filter(|_| self.to_this_node);
        let (matched, reason) = match (by_address, by_node_port) {
            (Some(matched), _) => (Some(matched), Reason::UncheckedFromNode),
            (None, Some(claim)) => (Some((claim, FrontendKind::NodePort)), Reason::NodePortNotServedHere),
            (None, None) if self.to_cluster_ip => (None, Reason::NoSuchPort),
            (None, None) if self.health_check.is_some() => (None, Reason::HealthCheck),
            (None, None) => (None, Reason::NoService),
        };
        let end = End::Stopped(Fate::Untouched, reason);
        Answer { matched, end, chains: Vec::new(), otherwise: None }
    }

    fn origin(&self) -> Origin {
        match &self.settings.from_pod {
            _ if self.context.is_from_node() => Origin::Node,
            _ if self.is_from_pod => Origin::Pod,
            Some(_) => Origin::Elsewhere,
            None => Origin::Unknown,
        }
    }

    fn explain(&self, answer: Answer<'_>, pending: bool) -> Explanation {
        let Packet { source, source_port, protocol, destination, .. } = *self.context.packet;
        let mut explanation = Explanation {
            source,
            source_port,
            protocol,
            destination,
            mode: self.settings.mode,
            origin: self.origin(),
            frontend: None,
            policy: None,
            fate: Fate::Forwarded,
            reason: None,
            to_this_node: self.to_this_node,
            health_check: None,
            endpoints: Vec::new(),
            unused: Vec::new(),
            hash: None,
            ignored: Vec::new(),
            affinity_seconds: None,
            chains: answer.chains,
            pending,
            otherwise: answer.otherwise,
            context: RuleContext::of(self.context.packet, self.settings),
            live: None,
        };
        let short_circuit = matches!(answer.end, End::Translated { short_circuit: true, .. });
        if let Some((claim, kind)) = answer.matched {
            explanation.frontend = Some(self.frontend(claim, kind));
            explanation.policy = Some(AppliedPolicy::of(claim, kind, short_circuit));
            explanation.ignored = ignored(claim);
        }
        match (answer.end, answer.matched) {
            (End::Translated { targets: possible, traffic, .. }, Some((claim, _))) => {
                explanation.endpoints = targets(&claim.routing, traffic, possible);
                explanation.hash = claim.routing.hash;
                explanation.affinity_seconds = match self.settings.mode {
                    Mode::Nftables => claim.routing.affinity.map(rounded),
                    Mode::Iptables | Mode::Ipvs => claim.routing.affinity,
                };
                let policy = match traffic {
                    Traffic::ToLocal => TrafficPolicy::Local,
                    Traffic::ToCluster | Traffic::RejectNoEndpoints | Traffic::DropNoLocalEndpoints => {
                        TrafficPolicy::Cluster
                    }
                };
                explanation.unused = unused(claim, policy);
            }
            (End::Stopped(fate, reason), matched) => {
                (explanation.fate, explanation.reason) = (fate, Some(reason));
                if reason == Reason::HealthCheck {
                    explanation.health_check.clone_from(&self.health_check);
                }
                explanation.unused = match (reason, matched) {
                    (Reason::NoLocalEndpoints, Some((claim, _))) => unused(claim, TrafficPolicy::Local),
                    (Reason::NoEndpoints | Reason::UncheckedFromNode, Some((claim, _))) => {
                        unused(claim, TrafficPolicy::Cluster)
                    }
                    _ => Vec::new(),
                };
            }
            (End::Translated { .. }, None) => {}
        }
        explanation
    }

    fn frontend(&self, claim: &CurrentServicePort<'_>, kind: FrontendKind) -> ExplainedFrontend {
        let mut claimants: Vec<&CurrentServicePort<'_>> = match kind {
            FrontendKind::NodePort => self.by_node_port().collect(),
            FrontendKind::ClusterIp | FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp => {
                self.by_address().map(|(claim, _)| claim).collect()
            }
        };
        claimants.dedup_by_key(|claim| &claim.name);
        claimants.retain(|other| other.name != claim.name);
        let ranks = claimants.iter().map(|other| self.rank(other, kind));
        let precedence = ranks.min().map(|(runner_up, _)| match (self.rank(claim, kind).0, runner_up) {
            (Some(rank), Some(runner_up)) => rank.precedence_over(&runner_up),
            (None, _) | (_, None) => Precedence::FirstRule,
        });
        ExplainedFrontend {
            kind,
            namespace: claim.name.service.namespace.to_string(),
            service: claim.name.service.name.to_string(),
            port: claim.name.port.to_string(),
            denied_to: claimants.iter().map(|other| other.name.to_string()).collect(),
            precedence,
        }
    }
}

/// The endpoints in the order of the routing, which is not that of the rules.
fn targets(routing: &Routing, traffic: Traffic, mut possible: Vec<PossibleTarget>) -> Vec<Target> {
    let known: HashMap<SocketAddr, (usize, bool)> = routing
        .endpoints(traffic)
        .iter()
        .enumerate()
        .map(|(at, endpoint)| (SocketAddr::new(endpoint.ip, endpoint.port.get()), (at, endpoint.local)))
        .collect();
    let weights = routing.weights(traffic);
    possible.sort_by_key(|target| known.get(&target.address).map(|(at, _)| *at));
    let target = |PossibleTarget { address, probability, masquerade }| {
        let known = known.get(&address);
        let on_this_node = known.is_some_and(|(_, local)| *local);
        let weight = known.and_then(|(at, _)| weights.get(*at).copied());
        Target { address, probability, on_this_node, weight, masquerade }
    };
    possible.into_iter().map(target).collect()
}

/// What traffic from outside to a frontend of this kind gets.
fn traffic(routing: &Routing, kind: FrontendKind) -> Traffic {
    match kind {
        FrontendKind::ClusterIp => routing.internal,
        FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp | FrontendKind::NodePort => routing.external,
    }
}

fn unused(claim: &CurrentServicePort<'_>, policy: TrafficPolicy) -> Vec<UnusedEndpoint> {
    let found = claim.unused(policy).into_iter();
    found
        .map(|(candidate, why)| {
            let (reason, zones) = match why {
                topology::Unused::NotReady => (UnusedReason::NotReady, Vec::new()),
                topology::Unused::Draining => (UnusedReason::Draining, Vec::new()),
                topology::Unused::WithoutWeight => (UnusedReason::WithoutWeight, Vec::new()),
                topology::Unused::Gone => (UnusedReason::Gone, Vec::new()),
                topology::Unused::OnAnotherNode => (UnusedReason::OnAnotherNode, Vec::new()),
                topology::Unused::ForOtherNodes => (UnusedReason::ForOtherNodes, Vec::new()),
                topology::Unused::ForOtherZones(zones) => {
                    (UnusedReason::ForOtherZones, zones.names().map(str::to_owned).collect())
                }
            };
            let address = SocketAddr::new(candidate.ip, candidate.port.get());
            UnusedEndpoint { address, on_this_node: candidate.conditions.local, reason, zones }
        })
        .collect()
}

fn ignored(claim: &CurrentServicePort<'_>) -> Vec<IgnoredAnnotation> {
    let weights = claim.invalid_weights.iter().map(|(slice, value)| IgnoredAnnotation {
        slice: Some((*slice).to_owned()),
        annotation: WEIGHT_ANNOTATION.to_owned(),
        value: (*value).to_owned(),
        reason: IgnoredReason::Invalid,
    });
    let hash = claim.ignored_hash.map(|(value, why)| IgnoredAnnotation {
        slice: None,
        annotation: HASH_ANNOTATION.to_owned(),
        value: value.to_owned(),
        reason: why,
    });
    hash.into_iter().chain(weights).collect()
}

fn any_address(addresses: &Addresses, matches: impl Fn(IpAddr) -> bool) -> bool {
    let external = addresses.external_ips.iter().chain(&addresses.load_balancer_ips);
    matches(addresses.cluster_ip) || external.copied().any(matches)
}

fn is_from_pod(context: &PacketContext<'_>, settings: &ExplainSettings) -> Result<bool, Unanswerable> {
    let Some(from_pod) = &settings.from_pod else { return Ok(false) };
    let is_known = context.packet.interface.is_some() || context.is_from_node();
    let by_interface = |is_theirs: bool| {
        if is_known { Ok(is_theirs) } else { Err(Unanswerable::Interface(from_pod.clone())) }
    };
    let interface = context.input_interface();
    match from_pod {
        FromPod::Source(cidr) => Ok(cidr.contains(&context.packet.source)),
        FromPod::Interface(theirs) => by_interface(interface == theirs),
        FromPod::InterfacePrefix(prefix) => by_interface(interface.starts_with(prefix.as_str())),
    }
}

impl std::fmt::Display for Unanswerable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Families => f.write_str("source and destination are not of the same IP family"),
            Self::Interface(from_pod) => {
                let (FromPod::Interface(name) | FromPod::InterfacePrefix(name)) = from_pod else {
                    return Ok(());
                };
                write!(
                    f,
                    "the proxy recognizes pods by the input interface of their packets ({name:?}): \
                     name that of this packet with --interface"
                )
            }
            Self::Loopback => f.write_str("only the node itself can send to its loopback addresses"),
        }
    }
}

impl std::error::Error for Unanswerable {}

#[cfg(test)]
mod tests;
