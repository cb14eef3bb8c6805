//! The answer of `explain`: what becomes of a packet, and why. Its JSON is part of the debug API.

use std::net::{IpAddr, SocketAddr};

use model::annotations::IgnoredReason;
use model::cluster::CurrentServicePort;
use model::hashing::ClientHash;
use model::local::FromPod;
use model::names::{NamespacedName, Protocol};
use model::service::TrafficPolicy;
use serde::{Deserialize, Serialize};

use super::ExplainSettings;
use super::live::Live;
use crate::mode::Mode;
use crate::nftables::claims::Precedence;
use crate::walk::{Packet, PacketVerdict};

/// What becomes of a packet, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub source: IpAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    #[serde(with = "ProtocolName")]
    pub protocol: Protocol,
    pub destination: SocketAddr,
    pub mode: Mode,
    pub origin: Origin,
    /// The frontend that it is sent to; `None` if no Service has the destination.
    pub frontend: Option<ExplainedFrontend>,
    pub policy: Option<AppliedPolicy>,
    pub fate: Fate,
    /// `None` if it is forwarded.
    pub reason: Option<Reason>,
    /// Whether the destination is an address of this node.
    pub to_this_node: bool,
    /// The answer of the proxy itself, if the packet is a health check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheckAnswer>,
    /// Where the packet may be forwarded to.
    pub endpoints: Vec<Target>,
    pub unused: Vec<UnusedEndpoint>,
    /// What is hashed of the client to choose the endpoint; `None` if it is chosen at random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<ClientHash>,
    /// Annotations of the Service or of its slices that are ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<IgnoredAnnotation>,
    /// The timeout of session affinity.
    pub affinity_seconds: Option<u32>,
    /// The chains that the packet traverses, up to the one that decides.
    pub chains: Vec<String>,
    /// Whether the cluster has changes that no sync has taken yet.
    pub pending: bool,
    /// The fate of the packet if random numbers lead it to no endpoint, where that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Fate>,
    pub context: RuleContext,
    /// What the kernel does with the rules that it has; only with `--live`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
}

/// How a protocol is called in JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Protocol", rename_all = "lowercase")]
enum ProtocolName {
    Sctp,
    Tcp,
    Udp,
}

/// What the path of the packet depends on, besides Services, addresses and ports: what rules match on, and the settings that rules
/// depend on. Part of the answer, so that `--live`, which may have no configuration of its own, can run the same program over
/// the same packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleContext {
    /// The input interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// How rules recognize traffic from pods.
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

/// Where a packet comes from, as far as rules distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    Node,
    Pod,
    Elsewhere,
    /// Not this node; the proxy is not configured to recognize pods.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedFrontend {
    pub kind: FrontendKind,
    pub namespace: String,
    pub service: String,
    /// Empty if the Service has a single port without a name.
    pub port: String,
    /// Other service ports that claim the same address and port.
    pub denied_to: Vec<String>,
    /// Why this service port gets the frontend, if others claim it.
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

/// The traffic policy of the frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedPolicy {
    pub field: PolicyField,
    pub value: PolicyValue,
    /// The policy does not apply: it is Local, and a pod or this node sends to an external address.
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

/// What happens to the packet, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// It goes to one of the endpoints.
    Forwarded,
    /// The client gets an error immediately.
    Refused,
    /// The client times out.
    Dropped,
    /// What would happen without a proxy.
    Untouched,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// No usable endpoint exists anywhere.
    NoEndpoints,
    /// There are endpoints, but none on this node, and the policy is Local.
    NoLocalEndpoints,
    NotInSourceRanges,
    /// A Service has this cluster IP, or in the ipvs mode this address, but not this port.
    NoSuchPort,
    /// No Service has this address, which is in a service CIDR.
    UnusedClusterIp,
    /// A node port, at an address that does not serve node ports.
    NodePortNotServedHere,
    /// The iptables mode has no rule for what this node sends to external addresses without endpoints.
    UncheckedFromNode,
    /// The proxy itself listens there, for the health checks of load balancers.
    HealthCheck,
    /// Node ports are served at 127.0.0.1, so only loopback addresses may send there.
    LoopbackOnly,
    NoService,
}

/// The answer to the health checks of load balancers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheckAnswer {
    pub namespace: String,
    pub service: String,
    /// Ready endpoints on this node.
    pub local_endpoints: usize,
    pub proxy_is_healthy: bool,
    /// The HTTP status.
    pub status: u16,
    /// Why the proxy cannot listen there, if it cannot.
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

/// An endpoint that the packet may go to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    pub address: SocketAddr,
    pub probability: f64,
    pub on_this_node: bool,
    /// Its weight, if those of the endpoints differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Why the packet is masqueraded; `None` if it is not.
    pub masquerade: Option<Masquerade>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Masquerade {
    /// `masqueradeAll`: everything that goes to cluster IPs.
    All,
    /// To a cluster IP, from outside the cluster.
    NotFromPod,
    /// To an external address with policy Cluster: replies have to come back through this node.
    External,
    /// From this node to an external address with policy Local, or to a cluster IP in the ipvs mode without a way to recognize pods.
    FromNode,
    /// Back to the pod that sent it.
    Hairpin,
}

/// An annotation that is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IgnoredAnnotation {
    /// The EndpointSlice; `None` if it is one of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    pub annotation: String,
    pub value: String,
    pub reason: IgnoredReason,
}

/// An endpoint that the packet cannot go to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnusedEndpoint {
    pub address: SocketAddr,
    pub on_this_node: bool,
    pub reason: UnusedReason,
    /// The zones that hints reserve the endpoint for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UnusedReason {
    NotReady,
    Draining,
    WithoutWeight,
    Gone,
    OnAnotherNode,
    ForOtherNodes,
    ForOtherZones,
}

impl From<PacketVerdict> for Fate {
    /// The fate of a packet that is not translated.
    fn from(verdict: PacketVerdict) -> Self {
        match verdict {
            PacketVerdict::Accept => Self::Untouched,
            PacketVerdict::Reject => Self::Refused,
            PacketVerdict::Drop => Self::Dropped,
        }
    }
}

impl RuleContext {
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
    pub(super) fn of(claim: &CurrentServicePort<'_>, kind: FrontendKind, short_circuit: bool) -> Self {
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
