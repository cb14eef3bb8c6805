//! The answer of `explain`: what becomes of a packet, and why. Its JSON is part of the debug API.

use std::net::{IpAddr, SocketAddr};

use model::cluster::Considered;
use model::local::FromPod;
use model::names::NamespacedName;
use model::service::TrafficPolicy;
use serde::{Deserialize, Serialize};

use super::ExplainSettings;
use super::live::Live;
use crate::mode::Mode;
use crate::nftables::claims::Precedence;
use crate::walk::{Packet, PacketVerdict};

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
    /// What of a service it is sent to; `None` if no service has its destination.
    pub frontend: Option<ExplainedFrontend>,
    pub policy: Option<AppliedPolicy>,
    pub fate: Fate,
    /// Why, unless it is forwarded.
    pub reason: Option<Reason>,
    /// Whether the destination is an address of this node.
    pub to_this_node: bool,
    /// What the proxy itself says to it, if it is a health check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheckAnswer>,
    /// Who answers if it is forwarded.
    pub endpoints: Vec<Target>,
    pub unused: Vec<UnusedEndpoint>,
    /// Seconds for which a client goes to the endpoint it went to before.
    pub affinity_seconds: Option<u32>,
    /// The chains it goes through, up to the one that decides.
    pub chains: Vec<String>,
    /// Whether the cluster has changed since rules were last written.
    pub pending: bool,
    /// What becomes of it if it is not forwarded, where that is left to chance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Fate>,
    /// What the packet, and the rules it meets, depend on besides services.
    pub context: PacketContext,
    /// What the kernel as it is would do; only with `--live`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
}

/// What rules ask about a packet, and what the rules themselves depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PacketContext {
    /// The interface of the node that the packet comes in by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// How rules know traffic from pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_pod: Option<PodDetection>,
    pub masquerade_all: bool,
    pub mark: u32,
    pub node_ports_everywhere: bool,
}

/// See [`FromPod`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodDetection {
    Cidr(String),
    Interface(String),
    InterfacePrefix(String),
}

/// Where a packet comes from, as far as rules care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    Node,
    Pod,
    Elsewhere,
    /// Not this node; the proxy has no way to tell pods from others.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedFrontend {
    pub kind: FrontendKind,
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
pub enum FrontendKind {
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
pub struct AppliedPolicy {
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
    /// The client gets an error at once.
    Refused,
    /// The client times out.
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
    /// The proxy itself listens there, for the health checks of load balancers.
    HealthCheck,
    /// Node ports are served at 127.0.0.1, and so nothing but loopback addresses may send there.
    LoopbackOnly,
    NoService,
}

/// What load balancers are told about a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheckAnswer {
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

impl HealthCheckAnswer {
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
pub struct UnusedEndpoint {
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

impl From<PacketVerdict> for Fate {
    /// Of a packet that is not translated.
    fn from(verdict: PacketVerdict) -> Self {
        match verdict {
            PacketVerdict::Accept => Self::Untouched,
            PacketVerdict::Reject => Self::Refused,
            PacketVerdict::Drop => Self::Dropped,
        }
    }
}

impl PacketContext {
    pub(super) fn of(packet: &Packet, settings: &ExplainSettings) -> Self {
        Self {
            interface: packet.interface.clone(),
            from_pod: settings.from_pod.as_ref().map(|from_pod| match from_pod {
                FromPod::Source(cidr) => PodDetection::Cidr(cidr.to_string()),
                FromPod::Interface(name) => PodDetection::Interface(name.clone()),
                FromPod::InterfacePrefix(prefix) => PodDetection::InterfacePrefix(prefix.clone()),
            }),
            masquerade_all: settings.masquerade_all,
            mark: settings.mark.get(),
            node_ports_everywhere: settings.node_port_addresses.match_all(),
        }
    }
}

impl AppliedPolicy {
    pub(super) fn of(claim: &Considered<'_>, kind: FrontendKind, short_circuit: bool) -> Self {
        let (field, value) = match kind {
            FrontendKind::ClusterIp => (PolicyField::InternalTrafficPolicy, claim.internal_policy),
            FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp | FrontendKind::NodePort => {
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
