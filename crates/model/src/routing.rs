//! What one service port does on this node, in one IP family.
//!
//! All policy is decided here. Backends render a [`Routing`] into rules, `plan::flows` derives which conntrack entries are stale,
//! and `explain` describes it; only `explain` also reads the policies of a Service, to name them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::address::host_port;
use crate::hashing::ClientHash;
use crate::names::{Port, Protocol};
use crate::service::{Addresses, Created, ServiceInfo, ServicePortInfo, TrafficPolicy};
use crate::slices::Candidate;
use crate::topology::{Choice, Uses, choose};
use crate::weights::{DEFAULT_WEIGHT, Weight};

/// What one service port does on this node.
#[derive(Debug, PartialEq, Eq)]
pub struct Routing {
    pub protocol: Protocol,
    pub port: Port,
    pub node_port: Option<Port>,
    pub addresses: Arc<Addresses>,
    /// When the Service was created. If several Services claim a frontend, the oldest gets it.
    pub created: Created,
    /// Session affinity: seconds for which a client keeps its endpoint.
    pub affinity: Option<u32>,
    /// Clients are hashed to endpoints; `None` if these are chosen at random.
    pub hash: Option<ClientHash>,

    /// The endpoints for traffic that may go to any node, sorted by their text.
    pub cluster: Arc<[Endpoint]>,
    /// The endpoints for traffic that must stay on this node, sorted by their text.
    pub local: Arc<[Endpoint]>,
    /// `None` if no endpoint of the Service has a weight of its own, used or not.
    pub weights: Option<Box<ListWeights>>,

    /// What happens to traffic to the cluster IP.
    pub internal: Traffic,
    /// What happens to traffic from outside the cluster to external addresses and the node port. Meaningless if there are none.
    pub external: Traffic,
    /// Whether `external` traffic keeps the client's address (external policy Local). If so, traffic to external addresses
    /// from pods and from this node goes to `cluster` directly, and only that of this node is masqueraded; if not, all traffic
    /// to external addresses is handled alike and masqueraded.
    pub preserves_client: bool,
    /// Whether the load-balancer source ranges contain this node's address, so that the node may use the load-balancer IPs.
    /// Meaningless without ranges.
    pub ranges_admit_node: bool,
    /// Also true for external IPs that a feature gate disables: see [`ServiceInfo::has_external_ips`].
    pub is_externally_accessible: bool,
    /// The port at which load balancers check whether this node has endpoints; the same for all ports of a Service.
    pub health_check_node_port: Option<Port>,

    /// UDP only: endpoints whose existing flows are not stale, even if policy excludes them for new ones.
    pub serving: Arc<[Endpoint]>,
}

/// What happens to traffic, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// To one of [`Routing::cluster`].
    ToCluster,
    /// To one of [`Routing::local`].
    ToLocal,
    /// Rejected: no usable endpoint exists in the cluster.
    RejectNoEndpoints,
    /// Dropped: endpoints exist, but none on this node, which policy requires. A load balancer tries another node.
    DropNoLocalEndpoints,
}

/// The weights of the endpoints of both lists, in their order; never zero. Empty if those of a list do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListWeights {
    pub cluster: Box<[Weight]>,
    pub local: Box<[Weight]>,
}

/// An address and port that may receive traffic. As numerous as pods, so its size matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub ip: IpAddr,
    /// On this node. Only then can a pod's connection to a Service be sent back to the same pod.
    pub local: bool,
    pub port: Port,
}

const _: () = assert!(size_of::<Endpoint>() <= 20);

/// An address, protocol and port that clients use to reach a service port; the protocol is that of the routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frontend {
    ClusterIp(SocketAddr),
    ExternalIp(SocketAddr),
    LoadBalancerIp(SocketAddr),
    /// On all addresses of the node that serve node ports.
    NodePort(Port),
}

impl Routing {
    /// Decides what one port of a Service does. `candidates` are sorted by their text.
    pub fn decide(
        service: &ServiceInfo,
        port: &ServicePortInfo,
        hash: Option<ClientHash>,
        candidates: &[Candidate],
        zone: Option<&str>,
        node_ip: IpAddr,
    ) -> Self {
        let internal_local = service.internal_policy == TrafficPolicy::Local;
        let external_local = service.external_policy == TrafficPolicy::Local;
        let is_externally_accessible = service.is_externally_accessible(port);
        let uses = Uses {
            // With external policy Local, traffic from pods and from this node needs them.
            cluster: !internal_local || is_externally_accessible,
            local: internal_local || (external_local && is_externally_accessible),
        };
        let choice = choose(candidates, uses, zone);
        let cluster = endpoints(choice.cluster.iter().copied(), &[]);
        let local = endpoints(choice.local.iter().copied(), &[&cluster]);
        let serving = match port.protocol {
            Protocol::Udp => {
                // An endpoint published though it is not ready counts as ready, and rules choose it. Upstream deletes its
                // flows with every sync.
                let serving = candidates.iter().filter(|c| c.conditions.serving || c.conditions.ready);
                endpoints(serving, &[&cluster, &local])
            }
            Protocol::Tcp | Protocol::Sctp => Arc::default(),
        };
        Self {
            protocol: port.protocol,
            port: port.port,
            node_port: port.node_port,
            addresses: service.addresses.clone(),
            created: service.created,
            affinity: service.affinity,
            hash,
            internal: traffic(service.internal_policy, &choice),
            external: traffic(service.external_policy, &choice),
            cluster,
            local,
            weights: candidates.iter().any(|it| it.weight != DEFAULT_WEIGHT).then(|| {
                let (cluster, local) = (weights(&choice.cluster), weights(&choice.local));
                ListWeights { cluster, local }.into()
            }),
            preserves_client: external_local,
            ranges_admit_node: service.addresses.source_ranges.iter().any(|range| range.contains(&node_ip)),
            is_externally_accessible,
            health_check_node_port: service.health_check_node_port,
            serving,
        }
    }

    /// All frontends: cluster IP, external IPs, load-balancer IPs, node port, in this order.
    pub fn frontends(&self) -> impl Iterator<Item = Frontend> {
        let port = self.port.get();
        let at = move |ip: &IpAddr| SocketAddr::new(*ip, port);
        let addresses = &self.addresses;
        [Frontend::ClusterIp(at(&addresses.cluster_ip))]
            .into_iter()
            .chain(addresses.external_ips.iter().map(at).map(Frontend::ExternalIp))
            .chain(addresses.load_balancer_ips.iter().map(at).map(Frontend::LoadBalancerIp))
            .chain(self.node_port.map(Frontend::NodePort))
    }

    /// The endpoints that traffic may reach; none if it is rejected or dropped.
    pub fn endpoints(&self, traffic: Traffic) -> &[Endpoint] {
        match traffic {
            Traffic::ToCluster => &self.cluster,
            Traffic::ToLocal => &self.local,
            Traffic::RejectNoEndpoints | Traffic::DropNoLocalEndpoints => &[],
        }
    }

    /// The weights of [`Self::endpoints`]; empty if they are alike.
    pub fn weights(&self, traffic: Traffic) -> &[Weight] {
        let weights = self.given_weights(traffic);
        let are_alike = weights.windows(2).all(|pair| matches!(pair, [a, b] if a == b));
        if are_alike { &[] } else { weights }
    }

    /// The weights of [`Self::endpoints`], also if they are alike. Empty if no endpoint of the Service has a weight of its own, or if
    /// those of the list do not count.
    pub fn given_weights(&self, traffic: Traffic) -> &[Weight] {
        match (&self.weights, traffic) {
            (Some(weights), Traffic::ToCluster) => &weights.cluster,
            (Some(weights), Traffic::ToLocal) => &weights.local,
            (None, _) | (Some(_), Traffic::RejectNoEndpoints | Traffic::DropNoLocalEndpoints) => &[],
        }
    }

    /// What happens to traffic to external addresses that comes from a pod or from this node.
    pub fn external_from_inside(&self) -> Traffic {
        if self.preserves_client && !self.cluster.is_empty() { Traffic::ToCluster } else { self.external }
    }

    /// Whether a usable endpoint exists anywhere in the cluster.
    pub fn has_endpoints(&self) -> bool {
        self.internal != Traffic::RejectNoEndpoints
    }

    /// Every endpoint that traffic from this node may reach, without duplicates, sorted by its text.
    pub fn reachable(&self) -> Vec<Endpoint> {
        if self.local.is_empty() {
            return self.cluster.to_vec();
        }
        let mut all = [&*self.cluster, &*self.local].concat();
        // Byte by byte, as upstream sorts: `10.0.0.17:80` comes before `10.0.0.6:80`.
        all.sort_by_cached_key(Endpoint::to_string);
        all.dedup();
        all
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&host_port(self.ip, self.port.get()))
    }
}

fn traffic(policy: TrafficPolicy, choice: &Choice) -> Traffic {
    match policy {
        TrafficPolicy::Cluster if !choice.cluster.is_empty() => Traffic::ToCluster,
        TrafficPolicy::Local if !choice.local.is_empty() => Traffic::ToLocal,
        TrafficPolicy::Local if choice.has_any => Traffic::DropNoLocalEndpoints,
        TrafficPolicy::Cluster | TrafficPolicy::Local => Traffic::RejectNoEndpoints,
    }
}

/// If none is ready, terminating endpoints are used, and those of weight zero like the others.
fn weights(chosen: &[&Candidate]) -> Box<[Weight]> {
    if chosen.iter().any(|candidate| candidate.weight == 0) {
        return Box::default();
    }
    chosen.iter().map(|candidate| candidate.weight).collect()
}

/// A list of endpoints, which shares the allocation of an equal one in `same_as`.
fn endpoints<'a>(
    chosen: impl Iterator<Item = &'a Candidate>,
    same_as: &[&Arc<[Endpoint]>],
) -> Arc<[Endpoint]> {
    let list: Vec<Endpoint> =
        chosen.map(|c| Endpoint { ip: c.ip, local: c.conditions.local, port: c.port }).collect();
    match same_as.iter().find(|other| other[..] == list[..]) {
        Some(other) => (*other).clone(),
        // Unlike a conversion, the default does not allocate.
        None if list.is_empty() => Arc::default(),
        None => list.into(),
    }
}
