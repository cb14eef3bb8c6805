//! Routings that the model computes from objects, so that no test builds one field by field.

use std::sync::Arc;

use model::address::Family;
use model::cluster::{Cluster, Here};
use model::event::Event;
use model::hashing::MAX_HASHED;
use model::names::ServicePortName;
use model::routing::Routing;

use crate::objects::{NODE, events};

/// When the proxy on [`node`] started.
pub const STARTED: &str = "2026-11-15T10:00:00Z";

/// The node whose routings the model computes.
pub fn node(family: Family) -> Here {
    let node_ip = match family {
        Family::V4 => "192.168.0.1",
        Family::V6 => "fd00:192::1",
    };
    Here {
        family,
        node_name: NODE.into(),
        node_ip: node_ip.parse().unwrap(),
        serve_external_ips: true,
        max_hashed: MAX_HASHED,
        started: STARTED.parse().unwrap(),
    }
}

/// All routings of the cluster that `lines` describe in the format of [`crate::objects`], sorted by name.
pub fn routings(family: Family, lines: &str) -> Vec<(ServicePortName, Arc<Routing>)> {
    let mut cluster = Cluster::new(node(family));
    for event in events(lines) {
        apply(&mut cluster, &event);
    }
    cluster.discard_changes();
    cluster.routings().into_iter().map(|(name, routing)| (name.clone(), routing.clone())).collect()
}

/// The routing of a cluster with a single service port.
pub fn routing(family: Family, lines: &str) -> (ServicePortName, Arc<Routing>) {
    let mut all = routings(family, lines);
    assert_eq!(all.len(), 1, "one service port in {lines}");
    all.remove(0)
}

fn apply(cluster: &mut Cluster, event: &Event) {
    assert_eq!(cluster.apply(event), [], "the model accepts {event:?}");
}
