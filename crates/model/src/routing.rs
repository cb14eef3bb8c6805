//! What one service port does on this node, in one IP family: the model's only output.
//!
//! Everything is decided here. A backend turns a [`Routing`] into rules, the conntrack cleaner into flows that are
//! still right, `explain` into sentences; none of them asks about policies again.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::address::host_port;
use crate::names::{Port, Protocol};
use crate::service::{Addresses, Created, Service, ServicePort, TrafficPolicy};
use crate::slices::Candidate;
use crate::topology::{Choice, Uses, choose};

/// What one service port does on this node.
#[derive(Debug, PartialEq, Eq)]
pub struct Routing {
    pub protocol: Protocol,
    pub port: Port,
    pub node_port: Option<Port>,
    pub addresses: Arc<Addresses>,
    /// Of the Service: among several that claim a frontend the one created first gets it.
    pub created: Created,
    /// Seconds a client sticks to the endpoint it got first.
    pub affinity: Option<u32>,

    /// The endpoints for traffic that may go to any node, ordered by their text.
    pub cluster: Arc<[Endpoint]>,
    /// The endpoints for traffic that must stay here.
    pub local: Arc<[Endpoint]>,

    /// What traffic to the cluster IP gets.
    pub internal: Traffic,
    /// What traffic from outside to external addresses and the node port gets. Without meaning where there are none.
    pub external: Traffic,
    /// Whether `external` reaches its endpoint with the client's own address (external policy Local). If so, traffic
    /// to external addresses from pods and from this node takes a short circuit to `cluster`, and only this node's
    /// is masqueraded; if not, all of it goes one way and all of it is masqueraded.
    pub preserves_client: bool,
    /// Whether load-balancer source ranges, if there are any, admit this node, and with it what it sends to the load
    /// balancer's IP.
    pub ranges_admit_node: bool,
    /// True also for external IPs that a feature gate keeps from being served: see [`Service::has_external_ips`].
    pub is_externally_accessible: bool,
    /// The port at which load balancers ask whether this node has endpoints; the same for all ports of a Service.
    pub health_check_node_port: Option<Port>,

    /// UDP only: endpoints whose flows are still right, whatever policy says about new ones.
    pub serving: Arc<[Endpoint]>,
}

/// What happens to a kind of traffic, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// To one of [`Routing::cluster`].
    ToCluster,
    /// To one of [`Routing::local`].
    ToLocal,
    /// Refused: no usable endpoint exists anywhere.
    RejectNoEndpoints,
    /// Left unanswered: endpoints exist but policy wants them on this node. A load balancer tries the next node.
    DropNoLocalEndpoints,
}

/// An address and port that may receive traffic. There are as many of these as pods behind Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub ip: IpAddr,
    /// On this node: the only place a connection can come back to the pod it left.
    pub local: bool,
    pub port: Port,
}

const _: () = assert!(size_of::<Endpoint>() <= 20);

/// What clients use to reach a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frontend {
    ClusterIp(SocketAddr),
    ExternalIp(SocketAddr),
    LoadBalancerIp(SocketAddr),
    /// On whichever addresses of the node serve node ports.
    NodePort(Port),
}

impl Routing {
    /// Decides everything about one port of a Service from its candidates, which come ordered by their text.
    pub fn decide(
        service: &Service,
        port: &ServicePort,
        candidates: &[Candidate],
        zone: Option<&str>,
        node_ip: IpAddr,
    ) -> Self {
        let internal_local = service.internal_policy == TrafficPolicy::Local;
        let external_local = service.external_policy == TrafficPolicy::Local;
        let is_externally_accessible = service.is_externally_accessible(port);
        let uses = Uses {
            // External policy Local needs them too, for the short circuit.
            cluster: !internal_local || is_externally_accessible,
            local: internal_local || (external_local && is_externally_accessible),
        };
        let choice = choose(candidates, uses, zone);
        let cluster = endpoints(choice.cluster.iter().copied(), &[]);
        let local = endpoints(choice.local.iter().copied(), &[&cluster]);
        let serving = match port.protocol {
            Protocol::Udp => {
                // One that is published though it is not ready counts as ready, and rules choose it. The reference would
                // end the flows to it again and again.
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
            internal: traffic(service.internal_policy, &choice),
            external: traffic(service.external_policy, &choice),
            cluster,
            local,
            preserves_client: external_local,
            ranges_admit_node: service.addresses.source_ranges.iter().any(|range| range.contains(&node_ip)),
            is_externally_accessible,
            health_check_node_port: service.health_check_node_port,
            serving,
        }
    }

    /// Every way in, in the order: cluster IP, external IPs, load-balancer IPs, node port.
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

    /// The endpoints a kind of traffic may get; none when it is refused or dropped.
    pub fn endpoints(&self, traffic: Traffic) -> &[Endpoint] {
        match traffic {
            Traffic::ToCluster => &self.cluster,
            Traffic::ToLocal => &self.local,
            Traffic::RejectNoEndpoints | Traffic::DropNoLocalEndpoints => &[],
        }
    }

    /// What traffic to external addresses gets when it comes from a pod or from this node.
    pub fn external_from_inside(&self) -> Traffic {
        if self.preserves_client && !self.cluster.is_empty() { Traffic::ToCluster } else { self.external }
    }

    /// Whether a usable endpoint exists anywhere in the cluster.
    pub fn has_endpoints(&self) -> bool {
        self.internal != Traffic::RejectNoEndpoints
    }

    /// Every endpoint some traffic may get from here, each once, ordered by its text.
    pub fn reachable(&self) -> Vec<Endpoint> {
        if self.local.is_empty() {
            return self.cluster.to_vec();
        }
        let mut all = [&*self.cluster, &*self.local].concat();
        // The order of the reference, byte by byte: `10.0.0.17:80` comes before `10.0.0.6:80`.
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

/// A list of endpoints, shared with one that says the same where there is one.
fn endpoints<'a>(
    chosen: impl Iterator<Item = &'a Candidate>,
    same_as: &[&Arc<[Endpoint]>],
) -> Arc<[Endpoint]> {
    let list: Vec<Endpoint> =
        chosen.map(|c| Endpoint { ip: c.ip, local: c.conditions.local, port: c.port }).collect();
    match same_as.iter().find(|other| other[..] == list[..]) {
        Some(other) => (*other).clone(),
        // Unlike a conversion, the default takes no memory.
        None if list.is_empty() => Arc::default(),
        None => list.into(),
    }
}
