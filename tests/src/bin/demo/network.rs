//! The demo's own small network: as much as its first lines of output can draw.
//!
//! The lab's [`testkit::network`] has more to it than a visitor wants to be told.

use testkit::namespace::Namespace;

use crate::stage::Pod;

#[derive(Debug)]
pub struct Network {
    pub node: Namespace,
    pub client: Namespace,
    pods: [Namespace; 3],
}

impl Network {
    pub fn new() -> Self {
        let network = Self {
            node: Namespace::new(),
            client: Namespace::new(),
            pods: Pod::ALL.map(|_| Namespace::new()),
        };
        let Self { node, client, .. } = &network;
        node.sysctl("ipv4/ip_forward", "1");
        wire(node, "eth0", client);
        node.ip("address add 192.0.2.11/24 dev eth0");
        client.ip("address add 192.0.2.200/24 dev eth0");

        node.ip("link add cbr0 type bridge");
        node.ip("link set cbr0 up");
        node.ip("address add 10.244.0.1/24 dev cbr0");
        for pod in Pod::ALL {
            wire(node, pod.name(), network.pod(pod));
            // A connection that comes back to the pod it left goes out by the port it came in.
            node.ip(&format!("link set {} master cbr0", pod.name()));
            node.ip(&format!("link set {} type bridge_slave hairpin on", pod.name()));
            // Pods talk through the node, also to each other: it must see both ways of every connection.
            network.pod(pod).ip(&format!("address add {}/32 dev eth0", pod.ip()));
            network.pod(pod).ip("route add default via 10.244.0.1 dev eth0 onlink");
        }
        network
    }

    pub fn pod(&self, pod: Pod) -> &Namespace {
        let [a, b, c] = &self.pods;
        match pod {
            Pod::A => a,
            Pod::B => b,
            Pod::C => c,
        }
    }
}

/// A cable from the node's `port` to the other's `eth0`.
fn wire(node: &Namespace, port: &str, other: &Namespace) {
    node.ip(&format!("link add {port} type veth peer name eth0 netns {}", other.path()));
    node.ip(&format!("link set {port} up"));
    other.ip("link set eth0 up");
}
