//! The wires between namespaces and the addresses on them.

use std::net::IpAddr;

use model::address::Family;

use crate::namespace::Namespace;

/// A node with two pods, a client outside the cluster, and another node's pods.
#[derive(Debug)]
pub struct Network {
    pub node: Namespace,
    pub pods: Vec<Pod>,
    pub client: Namespace,
    /// Holds the addresses of all pods of the other node.
    pub remote: Namespace,
}

/// A pod of this node.
#[derive(Debug)]
pub struct Pod {
    pub namespace: Namespace,
    pub v4: IpAddr,
    pub v6: IpAddr,
}

/// Both addresses of one host.
fn pair(v4: &str, v6: &str) -> [IpAddr; 2] {
    [v4.parse().unwrap(), v6.parse().unwrap()]
}

pub fn node_ip(family: Family) -> IpAddr {
    of(family, pair("192.0.2.11", "2001:db8:2::11"))
}

/// The address the node has where pods of the other node see it.
pub fn node_ip_towards_remote(family: Family) -> IpAddr {
    of(family, pair("198.51.100.11", "2001:db8:3::11"))
}

pub fn bridge_ip(family: Family) -> IpAddr {
    of(family, pair("10.244.0.1", "fd00:10:244::1"))
}

pub fn client_ip(family: Family) -> IpAddr {
    of(family, pair("192.0.2.200", "2001:db8:2::200"))
}

/// The address of a pod of the other node.
pub fn remote_pod_ip(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 244, 1, number].into(),
        Family::V6 => [0xfd00, 0x10, 0x244, 1, 0, 0, 0, number.into()].into(),
    }
}

pub fn pod_cidr(family: Family) -> &'static str {
    match family {
        Family::V4 => "10.244.0.0/16",
        Family::V6 => "fd00:10:244::/48",
    }
}

fn of(family: Family, [v4, v6]: [IpAddr; 2]) -> IpAddr {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

impl Pod {
    pub fn ip(&self, family: Family) -> IpAddr {
        of(family, [self.v4, self.v6])
    }
}

impl Network {
    /// `pods` on this node; the other node has as many as anyone asks for.
    pub fn new(pods: u8) -> Self {
        let node = Namespace::new();
        node.sysctl("ipv4/ip_forward", "1");
        node.sysctl("ipv6/conf/all/forwarding", "1");
        node.sysctl("ipv4/conf/all/send_redirects", "0");
        node.sysctl("ipv4/conf/default/send_redirects", "0");
        node.ip("link add cbr0 type bridge");
        address(&node, "cbr0", "10.244.0.1/24", "fd00:10:244::1/64");
        node.ip("link set cbr0 up");

        let client = Namespace::new();
        wire(&node, "eth0", &client);
        address(&node, "eth0", "192.0.2.11/24", "2001:db8:2::11/64");
        address(&client, "eth0", "192.0.2.200/24", "2001:db8:2::200/64");
        default_route(&client, "192.0.2.11", "2001:db8:2::11");

        let remote = Namespace::new();
        wire(&node, "eth1", &remote);
        address(&node, "eth1", "198.51.100.11/24", "2001:db8:3::11/64");
        address(&remote, "eth0", "198.51.100.12/24", "2001:db8:3::12/64");
        default_route(&remote, "198.51.100.11", "2001:db8:3::11");
        remote.ip("route add local 10.244.1.0/24 dev lo");
        remote.ip("-6 route add local fd00:10:244:1::/64 dev lo");
        remote.sysctl("ipv6/ip_nonlocal_bind", "1");
        node.ip("route add 10.244.1.0/24 via 198.51.100.12");
        node.ip("-6 route add fd00:10:244:1::/64 via 2001:db8:3::12");

        let pods = (0..pods).map(|number| pod(&node, number)).collect();
        Self { node, pods, client, remote }
    }
}

fn pod(node: &Namespace, number: u8) -> Pod {
    let namespace = Namespace::new();
    let port = format!("pod{number}");
    wire(node, &port, &namespace);
    // A connection that comes back to the pod it left goes out by the port it came in.
    node.ip(&format!("link set {port} master cbr0"));
    node.ip(&format!("link set {port} type bridge_slave hairpin on"));
    let host = number + 5;
    let (v4, v6) =
        (IpAddr::from([10, 244, 0, host]), IpAddr::from([0xfd00, 0x10, 0x244, 0, 0, 0, 0, host.into()]));
    // Pods talk through the node, also to each other: it must see both ways of every connection.
    address(&namespace, "eth0", &format!("{v4}/32"), &format!("{v6}/128"));
    default_route(&namespace, "10.244.0.1 dev eth0 onlink", "fd00:10:244::1 dev eth0 onlink");
    Pod { namespace, v4, v6 }
}

/// A cable from the node's `port` to the other's `eth0`.
fn wire(node: &Namespace, port: &str, other: &Namespace) {
    node.ip(&format!("link add {port} type veth peer name eth0 netns {}", other.path()));
    node.ip(&format!("link set {port} up"));
    other.ip("link set eth0 up");
}

fn address(namespace: &Namespace, interface: &str, v4: &str, v6: &str) {
    namespace.ip(&format!("address add {v4} dev {interface}"));
    namespace.ip(&format!("address add {v6} dev {interface}"));
}

fn default_route(namespace: &Namespace, v4: &str, v6: &str) {
    namespace.ip(&format!("route add default via {v4}"));
    namespace.ip(&format!("-6 route add default via {v6}"));
}
