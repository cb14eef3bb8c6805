//! The node of the recorded examples.

use std::net::IpAddr;

use model::address::Family;
use model::cluster::{Cluster, Here};
use model::local::FromPod;
use plan::ipvs::desired::ServerSettings;
use plan::ipvs::plan::IpvsPlan;
use plan::mark::Mark;
use plan::nftables::program::ProgramSettings;
use plan::nftables::sets::Balancer;
use testkit::objects::events;

/// The addresses of the node, its primary one first: two of eth0, one of cbr0.
pub fn node_ips(family: Family) -> Vec<IpAddr> {
    let texts: &[&str] = match family {
        Family::V4 => &["192.0.2.10", "198.51.100.10", "10.244.1.1"],
        Family::V6 => &["fd00:192:0:2::10", "fd00:10:244:1::1"],
    };
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub fn settings(family: Family) -> ProgramSettings {
    let pods = match family {
        Family::V4 => "10.244.0.0/16",
        Family::V6 => "fd00:10:244::/56",
    };
    ProgramSettings {
        family,
        balancer: Balancer::Ipvs,
        mark: Mark::from_bit(14).unwrap(),
        masquerade_all: false,
        from_pod: Some(FromPod::Source(pods.parse().unwrap())),
        node_ports_everywhere: true,
        can_hash: true,
    }
}

/// A plan with these objects as its desired state.
pub fn plan(settings: ProgramSettings, objects: &str) -> IpvsPlan {
    let (family, node_ips) = (settings.family, node_ips(settings.family));
    let mut cluster =
        Cluster::new(Here { node_ip: node_ips[0], serve_external_ips: true, ..testkit::node(family) });
    for event in events(objects) {
        cluster.apply(&event);
    }
    let servers = ServerSettings::new("rr", Vec::new());
    let mut plan = IpvsPlan::new(settings, servers);
    plan.set_node_addresses(&node_ips, &node_ips);
    plan.steps(cluster.take_changes());
    plan
}
