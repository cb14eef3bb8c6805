//! The Services that clients use. They exist throughout, and the first pod of the node is always one of their endpoints.

use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use serde_json::{Value, json};
use testkit::echo;
use testkit::lab::{Address, Place, TARGET};
use testkit::network::node_ip;
use tests::cluster::objects;
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

/// A Service with every kind of frontend, and one with session affinity.
pub const NAMES: [&str; 2] = ["web", "sticky"];
/// All endpoints. Those after the first come and go.
pub const PLACES: [Place; 3] = [Place::PodA, Place::PodB, Place::Remote(5)];
/// Short, so that the kernel forgets clients soon after their last connection.
const AFFINITY_SECONDS: u32 = 5;
const ECHO_PORT: u16 = 7;
const ECHO_TARGET: u16 = 8082;

/// The frontends of one family.
#[derive(Debug)]
pub struct Targets {
    pub cluster_ip: SocketAddr,
    pub echo_cluster_ip: SocketAddr,
    pub sticky_cluster_ip: SocketAddr,
    pub load_balancer_ip: SocketAddr,
    pub node_port_tcp: SocketAddr,
    pub node_port_udp: SocketAddr,
    pub echo_node_port: SocketAddr,
}

pub fn create(cluster: &TestCluster) -> [Targets; 2] {
    for family in Family::BOTH {
        let network = &cluster.lab.network;
        for (namespace, place) in
            [&network.pods[0].namespace, &network.pods[1].namespace, &network.remote].into_iter().zip(PLACES)
        {
            echo::serve(namespace, SocketAddr::new(place.ip(family), ECHO_TARGET));
        }
    }
    let port = |name, protocol, port, target| json!({"name": name, "protocol": protocol, "port": port, "targetPort": target});
    let web = json!({
        "spec": {
            "type": "LoadBalancer",
            "ports": [
                port("tcp", "TCP", 80, TARGET),
                port("udp", "UDP", 80, TARGET),
                port("echo", "TCP", ECHO_PORT, ECHO_TARGET),
            ],
            // The network of the client outside the cluster.
            "loadBalancerSourceRanges": ["192.0.2.0/24", "2001:db8:2::/64"],
        },
    });
    let web = cluster.api().create(&cluster.services(), &objects::with(objects::service("web"), web));
    let ips = Family::BOTH.map(|family| json!({"ip": Address::LoadBalancerIp.ip(family)}));
    let status = json!({"status": {"loadBalancer": {"ingress": ips}}});
    cluster.api().patch(&format!("{}/status", cluster.service("web")), &status);
    let affinity = json!({"spec": {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}},
    }});
    let sticky =
        cluster.api().create(&cluster.services(), &objects::with(objects::service("sticky"), affinity));
    for name in NAMES {
        for family in Family::BOTH {
            cluster.api().create(&cluster.slices(), &slice(name, family, &PLACES));
        }
    }
    let node_port = |name: &str| {
        let ports = web["spec"]["ports"].as_array().unwrap();
        let port = ports.iter().find(|port| port["name"] == name).unwrap();
        u16::try_from(port["nodePort"].as_u64().unwrap()).unwrap()
    };
    let at = |ip: IpAddr, port| SocketAddr::new(ip, port);
    Family::BOTH.map(|family| Targets {
        cluster_ip: cluster_ip(&web, family),
        echo_cluster_ip: at(cluster_ip(&web, family).ip(), ECHO_PORT),
        sticky_cluster_ip: cluster_ip(&sticky, family),
        load_balancer_ip: at(Address::LoadBalancerIp.ip(family), 80),
        node_port_tcp: at(node_ip(family), node_port("tcp")),
        node_port_udp: at(node_ip(family), node_port("udp")),
        echo_node_port: at(node_ip(family), node_port("echo")),
    })
}

/// The endpoints of a stable Service in one family.
pub fn slice(name: &str, family: Family, places: &[Place]) -> Value {
    let endpoints: Vec<_> = places.iter().map(|place| objects::endpoint(place.ip(family))).collect();
    let mut slice = objects::slice(name, family, &endpoints);
    let echo = json!({"name": "echo", "protocol": "TCP", "port": ECHO_TARGET});
    slice["ports"].as_array_mut().unwrap().push(echo);
    slice
}
