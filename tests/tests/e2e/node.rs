//! How the Node object affects the proxy on that node.

use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{ClientPlace, Place};
use testkit::probe::Answer;
use testkit::wait::{eventually, within};
use tests::cluster::objects;
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::test_cluster::cluster_ip;

use crate::{cluster, cluster_without_node, in_each_mode};

in_each_mode!(endpoints_of_the_zone_are_preferred_and_a_new_label_changes_the_zone);

fn endpoints_of_the_zone_are_preferred_and_a_new_label_changes_the_zone(mode: Mode) {
    let cluster = cluster();
    let zone = |zone: Value| {
        let labels = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
        cluster.api().patch(&cluster.node_path(), &labels);
    };
    zone("east".into());
    let _proxy = cluster.proxy(mode);
    let web = cluster.api().create(&cluster.services(), &objects::service("web"));
    for family in Family::BOTH {
        let hinted = |place: Place, zone: &str| {
            let hints = json!({"hints": {"forZones": [{"name": zone}]}});
            objects::with(objects::endpoint(place.ip(family)), hints)
        };
        let endpoints = [hinted(Place::PodA, "east"), hinted(Place::Remote(5), "west")];
        cluster.api().create(&cluster.slices(), &objects::slice("web", family, &endpoints));
    }
    cluster.wait_until_served(&web, &[Place::PodA]);
    zone("west".into());
    cluster.wait_until_served(&web, &[Place::Remote(5)]);
    zone(Value::Null);
    cluster.wait_until_served(&web, &[Place::PodA, Place::Remote(5)]);
}

fn health_codes(proxy: &Proxy) -> Option<(u16, u16)> {
    Some((proxy.health("/healthz")?.code, proxy.health("/livez")?.code))
}

/// Line 6 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_proxy_waits_for_its_node_and_then_starts_without_it() {
    let cluster = cluster_without_node();
    let proxy = cluster.proxy(Mode::Nftables);
    let web = cluster.create_service("web", &[Place::PodA]);
    within(Duration::from_secs(45), "the proxy starts without its node", || health_codes(&proxy).is_some());
    assert!(proxy.log().contains("Timed out waiting for node to exist"), "{}", proxy.log());
    eventually("healthy, but not eligible", || health_codes(&proxy) == Some((503, 200)));
    let body = proxy.health("/healthz").unwrap().body;
    assert!(body.contains(r#""nodeEligible":false"#), "{body}");
    cluster.wait_until_served(&web, &[Place::PodA]);
    cluster.api().create("/api/v1/nodes", &objects::node(&cluster.node));
    eventually("eligible", || health_codes(&proxy) == Some((200, 200)));
}

/// Line 7 of the checklist, by a taint and by a deletion that a finalizer delays.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_node_that_is_to_be_removed_is_not_eligible_though_its_proxy_is_alive() {
    let cluster = cluster();
    let proxy = cluster.proxy(Mode::Nftables);
    eventually("the node is healthy and eligible", || health_codes(&proxy) == Some((200, 200)));
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule", "value": "1"}]);
    cluster.api().patch(&cluster.node_path(), &json!({"spec": {"taints": taint}}));
    eventually("a tainted node is not eligible", || health_codes(&proxy) == Some((503, 200)));
    let body = proxy.health("/healthz").unwrap().body;
    assert!(body.contains(r#""nodeEligible":false,"healthy":true"#), "{body}");
    cluster.api().patch(&cluster.node_path(), &json!({"spec": {"taints": null}}));
    eventually("a node without the taint is eligible", || health_codes(&proxy) == Some((200, 200)));

    cluster.api().patch(&cluster.node_path(), &json!({"metadata": {"finalizers": ["sluice.test/held"]}}));
    cluster.api().delete(&cluster.node_path());
    eventually("a node being deleted is not eligible", || health_codes(&proxy) == Some((503, 200)));
    cluster.api().patch(&cluster.node_path(), &json!({"metadata": {"finalizers": null}}));
}

/// Line 11 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn in_node_cidr_mode_the_proxy_waits_for_pod_cidrs() {
    let cluster = cluster_without_node();
    cluster
        .api()
        .create("/api/v1/nodes", &objects::with(objects::node(&cluster.node), json!({"spec": null})));
    let mut proxy = cluster.proxy_with(Mode::Nftables, &["--detect-local-mode=NodeCIDR"]);
    let web = cluster.create_service("web", &[Place::PodA]);
    eventually("the proxy requests its node", || {
        cluster.audit().iter().any(|entry| entry.path() == "/api/v1/nodes")
    });
    let answer = cluster.probe(ClientPlace::Pod, Protocol::Tcp, cluster_ip(&web, Family::V4));
    assert!(!matches!(answer, Answer::From { .. }), "served without pod CIDRs: {answer:?}");
    let cidrs = ["10.244.0.0/24", "fd00:10:244::/64"];
    cluster.api().patch(&cluster.node_path(), &json!({"spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}}));
    cluster.wait_until_served(&web, &[Place::PodA]);
    assert!(proxy.is_running());
}

/// Line 11 of the checklist. Pod CIDRs are immutable, but a node can be replaced by another with the same name.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn in_node_cidr_mode_changed_pod_cidrs_end_the_proxy() {
    let cluster = cluster();
    let mut proxy = cluster.proxy_with(Mode::Nftables, &["--detect-local-mode=NodeCIDR"]);
    let web = cluster.create_service("web", &[Place::PodA]);
    cluster.wait_until_served(&web, &[Place::PodA]);
    cluster.api().delete(&cluster.node_path());
    let moved = json!({"spec": {"podCIDR": "10.250.0.0/24", "podCIDRs": ["10.250.0.0/24"]}});
    cluster.api().create("/api/v1/nodes", &objects::with(objects::node(&cluster.node), moved));
    assert_eq!(proxy.wait().code(), Some(1));
    assert!(proxy.log().contains("PodCIDRs changed for the node"), "{}", proxy.log());
}

/// Line 12 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_host_without_ipv6_is_served_in_ipv4() {
    let cluster = cluster();
    cluster.lab.network.node.sysctl("ipv6/conf/all/disable_ipv6", "1");
    let proxy = cluster.proxy_with(Mode::Nftables, &["--cluster-cidr=10.244.0.0/16"]);
    let web = cluster.create_service("web", &[Place::PodA]);
    cluster.wait_until_reached(ClientPlace::Pod, cluster_ip(&web, Family::V4), &[Place::PodA]);
    assert!(proxy.log().contains("kube-proxy running in single-stack mode"), "{}", proxy.log());
}

/// Line 12 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_host_without_ipv6_refuses_a_cluster_with_ipv6_only() {
    let cluster = cluster();
    cluster.lab.network.node.sysctl("ipv6/conf/all/disable_ipv6", "1");
    let mut proxy = cluster.proxy_with(Mode::Nftables, &["--cluster-cidr=fd00:10:244::/48"]);
    assert_eq!(proxy.wait().code(), Some(1));
    let log = proxy.log();
    assert!(log.contains("kube-proxy configuration is incorrect: "), "{log}");
}
