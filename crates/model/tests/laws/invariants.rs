//! Invariants of every routing, whatever the objects.

use std::collections::{BTreeMap, HashMap};

use model::address::Family;
use model::names::Protocol;
use model::routing::{Endpoint, Frontend, Routing, Traffic};

use crate::store::View;

pub fn check(family: Family, view: &View) {
    for (name, routing) in &view.routings {
        let problems = problems(family, routing);
        assert!(problems.is_empty(), "{name:?}: {problems:?} in {routing:#?}");
        assert_eq!(name.protocol, routing.protocol, "{name:?}");
    }
    check_health(view);
    check_counts(view);
}

fn problems(family: Family, routing: &Routing) -> Vec<&'static str> {
    let lists = [&routing.cluster, &routing.local, &routing.serving];
    let mut union: BTreeMap<String, Endpoint> = BTreeMap::new();
    union.extend(
        routing.cluster.iter().chain(&*routing.local).map(|endpoint| (endpoint.to_string(), *endpoint)),
    );
    let (internal, external) = (routing.internal, routing.external);
    let is_inconsistent = |traffic| {
        let endpoints = routing.endpoints(traffic);
        match traffic {
            Traffic::ToCluster | Traffic::ToLocal => endpoints.is_empty(),
            Traffic::RejectNoEndpoints | Traffic::DropNoLocalEndpoints => !endpoints.is_empty(),
        }
    };
    let addresses = &routing.addresses;
    let mut ips =
        addresses.external_ips.iter().chain(&addresses.load_balancer_ips).chain([&addresses.cluster_ip]);

    let claims = [
        ("internal traffic has endpoints or a reason", !is_inconsistent(internal)),
        ("external traffic has endpoints or a reason", !is_inconsistent(external)),
        (
            "external traffic from inside has endpoints or a reason",
            !is_inconsistent(routing.external_from_inside()),
        ),
        ("local endpoints are local", routing.local.iter().all(|endpoint| endpoint.local)),
        ("lists are sorted by text, without duplicates", lists.iter().all(|list| is_ordered(list))),
        ("reachable is the sorted union", routing.reachable() == union.into_values().collect::<Vec<_>>()),
        ("serving is for UDP", routing.protocol == Protocol::Udp || routing.serving.is_empty()),
        (
            "nothing is rejected while endpoints are usable",
            internal != Traffic::RejectNoEndpoints
                || (routing.cluster.is_empty() && routing.local.is_empty()),
        ),
        (
            "traffic stays on this node only if the client's address is kept",
            external != Traffic::ToLocal || routing.preserves_client,
        ),
        ("addresses are of the family", ips.all(|ip| Family::of(*ip) == family)),
        (
            "ranges are of the family",
            addresses.source_ranges.iter().all(|range| Family::of_net(*range) == family),
        ),
        (
            "no source range admits all clients",
            addresses.source_ranges.iter().all(|range| range.prefix_len() > 0),
        ),
        ("ranges have no host bits", addresses.source_ranges.iter().all(|range| range.trunc() == *range)),
        (
            "endpoints are of the family",
            lists.iter().all(|list| list.iter().all(|e| Family::of(e.ip) == family)),
        ),
        ("frontends are the addresses", frontends(routing)),
        (
            "a frontend besides the cluster IP makes it externally accessible",
            routing.is_externally_accessible || routing.frontends().count() == 1,
        ),
    ];
    claims.into_iter().filter(|(_, holds)| !holds).map(|(claim, _)| claim).collect()
}

fn is_ordered(list: &[Endpoint]) -> bool {
    list.is_sorted_by(|a, b| a.to_string() < b.to_string())
}

/// Cluster IP, external IPs, load-balancer IPs, node port, in this order and nothing else.
fn frontends(routing: &Routing) -> bool {
    let at = |ip: &std::net::IpAddr| (*ip, routing.port.get()).into();
    let addresses = &routing.addresses;
    let mut want = vec![Frontend::ClusterIp(at(&addresses.cluster_ip))];
    want.extend(addresses.external_ips.iter().map(|ip| Frontend::ExternalIp(at(ip))));
    want.extend(addresses.load_balancer_ips.iter().map(|ip| Frontend::LoadBalancerIp(at(ip))));
    want.extend(routing.node_port.map(Frontend::NodePort));
    routing.frontends().eq(want)
}

/// A Service has a health check if and only if its routings have a health-check port.
fn check_health(view: &View) {
    let mut ports: HashMap<_, _> = HashMap::new();
    for (name, routing) in &view.routings {
        let first = *ports.entry(&name.service).or_insert(routing.health_check_node_port);
        assert_eq!(
            first, routing.health_check_node_port,
            "all ports of {} share one health check",
            name.service
        );
    }
    let expected: BTreeMap<_, _> = ports.into_iter().filter_map(|(name, port)| Some((name, port?))).collect();
    let found: BTreeMap<_, _> = view.health_checks.iter().map(|(name, check)| (name, check.port)).collect();
    assert_eq!(found, expected);
}

fn check_counts(view: &View) {
    let lacking = |traffic: fn(&Routing) -> Traffic| {
        view.routings.values().filter(|routing| traffic(routing) == Traffic::DropNoLocalEndpoints).count()
    };
    assert_eq!(view.counts.service_ports, view.routings.len());
    assert_eq!(view.counts.internal_without_local, lacking(|routing| routing.internal));
    assert_eq!(view.counts.external_without_local, lacking(|routing| routing.external));
}
