//! The clients, endpoints and frontends that the packet tests share, and their addresses.

use std::net::{IpAddr, SocketAddr};

use model::address::Family;

use crate::namespace::Namespace;
use crate::network::{
    Network, another_client_ip, bridge_ip, client_ip, far_pod_ip, node_ip, node_ip_towards_remote, of,
    remote_pod_ip,
};
use crate::probe::Server;

/// A network with servers at every [`Place`].
#[derive(Debug)]
pub struct Lab {
    pub network: Network,
    _servers: Vec<Server>,
}

/// Where an endpoint runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The first pod of this node.
    PodA,
    PodB,
    /// A pod of the second node, by the last part of its address.
    Remote(u8),
    /// The node itself, at its main address.
    Host,
}

/// Where a client runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientPlace {
    /// A pod of this node that is never an endpoint.
    Pod,
    /// The first pod of this node, which is an endpoint of most services.
    PodA,
    Node,
    /// A client outside the cluster.
    Outside,
    /// [`CROWD`] clients outside the cluster, one after the other.
    Crowd,
    /// A pod of the third node that uses this node as its router.
    RemotePod,
}

/// A destination address, by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    ClusterIp,
    OtherClusterIp,
    /// In the Service CIDR, but of no Service.
    UnusedClusterIp,
    ExternalIp,
    LoadBalancerIp,
    OtherLoadBalancerIp,
    NodeIp,
    NodeIpTowardsRemote,
    BridgeIp,
    Loopback,
}

/// The name of the node.
pub const NODE_NAME: &str = "node-1";

/// The ports that endpoints listen on.
pub const TARGET: u16 = 8080;
pub const OTHER_TARGET: u16 = 8081;
/// The node port of the first port of a Service. The node runs a server of its own there, which answers packets that the
/// proxy does not translate.
pub const NODE_PORT: u16 = 30080;

/// Enough random choices to miss one of three endpoints less than once in 10^10 runs.
pub const CROWD: usize = 64;

impl Lab {
    pub fn new() -> Self {
        Self::on(Network::new(3))
    }

    /// With servers in `network`, which has at least three pods.
    pub fn on(network: Network) -> Self {
        let mut servers = Vec::new();
        let places = [(&network.pods[0].namespace, Place::PodA), (&network.pods[1].namespace, Place::PodB)];
        for (namespace, place) in places {
            servers.push(Server::start_all(namespace, &listen_addresses(&[place])));
        }
        servers.push(Server::start_all(
            &network.remote,
            &listen_addresses(&[Place::Remote(5), Place::Remote(6)]),
        ));
        let mut on_node = listen_addresses(&[Place::Host]);
        for family in Family::BOTH {
            let addresses =
                [Address::NodeIp, Address::NodeIpTowardsRemote, Address::BridgeIp, Address::Loopback];
            on_node.extend(addresses.map(|address| SocketAddr::new(address.ip(family), NODE_PORT)));
        }
        servers.push(Server::start_all(&network.node, &on_node));
        Self { network, _servers: servers }
    }

    pub fn namespace(&self, from: ClientPlace) -> &Namespace {
        match from {
            ClientPlace::Pod => &self.network.pods[2].namespace,
            ClientPlace::PodA => &self.network.pods[0].namespace,
            ClientPlace::Node => &self.network.node,
            ClientPlace::Outside | ClientPlace::Crowd => &self.network.client,
            ClientPlace::RemotePod => &self.network.far,
        }
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

fn listen_addresses(places: &[Place]) -> Vec<SocketAddr> {
    let each = Family::BOTH.into_iter().flat_map(|family| places.iter().map(move |place| place.ip(family)));
    each.flat_map(|ip| [TARGET, OTHER_TARGET].map(|port| SocketAddr::new(ip, port))).collect()
}

impl Place {
    pub fn ip(self, family: Family) -> IpAddr {
        match self {
            Self::PodA => of(family, ["10.244.0.5", "fd00:10:244::5"]).parse().unwrap(),
            Self::PodB => of(family, ["10.244.0.6", "fd00:10:244::6"]).parse().unwrap(),
            Self::Remote(number) => remote_pod_ip(family, number),
            Self::Host => node_ip(family),
        }
    }

    /// Whether the endpoint runs on this node.
    pub fn is_local(self) -> bool {
        match self {
            Self::PodA | Self::PodB | Self::Host => true,
            Self::Remote(_) => false,
        }
    }

    /// The source addresses that an endpoint at this place may see of a masqueraded client.
    pub fn masquerade_ips(self, family: Family) -> Vec<IpAddr> {
        match self {
            Self::PodA | Self::PodB => vec![bridge_ip(family)],
            Self::Remote(_) => vec![node_ip_towards_remote(family)],
            Self::Host => Network::node_ips(family).into(),
        }
    }
}

impl ClientPlace {
    /// The source address to bind to; `None` leaves the choice to the kernel.
    pub fn source(self, family: Family, attempt: usize) -> Option<IpAddr> {
        match self {
            Self::Pod | Self::PodA | Self::Node => None,
            Self::Outside => Some(client_ip(family)),
            Self::Crowd => Some(another_client_ip(family, u8::try_from(attempt % CROWD).unwrap() + 1)),
            Self::RemotePod => Some(far_pod_ip(family)),
        }
    }

    /// The interface of the node that receives packets of this client; `None` for the node itself.
    pub fn interface(self) -> Option<&'static str> {
        match self {
            Self::Pod | Self::PodA => Some("cbr0"),
            Self::Outside | Self::Crowd => Some("eth0"),
            Self::RemotePod => Some("eth2"),
            Self::Node => None,
        }
    }

    /// The source address of packets to `to`.
    pub fn ip(self, family: Family, attempt: usize, to: IpAddr) -> IpAddr {
        self.source(family, attempt).unwrap_or_else(|| match self {
            Self::PodA => Place::PodA.ip(family),
            Self::Pod => of(family, ["10.244.0.7", "fd00:10:244::7"]).parse().unwrap(),
            Self::Node if Network::node_ips(family).contains(&to) => to,
            Self::Node => node_ip(family),
            Self::Outside | Self::Crowd | Self::RemotePod => unreachable!("they have a fixed source"),
        })
    }
}

impl Address {
    pub fn ip(self, family: Family) -> IpAddr {
        let pair = match self {
            Self::ClusterIp => ["10.96.0.10", "fd00:10:96::10"],
            Self::OtherClusterIp => ["10.96.0.11", "fd00:10:96::11"],
            Self::UnusedClusterIp => ["10.96.0.99", "fd00:10:96::99"],
            Self::ExternalIp => ["203.0.113.5", "2001:db8:5::5"],
            Self::LoadBalancerIp => ["203.0.113.6", "2001:db8:5::6"],
            Self::OtherLoadBalancerIp => ["203.0.113.7", "2001:db8:5::7"],
            Self::NodeIp => return node_ip(family),
            Self::NodeIpTowardsRemote => return node_ip_towards_remote(family),
            Self::BridgeIp => return bridge_ip(family),
            Self::Loopback => ["127.0.0.1", "::1"],
        };
        of(family, pair).parse().unwrap()
    }
}
