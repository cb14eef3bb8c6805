//! Every row of the packet matrix, proven by packets.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::names::Protocol;
use tests::network::{Network, bridge_ip, client_ip, node_ip, node_ip_towards_remote, remote_pod_ip};
use tests::node::{NODE_NAME, Node, Options};
use tests::talk::{Answer, Server, ask};

/// The endpoints of every service here: one on this node, one on the other.
struct Lab {
    network: Network,
    family: Family,
    _servers: Vec<Server>,
}

const PORT: u16 = 8080;

impl Lab {
    fn new(family: Family) -> Self {
        let network = Network::new(2);
        let local = SocketAddr::new(network.pods[0].ip(family), PORT);
        let remote = SocketAddr::new(remote_pod_ip(family, 5), PORT);
        let servers =
            vec![Server::start(&network.pods[0].namespace, local), Server::start(&network.remote, remote)];
        Self { network, family, _servers: servers }
    }

    fn ip(&self, v4: &str, v6: &str) -> IpAddr {
        match self.family {
            Family::V4 => v4.parse().unwrap(),
            Family::V6 => v6.parse().unwrap(),
        }
    }

    fn cluster_ip(&self) -> IpAddr {
        self.ip("10.96.0.10", "fd00:10:96::10")
    }

    fn external_ip(&self) -> IpAddr {
        self.ip("203.0.113.5", "2001:db8:5::5")
    }

    fn load_balancer_ip(&self) -> IpAddr {
        self.ip("203.0.113.6", "2001:db8:5::6")
    }

    /// A service with every kind of frontend, and its endpoints.
    fn service(&self, protocol: Protocol, policies: &str) -> String {
        let (cluster, external, balancer) = (self.cluster_ip(), self.external_ip(), self.load_balancer_ip());
        let (local, remote) = (self.network.pods[0].ip(self.family), remote_pod_ip(self.family, 5));
        format!(
            "
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: LoadBalancer
  clusterIP: '{cluster}'
  externalIPs: ['{external}']
  ports: [{{port: 80, nodePort: 30080, protocol: {protocol}}}]
  healthCheckNodePort: 30999
{policies}
status: {{loadBalancer: {{ingress: [{{ip: '{balancer}'}}]}}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}
addressType: {family}
ports: [{{port: {PORT}, protocol: {protocol}}}]
endpoints:
- {{addresses: ['{local}'], nodeName: {NODE_NAME}}}
- {{addresses: ['{remote}'], nodeName: node-2}}
",
            family = self.family,
        )
    }
}

#[test]
fn a_pod_reaches_the_endpoints_of_a_cluster_ip() {
    for family in Family::BOTH {
        let lab = Lab::new(family);
        let mut node = Node::new(&lab.network.node, family, &Options::default());
        node.apply(&lab.service(Protocol::Tcp, ""));
        let mut seen = BTreeSet::new();
        for _ in 0..40 {
            seen.insert(ask(
                &lab.network.pods[1].namespace,
                Protocol::Tcp,
                SocketAddr::new(lab.cluster_ip(), 80),
            ));
        }
        let client = lab.network.pods[1].ip(family);
        let from = |ip| Answer::From { endpoint: SocketAddr::new(ip, PORT), client };
        assert_eq!(seen, [from(lab.network.pods[0].ip(family)), from(remote_pod_ip(family, 5))].into());
        let _ = (bridge_ip(family), client_ip(family), node_ip(family), node_ip_towards_remote(family));
    }
}
