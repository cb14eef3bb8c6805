//! What becomes of packets: the program, with IPVS between its hooks.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::names::Protocol;
use plan::ipvs::desired::DesiredIpvs;
use plan::ipvs::plan::IpvsPlan;
use plan::nftables::interpreter::run;
use plan::nftables::program::{Program, ProgramSettings};
use plan::walk::{Packet, PacketContext, PacketVerdict};

use crate::world::{node_ips, plan, settings};

/// Addresses of either family, and the length of one: in texts, `[cluster]` stands for the address of this name.
const ADDRESSES: [(&str, &str, &str); 17] = [
    ("cluster", "10.96.0.10", "fd00:10:96::10"),
    ("local", "10.96.0.11", "fd00:10:96::11"),
    ("remote", "10.96.0.12", "fd00:10:96::12"),
    ("none", "10.96.0.13", "fd00:10:96::13"),
    ("external", "203.0.113.5", "2001:db8:5::5"),
    ("external-local", "203.0.113.6", "2001:db8:5::6"),
    ("external-remote", "203.0.113.7", "2001:db8:5::7"),
    ("firewalled", "203.0.113.8", "2001:db8:5::8"),
    ("admitted", "203.0.113.9", "2001:db8:5::9"),
    ("firewalled-none", "203.0.113.10", "2001:db8:5::a"),
    ("node", "192.0.2.10", "fd00:192:0:2::10"),
    ("bridge", "10.244.1.1", "fd00:10:244:1::1"),
    ("client", "192.0.2.100", "fd00:192:0:2::100"),
    ("other-client", "192.0.2.101", "fd00:192:0:2::101"),
    ("pod", "10.244.1.11", "fd00:10:244:1::11"),
    ("far", "10.244.2.11", "fd00:10:244:2::11"),
    ("host", "/32", "/128"),
];

const OBJECTS: &str = "
    service ns/web [cluster] p:80@30080 NodePort external-ips=[external],[node]
    slice ns/web-1 of web p:8080 | [pod] local | [far]
    service ns/local [local] p:80@30081 LoadBalancer external-policy=Local lb-ips=[external-local] health=30999
    slice ns/local-1 of local p:8080 | [pod] local | [far]
    service ns/remote [remote] p:80@30082 LoadBalancer external-policy=Local lb-ips=[external-remote] health=30998
    slice ns/remote-1 of remote p:8080 | [far]
    service ns/none [none] p:80@30083 NodePort
    service ns/fw 10.96.1.1,fd00:10:96::101 p:80 u:53/UDP LoadBalancer lb-ips=[firewalled] ranges=[client][host]
    slice ns/fw-1 of fw p:8080 u:8053/UDP | [far]
    service ns/admitted 10.96.1.2,fd00:10:96::102 p:80 LoadBalancer lb-ips=[admitted] ranges=[node][host]
    slice ns/admitted-1 of admitted p:8080 | [far]
    service ns/fwnone 10.96.1.3,fd00:10:96::103 p:80 LoadBalancer lb-ips=[firewalled-none] ranges=[client][host]";

fn with_addresses(text: &str, family: Family) -> String {
    ADDRESSES.iter().fold(text.to_owned(), |text, (name, v4, v6)| {
        text.replace(&format!("[{name}]"), if family == Family::V4 { v4 } else { v6 })
    })
}

struct Node {
    plan: IpvsPlan,
    program: Program,
    family: Family,
}

impl Node {
    fn new(settings: ProgramSettings) -> Self {
        let family = settings.family;
        let plan = plan(settings, &with_addresses(OBJECTS, family));
        Self { program: plan.desired().program(), plan, family }
    }

    fn ip(&self, name: &str) -> IpAddr {
        match name {
            "loopback" => self.family.loopback(),
            _ => with_addresses(&format!("[{name}]"), self.family).parse().unwrap(),
        }
    }

    /// `source to destination:port[/udp]`, and what becomes of it: a verdict, or endpoints by their names, with a star after those
    /// that see the node's address.
    fn fate(&self, line: &str) -> String {
        let (source, to) = line.split_once(" to ").unwrap();
        let (to, protocol) = match to.strip_suffix("/udp") {
            Some(to) => (to, Protocol::Udp),
            None => (to, Protocol::Tcp),
        };
        let (to, port) = to.split_once(':').unwrap();
        let packet = Packet {
            source: self.ip(source),
            source_port: None,
            protocol,
            destination: SocketAddr::new(self.ip(to), port.parse().unwrap()),
            interface: None,
        };
        let addresses = node_ips(self.family);
        let mut sets = DesiredIpvs::new(self.plan.desired());
        let Ok(walk) = run(&self.program, &PacketContext::new(&packet, &addresses), &mut sets);
        assert_eq!(walk.not_understood, [""; 0]);
        let total: f64 = walk.paths.iter().map(|path| path.probability).sum();
        assert!((total - 1.0).abs() < 1e-9, "{line}");
        let name = |to: SocketAddr| {
            let found = ADDRESSES.iter().find(|(_, v4, v6)| [*v4, *v6].contains(&&*to.ip().to_string()));
            found.map_or_else(|| to.to_string(), |(name, ..)| (*name).to_owned())
        };
        let seen: BTreeSet<String> = walk
            .paths
            .iter()
            .map(|path| match (path.verdict, path.endpoint) {
                (PacketVerdict::Drop, _) => "dropped".into(),
                (PacketVerdict::Reject, _) => "rejected".into(),
                (PacketVerdict::Accept, None) => "untouched".into(),
                (PacketVerdict::Accept, Some(to)) => {
                    let mark = if path.mark == 0 { "" } else { " with a mark" };
                    format!("{}{}{mark}", name(to), if path.is_masqueraded { "*" } else { "" })
                }
            })
            .collect();
        seen.into_iter().collect::<Vec<_>>().join(" ")
    }

    fn check(&self, expected: Fates) {
        let found: Vec<String> = expected.iter().map(|(line, _)| self.fate(line)).collect();
        let found: Vec<_> = expected.iter().zip(&found).map(|((line, _), found)| (*line, &**found)).collect();
        assert_eq!(found, expected, "{}", self.family);
    }
}

/// Packets, and what becomes of each.
type Fates = &'static [(&'static str, &'static str)];

const CLUSTER_IPS: Fates = &[
    ("client to cluster:80", "far* pod*"),
    ("far to cluster:80", "far pod"),
    // The kernel gives the node's own connections the service address as their source.
    ("cluster to cluster:80", "far* pod*"),
    ("node to cluster:80", "far* pod*"),
];

const HAIRPINS: Fates = &[("pod to cluster:80", "far pod*"), ("pod to external-local:80", "pod*")];

const EXTERNAL_IPS: Fates = &[
    ("client to external:80", "far* pod*"),
    ("far to external:80", "far* pod*"),
    ("external to external:80", "far* pod*"),
    ("client to external-local:80", "pod"),
    ("far to external-local:80", "pod"),
    ("external-local to external-local:80", "pod"),
    // No local endpoint: all of them. The reply to the node's own connection does not come back.
    ("client to external-remote:80", "far"),
    ("external-remote to external-remote:80", "far"),
];

const NODE_PORTS: Fates = &[
    ("client to node:30080", "far* pod*"),
    ("far to bridge:30080", "far* pod*"),
    ("node to node:30080", "far* pod*"),
    ("client to node:30081", "pod"),
    ("client to node:30082", "far"),
    ("client to node:30083", "rejected"),
    ("loopback to loopback:30080", "untouched"),
    ("client to node:30084", "untouched"),
];

const NODE_IPS: Fates = &[("client to node:80", "far* pod*"), ("client to node:22", "untouched")];

const HOST_PORTS: Fates = &[
    ("client to cluster:22", "rejected"),
    ("far to cluster:22", "rejected"),
    ("cluster to cluster:22", "rejected"),
    ("client to external:22", "rejected"),
    ("client to cluster:80/udp", "rejected"),
    // A node port is at the node's addresses only.
    ("client to cluster:30080", "rejected"),
    // Load balancers may check their own address.
    ("client to external-local:30999", "untouched"),
    ("client to external-local:30999/udp", "rejected"),
];

const NO_ENDPOINTS: Fates = &[("client to none:80", "rejected"), ("none to none:80", "rejected")];

const SOURCE_RANGES: Fates = &[
    ("client to firewalled:80", "far*"),
    ("other-client to firewalled:80", "dropped"),
    ("far to firewalled:80", "dropped"),
    ("other-client to firewalled:53/udp", "dropped"),
    // Of the node's own connections only the original destination is known after IPVS.
    ("firewalled to firewalled:80", "dropped"),
    ("node to firewalled:80", "dropped"),
    ("firewalled to firewalled:53/udp", "dropped"),
    ("admitted to admitted:80", "far*"),
    ("client to admitted:80", "dropped"),
];

const SOURCE_RANGES_WITHOUT_ENDPOINTS: Fates = &[
    ("other-client to firewalled-none:80", "dropped"),
    ("client to firewalled-none:80", "rejected"),
    ("firewalled-none to firewalled-none:80", "rejected"),
];

const LOOPBACK: Fates = &[("loopback to cluster:80", "far pod"), ("loopback to external:80", "far pod")];

/// All that the default settings decide.
const DEFAULT: [Fates; 10] = [
    CLUSTER_IPS,
    HAIRPINS,
    EXTERNAL_IPS,
    NODE_PORTS,
    NODE_IPS,
    HOST_PORTS,
    NO_ENDPOINTS,
    SOURCE_RANGES,
    SOURCE_RANGES_WITHOUT_ENDPOINTS,
    LOOPBACK,
];

const MASQUERADE_ALL: Fates = &[("far to cluster:80", "far* pod*"), ("far to external-local:80", "pod")];

/// Without a way to recognize pods.
const DETECTS_NONE: Fates = &[
    ("client to cluster:80", "far pod"),
    ("far to cluster:80", "far pod"),
    ("cluster to cluster:80", "far* pod*"),
    ("client to external:80", "far* pod*"),
];

fn on_either_family(expected: Fates) {
    for family in Family::BOTH {
        Node::new(settings(family)).check(expected);
    }
}

#[test]
fn cluster_ip_traffic_from_outside_and_from_the_node_is_masqueraded() {
    on_either_family(CLUSTER_IPS);
}

#[test]
fn masquerade_all_includes_pods() {
    for family in Family::BOTH {
        let all = Node::new(ProgramSettings { masquerade_all: true, ..settings(family) });
        all.check(MASQUERADE_ALL);
    }
}

#[test]
fn without_a_detector_only_the_nodes_own_cluster_ip_traffic_is_masqueraded() {
    for family in Family::BOTH {
        let unknown = Node::new(ProgramSettings { from_pod: None, ..settings(family) });
        unknown.check(DETECTS_NONE);
    }
}

#[test]
fn a_connection_of_a_pod_to_itself_is_masqueraded() {
    on_either_family(HAIRPINS);
}

#[test]
fn external_traffic_is_masqueraded_unless_the_policy_is_local() {
    on_either_family(EXTERNAL_IPS);
}

#[test]
fn node_ports_are_served_at_every_address_of_the_node_but_loopback() {
    on_either_family(NODE_PORTS);
}

#[test]
fn an_external_ip_of_the_node_itself_hides_no_port_of_the_node() {
    on_either_family(NODE_IPS);
}

#[test]
fn ports_of_the_node_cannot_be_reached_at_service_addresses() {
    on_either_family(HOST_PORTS);
}

#[test]
fn ipvs_refuses_connections_to_a_service_without_endpoints() {
    on_either_family(NO_ENDPOINTS);
}

#[test]
fn source_ranges_apply_to_load_balancer_ips() {
    on_either_family(SOURCE_RANGES);
}

#[test]
fn without_endpoints_source_ranges_come_first_from_outside_and_ipvs_from_the_node() {
    on_either_family(SOURCE_RANGES_WITHOUT_ENDPOINTS);
}

#[test]
fn loopback_sources_are_never_masqueraded() {
    on_either_family(LOOPBACK);
}

#[test]
fn no_rule_of_the_program_can_go_unnoticed() {
    let default = settings(Family::V4);
    let worlds: [(ProgramSettings, &[Fates]); 3] = [
        (default.clone(), &DEFAULT),
        (ProgramSettings { masquerade_all: true, ..default.clone() }, &[MASQUERADE_ALL]),
        (ProgramSettings { from_pod: None, ..default }, &[DETECTS_NONE]),
    ];
    let mut unnoticed = Vec::new();
    for (number, (settings, expected)) in worlds.into_iter().enumerate() {
        let mut node = Node::new(settings);
        let program = node.program.clone();
        let matters = |chain: &str| number == 0 || chain == "cluster-ip";
        for (at, chain) in program.chains.iter().enumerate().filter(|(_, chain)| matters(&chain.name)) {
            for rule in 0..chain.rules.len() {
                node.program = program.clone();
                node.program.chains[at].rules.remove(rule);
                let is_noticed =
                    expected.iter().copied().flatten().any(|(line, fate)| node.fate(line) != *fate);
                if !is_noticed {
                    unnoticed.push(format!("{} rule {rule}", chain.name));
                }
            }
        }
    }
    assert_eq!(unnoticed, [""; 0]);
}
