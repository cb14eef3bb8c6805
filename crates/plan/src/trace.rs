//! What would happen to this packet, and by which rule.
//!
//! ```text
//!   Packet ─▶ who asks for its address? ─▶ the way through the mode's chains ─▶ Explanation
//! ```
//!
//! Policy is not decided here: the model has decided it in each routing. What is here is the order in which the rules
//! of a mode look at a packet, `nftables` and `iptables` apart, for they differ where the reference's do.

mod iptables;
pub mod live;
mod nftables;
pub mod saved;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::cluster::{Cluster, Considered};
use model::local::{FromPod, NodePortAddresses};
use model::names::{NamespacedName, Port, Protocol, ServicePortName};
use model::routing::{Endpoint, Routing, Traffic};
use model::service::{Addresses, TrafficPolicy};
use model::topology;
use serde::{Deserialize, Serialize};

use crate::iptables::chains::lower_case;
use crate::nftables::claims::{Precedence, Rank};
use crate::nftables::elements::Seats;
use crate::nftables::slots::{assign, shares};
use crate::nftables::timeouts::rounded;
use live::Live;

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub protocol: Protocol,
    pub destination: SocketAddr,
    /// By which it comes to the node; nothing if that is not known.
    pub interface: Option<String>,
}

/// What the way of a packet depends on besides services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mode: Mode,
    pub masquerade_all: bool,
    pub from_pod: Option<FromPod>,
    pub node_port_addresses: NodePortAddresses,
    /// Whether node ports answer at 127.0.0.1, which no more than one mode in one family can.
    pub serves_localhost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Iptables,
    Nftables,
}

/// Everything there is to say about a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub source: IpAddr,
    /// In lower case.
    pub protocol: String,
    pub destination: SocketAddr,
    pub mode: Mode,
    pub origin: Origin,
    /// Through which it meets a service; none if there is no service in its way.
    pub frontend: Option<Frontend>,
    pub policy: Option<Policy>,
    pub fate: Fate,
    /// Why, unless it is forwarded.
    pub reason: Option<Reason>,
    /// Whether the destination is an address of this node.
    pub to_this_node: bool,
    /// What the proxy itself says to it, if it is a health check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// Who answers if it is forwarded.
    pub endpoints: Vec<Target>,
    pub unused: Vec<Unused>,
    /// Seconds for which a client goes to the endpoint it went to before.
    pub affinity_seconds: Option<u32>,
    /// The chains it goes through, up to the one that decides.
    pub chains: Vec<String>,
    /// Whether the cluster has changed since rules were last written.
    pub pending: bool,
    /// What the kernel as it is would do; only if somebody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
}

/// Where a packet comes from, as far as rules care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    Node,
    Pod,
    Elsewhere,
    /// Not this node; the proxy has not been told how to tell pods from others.
    Untold,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Frontend {
    pub kind: Kind,
    pub namespace: String,
    pub service: String,
    /// Empty for the only port of a service that does not name it.
    pub port: String,
    /// Other service ports that claim the same address and port.
    pub denied_to: Vec<String>,
    /// Why this one has it, if others claim it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precedence: Option<Precedence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    #[serde(rename = "clusterIP")]
    ClusterIp,
    #[serde(rename = "externalIP")]
    ExternalIp,
    #[serde(rename = "loadBalancerIP")]
    LoadBalancerIp,
    #[serde(rename = "nodePort")]
    NodePort,
}

/// The traffic policy that binds the packet, or would.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    pub field: PolicyField,
    pub value: PolicyValue,
    /// Local does not bind what pods and this node send to external addresses.
    pub short_circuit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyField {
    InternalTrafficPolicy,
    ExternalTrafficPolicy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyValue {
    Cluster,
    Local,
}

/// What the client finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// One of the endpoints answers.
    Forwarded,
    /// It is told so at once.
    Refused,
    /// It hears nothing.
    Dropped,
    /// Whatever would happen without a proxy.
    Untouched,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// No usable endpoint exists anywhere.
    NoEndpoints,
    /// There are endpoints, but none on this node, and policy wants one there.
    NoLocalEndpoints,
    NotInSourceRanges,
    /// A service has this cluster IP, but no such port.
    NoSuchPort,
    /// An address of a service CIDR that no service has.
    UnusedClusterIp,
    /// A node port, but not at this address.
    NodePortNotServedHere,
    /// The iptables mode does not look at what this node sends to external addresses without endpoints.
    UncheckedFromNode,
    /// The proxy itself listens there, for load balancers that ask about a service.
    HealthCheck,
    NoService,
}

/// What load balancers are told about a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    pub namespace: String,
    pub service: String,
    /// Ready ones on this node.
    pub local_endpoints: usize,
    pub proxy_is_healthy: bool,
    /// Of HTTP.
    pub status: u16,
    /// Why the proxy can't listen there, if it can't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl HealthCheck {
    pub fn new(service: &NamespacedName, local_endpoints: usize, proxy_is_healthy: bool) -> Self {
        Self {
            namespace: service.namespace.to_string(),
            service: service.name.to_string(),
            local_endpoints,
            proxy_is_healthy,
            status: if proxy_is_healthy && local_endpoints > 0 { 200 } else { 503 },
            trouble: None,
        }
    }
}

/// An endpoint that may get the packet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    pub address: SocketAddr,
    pub probability: f64,
    pub on_this_node: bool,
    /// Why the endpoint sees an address of this node instead of the client's, if it does.
    pub masquerade: Option<Masquerade>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Masquerade {
    /// The configuration says: everything that goes to cluster IPs.
    All,
    /// To a cluster IP, and not from a pod.
    NotFromPod,
    /// To an external address with policy Cluster: the answer must come back through this node.
    External,
    /// From this node to an external address with policy Local.
    FromNode,
    /// Back to the pod that sent it.
    Hairpin,
}

/// An endpoint that can't get the packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unused {
    pub address: SocketAddr,
    pub on_this_node: bool,
    pub reason: UnusedReason,
    /// Those that hints reserve it for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UnusedReason {
    NotReady,
    Draining,
    Gone,
    OnAnotherNode,
    ForOtherNodes,
    ForOtherZones,
}

/// Why there is no telling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswerable {
    Families,
    /// Pods are told by the interface, which is not known.
    Interface(FromPod),
    /// Nobody but a node itself can send to its loopback addresses.
    Loopback,
}

/// Follows a packet. `addresses` are all that the node has; the cluster is of the packet's family. Endpoints are seated
/// as in a kernel that held none before.
pub fn trace(
    packet: &Packet,
    settings: &Settings,
    addresses: &[IpAddr],
    cluster: &Cluster,
) -> Result<Explanation, Unanswerable> {
    trace_seated(packet, settings, addresses, cluster, |_| Seats::default())
}

/// The same where endpoints have been given slots already, which only the nftables mode has.
pub fn trace_seated<'a>(
    packet: &Packet,
    settings: &Settings,
    addresses: &[IpAddr],
    cluster: &Cluster,
    seats: impl FnOnce(&ServicePortName) -> Seats<'a>,
) -> Result<Explanation, Unanswerable> {
    let traveller = Traveller::new(packet, settings, addresses, cluster)?;
    let course = match settings.mode {
        Mode::Nftables => nftables::course(&traveller),
        Mode::Iptables => iptables::course(&traveller),
    };
    Ok(traveller.explain(course, cluster.has_changes(), seats))
}

/// A packet, and all that rules may find out about it.
struct Traveller<'a> {
    packet: &'a Packet,
    settings: &'a Settings,
    from_node: bool,
    from_pod: bool,
    addresses: &'a [IpAddr],
    to_this_node: bool,
    /// Who asks for the destination, by address or by node port, in order.
    claims: Vec<Considered<'a>>,
    /// The destination is the cluster IP of some service, whatever its ports.
    to_cluster_ip: bool,
    /// The destination is one that services get their cluster IPs from.
    to_service_cidr: bool,
    /// The destination is where load balancers ask about a service.
    health_check: Option<HealthCheck>,
}

/// What the chains of a mode do with a packet.
struct Course<'a> {
    /// By whose rules, through which of its frontends.
    met: Option<(&'a Considered<'a>, Kind)>,
    end: End,
    chains: Vec<String>,
}

enum End {
    /// To one of the endpoints of this kind of traffic.
    Translated {
        traffic: Traffic,
        mark: Option<Masquerade>,
        short_circuit: bool,
    },
    Stopped(Fate, Reason),
}

impl<'a> Traveller<'a> {
    fn new(
        packet: &'a Packet,
        settings: &'a Settings,
        addresses: &'a [IpAddr],
        cluster: &'a Cluster,
    ) -> Result<Self, Unanswerable> {
        let (source, to) = (packet.source, packet.destination);
        if Family::of(source) != Family::of(to.ip()) {
            return Err(Unanswerable::Families);
        }
        let from_node = is_local(source, addresses);
        if to.ip().is_loopback() && !from_node {
            return Err(Unanswerable::Loopback);
        }
        let claims = cluster.consider(|service, port| {
            let by_address = port.port.get() == to.port() && is_at(&service.addresses, to.ip());
            let by_node_port = port.node_port.is_some_and(|port| port.get() == to.port());
            port.protocol == packet.protocol && (by_address || by_node_port)
        });
        let to_this_node = is_local(to.ip(), addresses);
        let is_at_health_check = packet.protocol == Protocol::Tcp && to_this_node && {
            let served = &settings.node_port_addresses;
            served.match_all() || served.among(addresses).contains(&to.ip())
        };
        let health_checks = is_at_health_check.then(|| cluster.health_checks_at(to.port()));
        let health_check = health_checks.into_iter().flatten().next();
        Ok(Self {
            packet,
            settings,
            from_node,
            from_pod: is_from_pod(packet, settings, from_node)?,
            addresses,
            to_this_node,
            claims,
            to_cluster_ip: cluster.has_cluster_ip(to.ip()),
            to_service_cidr: cluster.service_cidrs().iter().any(|cidr| cidr.contains(&to.ip())),
            health_check: health_check.map(|(name, it)| HealthCheck::new(&name, it.local_endpoints, true)),
        })
    }

    /// Those that ask for the address, each with what it is to them, in the order of the reference's rules.
    fn by_address(&self) -> impl Iterator<Item = (&Considered<'a>, Kind)> {
        let to = self.packet.destination;
        let at = move |considered: &Considered<'_>| {
            let addresses = &considered.routing.addresses;
            let is_its = considered.routing.port.get() == to.port();
            let kinds = [
                (Kind::ClusterIp, addresses.cluster_ip == to.ip()),
                (Kind::ExternalIp, addresses.external_ips.contains(&to.ip())),
                (Kind::LoadBalancerIp, addresses.load_balancer_ips.contains(&to.ip())),
            ];
            kinds.into_iter().filter(move |(_, is_at)| is_its && *is_at).map(|(kind, _)| kind)
        };
        self.claims.iter().flat_map(move |claim| at(claim).map(move |kind| (claim, kind)))
    }

    /// Those that ask for the port as a node port.
    fn by_node_port(&self) -> impl Iterator<Item = &Considered<'a>> {
        let port = self.packet.destination.port();
        self.claims.iter().filter(move |claim| claim.routing.node_port.is_some_and(|its| its.get() == port))
    }

    /// The one that has the address, and what it is to it.
    fn owner_by_address(&self) -> Option<(&Considered<'a>, Kind)> {
        self.by_address().min_by_key(|&(claim, kind)| self.rank(claim, kind))
    }

    /// The one that has the port as a node port.
    fn owner_by_node_port(&self) -> Option<&Considered<'a>> {
        self.by_node_port().min_by_key(|&claim| self.rank(claim, Kind::NodePort))
    }

    /// How a claim to the destination compares with others. The iptables mode, like upstream, knows only the order of
    /// names.
    fn rank<'c>(&self, claim: &'c Considered<'_>, kind: Kind) -> (Option<Rank<'c>>, &'c ServicePortName) {
        let ip = (kind != Kind::NodePort).then_some(self.packet.destination.ip());
        let rank = match self.settings.mode {
            Mode::Nftables => Some(Rank::of(ip, &claim.name, &claim.routing)),
            Mode::Iptables => None,
        };
        (rank, &claim.name)
    }

    /// Whether the destination serves node ports.
    fn is_at_node_port_address(&self) -> bool {
        let to = self.packet.destination.ip();
        let settings = self.settings;
        if to.is_loopback() && !settings.serves_localhost {
            return false;
        }
        self.to_this_node
            && (settings.node_port_addresses.match_all()
                || settings.node_port_addresses.among(self.addresses).contains(&to))
    }

    /// Whether load-balancer source ranges let it through.
    fn is_admitted(&self, routing: &Routing) -> bool {
        let Addresses { source_ranges, load_balancer_ips, .. } = &*routing.addresses;
        let source = self.packet.source;
        source_ranges.is_empty()
            || source_ranges.iter().any(|range| range.contains(&source))
            || (routing.ranges_admit_node && load_balancer_ips.contains(&source))
    }

    /// Why what goes to a cluster IP is masqueraded.
    fn internal_mark(&self) -> Option<Masquerade> {
        if self.settings.masquerade_all {
            return Some(Masquerade::All);
        }
        (self.settings.from_pod.is_some() && !self.from_pod).then_some(Masquerade::NotFromPod)
    }

    /// What no rule did anything to.
    fn untouched(&self, chains: Vec<String>) -> Course<'_> {
        let by_address = self.owner_by_address();
        let by_node_port = self.owner_by_node_port().filter(|_| self.to_this_node);
        let (met, reason) = match (by_address, by_node_port) {
            (Some(met), _) => (Some(met), Reason::UncheckedFromNode),
            (None, Some(claim)) => (Some((claim, Kind::NodePort)), Reason::NodePortNotServedHere),
            (None, None) if self.to_cluster_ip => (None, Reason::NoSuchPort),
            (None, None) if self.health_check.is_some() => (None, Reason::HealthCheck),
            (None, None) => (None, Reason::NoService),
        };
        Course { met, end: End::Stopped(Fate::Untouched, reason), chains }
    }

    fn origin(&self) -> Origin {
        match &self.settings.from_pod {
            _ if self.from_node => Origin::Node,
            _ if self.from_pod => Origin::Pod,
            Some(_) => Origin::Elsewhere,
            None => Origin::Untold,
        }
    }

    fn explain<'s>(
        &self,
        course: Course<'_>,
        pending: bool,
        seats: impl FnOnce(&ServicePortName) -> Seats<'s>,
    ) -> Explanation {
        let Packet { source, protocol, destination, .. } = *self.packet;
        let mut explanation = Explanation {
            source,
            protocol: lower_case(protocol).into(),
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
            affinity_seconds: None,
            chains: course.chains,
            pending,
            live: None,
        };
        let short_circuit = matches!(course.end, End::Translated { short_circuit: true, .. });
        if let Some((claim, kind)) = course.met {
            explanation.frontend = Some(self.frontend(claim, kind));
            explanation.policy = Some(Policy::of(claim, kind, short_circuit));
        }
        match (course.end, course.met) {
            (End::Translated { traffic, mark, .. }, Some((claim, _))) => {
                explanation.endpoints = self.targets(&claim.routing, traffic, mark, seats(&claim.name));
                explanation.affinity_seconds = match self.settings.mode {
                    Mode::Nftables => claim.routing.affinity.map(rounded),
                    Mode::Iptables => claim.routing.affinity,
                };
                let policy = match traffic {
                    Traffic::ToLocal => TrafficPolicy::Local,
                    Traffic::ToCluster | Traffic::RejectNoEndpoints | Traffic::DropNoLocalEndpoints => {
                        TrafficPolicy::Cluster
                    }
                };
                explanation.unused = unused(claim, policy);
            }
            (End::Stopped(fate, reason), met) => {
                (explanation.fate, explanation.reason) = (fate, Some(reason));
                if reason == Reason::HealthCheck {
                    explanation.health_check.clone_from(&self.health_check);
                }
                explanation.unused = match (reason, met) {
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

    fn frontend(&self, claim: &Considered<'_>, kind: Kind) -> Frontend {
        let mut asking: Vec<&Considered<'_>> = match kind {
            Kind::NodePort => self.by_node_port().collect(),
            Kind::ClusterIp | Kind::ExternalIp | Kind::LoadBalancerIp => {
                self.by_address().map(|(claim, _)| claim).collect()
            }
        };
        asking.dedup_by_key(|claim| &claim.name);
        asking.retain(|other| other.name != claim.name);
        let ranks = asking.iter().map(|other| self.rank(other, kind));
        let precedence = ranks.min().map(|(runner_up, _)| match (self.rank(claim, kind).0, runner_up) {
            (Some(rank), Some(runner_up)) => rank.precedence_over(&runner_up),
            (None, _) | (_, None) => Precedence::FirstRule,
        });
        Frontend {
            kind,
            namespace: claim.name.service.namespace.to_string(),
            service: claim.name.service.name.to_string(),
            port: claim.name.port.to_string(),
            denied_to: asking.iter().map(|other| other.name.to_string()).collect(),
            precedence,
        }
    }

    fn targets(
        &self,
        routing: &Routing,
        traffic: Traffic,
        mark: Option<Masquerade>,
        seats: Seats<'_>,
    ) -> Vec<Target> {
        let endpoints = routing.endpoints(traffic);
        let before = if traffic == Traffic::ToLocal { seats.local } else { seats.cluster };
        let chances = chances(self.settings.mode, endpoints, before);
        let target = |endpoint: &Endpoint| {
            let comes_back = self.packet.source == endpoint.ip
                && match self.settings.mode {
                    Mode::Nftables => endpoint.local,
                    Mode::Iptables => true,
                };
            // What is delivered to the node itself never passes where sources are translated.
            let is_sent = self.from_node || !is_local(endpoint.ip, self.addresses);
            Target {
                address: SocketAddr::new(endpoint.ip, endpoint.port.get()),
                probability: chances.get(&(endpoint.ip, endpoint.port)).copied().unwrap_or_default(),
                on_this_node: endpoint.local,
                masquerade: mark.or(comes_back.then_some(Masquerade::Hairpin)).filter(|_| is_sent),
            }
        };
        endpoints.iter().map(target).collect()
    }
}

/// How likely each endpoint gets the packet, where these sit in slots already.
fn chances(mode: Mode, endpoints: &[Endpoint], seats: &[Endpoint]) -> HashMap<(IpAddr, Port), f64> {
    let names = |endpoints: &[Endpoint]| endpoints.iter().map(|it| (it.ip, it.port)).collect::<Vec<_>>();
    match mode {
        Mode::Nftables => {
            let seated = assign(seats, &endpoints.into());
            names(&seated).into_iter().zip(shares(seated.len())).collect()
        }
        Mode::Iptables => {
            let even = 1.0 / f64::from(u32::try_from(endpoints.len()).unwrap_or(u32::MAX));
            names(endpoints).into_iter().map(|name| (name, even)).collect()
        }
    }
}

/// What traffic to external addresses and node ports gets, and why it is masqueraded; nothing for what the policy lets
/// nobody here answer. The same in both modes.
struct External {
    traffic: Traffic,
    mark: Option<Masquerade>,
    short_circuit: bool,
}

impl External {
    fn of(traveller: &Traveller<'_>, routing: &Routing) -> Self {
        if !routing.preserves_client {
            let mark = Some(Masquerade::External);
            return Self { traffic: routing.external, mark, short_circuit: false };
        }
        let inside = routing.external_from_inside();
        if traveller.from_pod {
            Self { traffic: inside, mark: None, short_circuit: true }
        } else if traveller.from_node {
            Self { traffic: inside, mark: Some(Masquerade::FromNode), short_circuit: true }
        } else {
            Self { traffic: routing.external, mark: None, short_circuit: false }
        }
    }

    /// Where it ends if there are endpoints for it.
    fn end(self) -> Option<End> {
        let Self { traffic, mark, short_circuit } = self;
        leads_on(traffic).then_some(End::Translated { traffic, mark, short_circuit })
    }
}

fn leads_on(traffic: Traffic) -> bool {
    match traffic {
        Traffic::ToCluster | Traffic::ToLocal => true,
        Traffic::RejectNoEndpoints | Traffic::DropNoLocalEndpoints => false,
    }
}

/// How a kind of traffic is turned away, if it is.
fn refusal(traffic: Traffic) -> Option<End> {
    match traffic {
        Traffic::ToCluster | Traffic::ToLocal => None,
        Traffic::RejectNoEndpoints => Some(End::Stopped(Fate::Refused, Reason::NoEndpoints)),
        Traffic::DropNoLocalEndpoints => Some(End::Stopped(Fate::Dropped, Reason::NoLocalEndpoints)),
    }
}

impl Policy {
    fn of(claim: &Considered<'_>, kind: Kind, short_circuit: bool) -> Self {
        let (field, value) = match kind {
            Kind::ClusterIp => (PolicyField::InternalTrafficPolicy, claim.internal_policy),
            Kind::ExternalIp | Kind::LoadBalancerIp | Kind::NodePort => {
                (PolicyField::ExternalTrafficPolicy, claim.external_policy)
            }
        };
        let value = match value {
            TrafficPolicy::Cluster => PolicyValue::Cluster,
            TrafficPolicy::Local => PolicyValue::Local,
        };
        Self { field, value, short_circuit }
    }
}

fn unused(claim: &Considered<'_>, policy: TrafficPolicy) -> Vec<Unused> {
    let found = claim.unused(policy).into_iter();
    found
        .map(|(candidate, why)| {
            let (reason, zones) = match why {
                topology::Unused::NotReady => (UnusedReason::NotReady, Vec::new()),
                topology::Unused::Draining => (UnusedReason::Draining, Vec::new()),
                topology::Unused::Gone => (UnusedReason::Gone, Vec::new()),
                topology::Unused::OnAnotherNode => (UnusedReason::OnAnotherNode, Vec::new()),
                topology::Unused::ForOtherNodes => (UnusedReason::ForOtherNodes, Vec::new()),
                topology::Unused::ForOtherZones(zones) => {
                    (UnusedReason::ForOtherZones, zones.names().map(str::to_owned).collect())
                }
            };
            let address = SocketAddr::new(candidate.ip, candidate.port.get());
            Unused { address, on_this_node: candidate.conditions.local, reason, zones }
        })
        .collect()
}

fn is_at(addresses: &Addresses, ip: IpAddr) -> bool {
    addresses.cluster_ip == ip
        || addresses.external_ips.contains(&ip)
        || addresses.load_balancer_ips.contains(&ip)
}

/// All of 127.0.0.0/8 is the node's, though its interfaces name but one of them.
fn is_local(ip: IpAddr, addresses: &[IpAddr]) -> bool {
    ip.is_loopback() || addresses.contains(&ip)
}

fn is_from_pod(packet: &Packet, settings: &Settings, from_node: bool) -> Result<bool, Unanswerable> {
    let Some(from_pod) = &settings.from_pod else { return Ok(false) };
    let comes_by = |is_theirs: &dyn Fn(&str) -> bool| match &packet.interface {
        // What the node itself sends comes in by none.
        _ if from_node => Ok(false),
        Some(name) => Ok(is_theirs(name)),
        None => Err(Unanswerable::Interface(from_pod.clone())),
    };
    match from_pod {
        FromPod::Source(cidr) => Ok(cidr.contains(&packet.source)),
        FromPod::Interface(theirs) => comes_by(&|name| name == theirs),
        FromPod::InterfacePrefix(prefix) => comes_by(&|name| name.starts_with(prefix.as_str())),
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
                    "the proxy tells pods by the interface their packets come in by ({name:?}): \
                     say with --interface which one this packet comes in by"
                )
            }
            Self::Loopback => f.write_str("only the node itself can send to its loopback addresses"),
        }
    }
}

impl std::error::Error for Unanswerable {}

#[cfg(test)]
mod tests;
