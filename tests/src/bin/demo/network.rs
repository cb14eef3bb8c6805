//! The network of the demo, small enough to draw in its first lines of output. [`testkit::network`] is larger.

use testkit::namespace::Namespace;

use crate::cluster::DemoPod;

#[derive(Debug)]
pub struct DemoNetwork {
    pub node: Namespace,
    pub client: Namespace,
    pods: [Namespace; 3],
}

impl DemoNetwork {
    pub fn new() -> Self {
        let network = Self {
            node: Namespace::new(),
            client: Namespace::new(),
            pods: DemoPod::ALL.map(|_| Namespace::new()),
        };
        let Self { node, client, .. } = &network;
        node.sysctl("ipv4/ip_forward", "1");
        connect(node, "eth0", client);
        node.ip("address add 192.0.2.11/24 dev eth0");
        client.ip("address add 192.0.2.200/24 dev eth0");

        node.ip("link add cbr0 type bridge");
        node.ip("link set cbr0 up");
        node.ip("address add 10.244.0.1/24 dev cbr0");
        for pod in DemoPod::ALL {
            connect(node, pod.name(), network.pod(pod));
            // A pod that reaches itself through a Service: the bridge sends the packet back out of the port it came in.
            node.ip(&format!("link set {} master cbr0", pod.name()));
            node.ip(&format!("link set {} type bridge_slave hairpin on", pod.name()));
            // A /32 route sends even traffic between pods through the node, which must see both directions.
            network.pod(pod).ip(&format!("address add {}/32 dev eth0", pod.ip()));
            network.pod(pod).ip("route add default via 10.244.0.1 dev eth0 onlink");
        }
        network
    }

    pub fn pod(&self, pod: DemoPod) -> &Namespace {
        let [a, b, c] = &self.pods;
        match pod {
            DemoPod::A => a,
            DemoPod::B => b,
            DemoPod::C => c,
        }
    }
}

/// A veth pair between `port` of the node and `eth0` of `other`.
fn connect(node: &Namespace, port: &str, other: &Namespace) {
    node.ip(&format!("link add {port} type veth peer name eth0 netns {}", other.path()));
    node.ip(&format!("link set {port} up"));
    other.ip("link set eth0 up");
}
