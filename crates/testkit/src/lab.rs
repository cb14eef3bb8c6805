//! The cast of every case: who asks, who answers, and what their addresses are.

use std::net::{IpAddr, SocketAddr};

use model::address::Family;

use crate::namespace::Namespace;
use crate::network::{
    Network, another_client_ip, bridge_ip, client_ip, far_pod_ip, node_ip, node_ip_towards_remote, of,
    remote_pod_ip,
};
use crate::talk::Server;

/// A network with servers at every [`Place`].
#[derive(Debug)]
pub struct Lab {
    pub network: Network,
    _servers: Vec<Server>,
}

/// Where endpoints are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The first pod of this node.
    PodA,
    PodB,
    /// A pod of another node, by number.
    Remote(u8),
    /// The node itself, at its main address.
    Host,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A pod of this node that is no endpoint.
    Pod,
    /// The first pod of this node, which is an endpoint of most services.
    PodA,
    Node,
    /// A client outside the cluster.
    Outside,
    /// Many clients outside the cluster, one after the other.
    Crowd,
    /// A pod of another node, sending its packets here.
    RemotePod,
}

/// An address that can be asked, or that a manifest names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    ClusterIp,
    OtherClusterIp,
    /// In the range of cluster IPs, but nobody's.
    UnusedClusterIp,
    ExternalIp,
    LoadBalancerIp,
    OtherLoadBalancerIp,
    NodeIp,
    NodeIpTowardsRemote,
    BridgeIp,
    Loopback,
}

/// The ports endpoints listen at.
pub const TARGET: u16 = 8080;
pub const OTHER_TARGET: u16 = 8081;
/// The node port of the first port of a service. The node has a server of its own there, which answers what the proxy
/// leaves alone.
pub const NODE_PORT: u16 = 30080;

/// How many clients are a crowd: enough to go to each of three endpoints, whatever chance says.
pub const CROWD: usize = 64;

impl Lab {
    pub fn new() -> Self {
        let network = Network::new(3);
        let mut servers = Vec::new();
        let places = [(&network.pods[0].namespace, Place::PodA), (&network.pods[1].namespace, Place::PodB)];
        for (namespace, place) in places {
            servers.push(Server::start_all(namespace, &served(&[place])));
        }
        servers.push(Server::start_all(&network.remote, &served(&[Place::Remote(5), Place::Remote(6)])));
        let mut at_node = served(&[Place::Host]);
        for family in Family::BOTH {
            let addresses =
                [Address::NodeIp, Address::NodeIpTowardsRemote, Address::BridgeIp, Address::Loopback];
            at_node.extend(addresses.map(|address| SocketAddr::new(address.ip(family), NODE_PORT)));
        }
        servers.push(Server::start_all(&network.node, &at_node));
        Self { network, _servers: servers }
    }

    pub fn namespace(&self, who: Who) -> &Namespace {
        match who {
            Who::Pod => &self.network.pods[2].namespace,
            Who::PodA => &self.network.pods[0].namespace,
            Who::Node => &self.network.node,
            Who::Outside | Who::Crowd => &self.network.client,
            Who::RemotePod => &self.network.far,
        }
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

fn served(places: &[Place]) -> Vec<SocketAddr> {
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

    pub fn is_here(self) -> bool {
        match self {
            Self::PodA | Self::PodB | Self::Host => true,
            Self::Remote(_) => false,
        }
    }

    /// The address a masqueraded client has there. The node talking to itself may use any it has.
    pub fn masquerade_ips(self, family: Family) -> Vec<IpAddr> {
        match self {
            Self::PodA | Self::PodB => vec![bridge_ip(family)],
            Self::Remote(_) => vec![node_ip_towards_remote(family)],
            Self::Host => Network::node_ips(family).into(),
        }
    }
}

impl Who {
    /// The address to ask from, unless the namespace has but one to choose.
    pub fn source(self, family: Family, attempt: usize) -> Option<IpAddr> {
        match self {
            Self::Pod | Self::PodA | Self::Node => None,
            Self::Outside => Some(client_ip(family)),
            Self::Crowd => Some(another_client_ip(family, u8::try_from(attempt % CROWD).unwrap() + 1)),
            Self::RemotePod => Some(far_pod_ip(family)),
        }
    }

    /// The interface of the node that its packets come in by.
    pub fn interface(self) -> Option<&'static str> {
        match self {
            Self::Pod | Self::PodA => Some("cbr0"),
            Self::Outside | Self::Crowd => Some("eth0"),
            Self::RemotePod => Some("eth2"),
            Self::Node => None,
        }
    }

    /// The address packets to that one leave with.
    pub fn ip(self, family: Family, attempt: usize, to: IpAddr) -> IpAddr {
        self.source(family, attempt).unwrap_or_else(|| match self {
            Self::PodA => Place::PodA.ip(family),
            Self::Pod => of(family, ["10.244.0.7", "fd00:10:244::7"]).parse().unwrap(),
            Self::Node if Network::node_ips(family).contains(&to) => to,
            Self::Node => node_ip(family),
            Self::Outside | Self::Crowd | Self::RemotePod => unreachable!("they have a source"),
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
