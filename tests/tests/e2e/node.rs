//! What the Node object means to the proxy that runs on it.

use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{Place, Who};
use testkit::talk::Answer;
use tests::cluster::objects;
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::stage::cluster_ip;
use tests::matrix::{eventually, within};

use crate::{in_each_mode, stage, stage_without_node};

in_each_mode!(endpoints_of_the_zone_are_preferred_and_a_new_label_changes_the_zone);

fn endpoints_of_the_zone_are_preferred_and_a_new_label_changes_the_zone(mode: Mode) {
    let stage = stage();
    let zone = |zone: Value| {
        let labels = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
        stage.api().patch(&stage.node_path(), &labels);
    };
    zone("east".into());
    let _proxy = stage.proxy(mode);
    let web = stage.api().create(&stage.services(), &objects::service("web"));
    for family in Family::BOTH {
        let hinted = |place: Place, zone: &str| {
            let hints = json!({"hints": {"forZones": [{"name": zone}]}});
            objects::with(objects::endpoint(place.ip(family)), hints)
        };
        let endpoints = [hinted(Place::PodA, "east"), hinted(Place::Remote(5), "west")];
        stage.api().create(&stage.slices(), &objects::slice("web", family, &endpoints));
    }
    stage.serves(&web, &[Place::PodA]);
    zone("west".into());
    stage.serves(&web, &[Place::Remote(5)]);
    zone(Value::Null);
    stage.serves(&web, &[Place::PodA, Place::Remote(5)]);
}

fn health_codes(proxy: &Proxy) -> Option<(u16, u16)> {
    Some((proxy.health("/healthz")?.code, proxy.health("/livez")?.code))
}

/// Line 6 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_node_that_is_late_is_waited_for_and_then_done_without() {
    let stage = stage_without_node();
    let proxy = stage.proxy(Mode::Nftables);
    let web = stage.serve("web", &[Place::PodA]);
    within(Duration::from_secs(45), "a start without its node", || health_codes(&proxy).is_some());
    assert!(proxy.log().contains("Timed out waiting for node to exist"), "{}", proxy.log());
    eventually("healthy, but not eligible", || health_codes(&proxy) == Some((503, 200)));
    let body = proxy.health("/healthz").unwrap().body;
    assert!(body.contains(r#""nodeEligible":false"#), "{body}");
    stage.serves(&web, &[Place::PodA]);
    stage.api().create("/api/v1/nodes", &objects::node(&stage.node));
    eventually("eligible", || health_codes(&proxy) == Some((200, 200)));
}

/// Line 7 of the checklist, by a taint and by a deletion that takes its time.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_node_that_is_to_go_is_not_eligible_though_its_proxy_lives() {
    let stage = stage();
    let proxy = stage.proxy(Mode::Nftables);
    eventually("health", || health_codes(&proxy) == Some((200, 200)));
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule", "value": "1"}]);
    stage.api().patch(&stage.node_path(), &json!({"spec": {"taints": taint}}));
    eventually("a tainted node is not eligible", || health_codes(&proxy) == Some((503, 200)));
    let body = proxy.health("/healthz").unwrap().body;
    assert!(body.contains(r#""nodeEligible":false,"healthy":true"#), "{body}");
    stage.api().patch(&stage.node_path(), &json!({"spec": {"taints": null}}));
    eventually("without the taint it is", || health_codes(&proxy) == Some((200, 200)));

    stage.api().patch(&stage.node_path(), &json!({"metadata": {"finalizers": ["sluice.test/held"]}}));
    stage.api().delete(&stage.node_path());
    eventually("a node being deleted is not eligible", || health_codes(&proxy) == Some((503, 200)));
    stage.api().patch(&stage.node_path(), &json!({"metadata": {"finalizers": null}}));
}

/// Line 11 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn in_node_cidr_mode_the_pod_cidrs_are_waited_for() {
    let stage = stage_without_node();
    stage.api().create("/api/v1/nodes", &objects::with(objects::node(&stage.node), json!({"spec": null})));
    let mut proxy = stage.proxy_with(Mode::Nftables, &["--detect-local-mode=NodeCIDR"]);
    let web = stage.serve("web", &[Place::PodA]);
    // It has asked for its node, and nothing else happens.
    eventually("it asks for its node", || stage.audit().iter().any(|entry| entry.path() == "/api/v1/nodes"));
    let answer = stage.ask(Who::Pod, Protocol::Tcp, cluster_ip(&web, Family::V4));
    assert!(!matches!(answer, Answer::From { .. }), "served without pod CIDRs: {answer:?}");
    let cidrs = ["10.244.0.0/24", "fd00:10:244::/64"];
    stage.api().patch(&stage.node_path(), &json!({"spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}}));
    stage.serves(&web, &[Place::PodA]);
    assert!(proxy.is_running());
}

/// Line 11 of the checklist. The API lets nobody change pod CIDRs, but a node can be replaced by another of its name.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn in_node_cidr_mode_other_pod_cidrs_end_the_proxy() {
    let stage = stage();
    let mut proxy = stage.proxy_with(Mode::Nftables, &["--detect-local-mode=NodeCIDR"]);
    let web = stage.serve("web", &[Place::PodA]);
    stage.serves(&web, &[Place::PodA]);
    stage.api().delete(&stage.node_path());
    let moved = json!({"spec": {"podCIDR": "10.250.0.0/24", "podCIDRs": ["10.250.0.0/24"]}});
    stage.api().create("/api/v1/nodes", &objects::with(objects::node(&stage.node), moved));
    assert_eq!(proxy.wait().code(), Some(1));
    assert!(proxy.log().contains("PodCIDRs changed for the node"), "{}", proxy.log());
}

/// Line 12 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_host_without_ipv6_is_served_in_ipv4() {
    let stage = stage();
    stage.lab.network.node.sysctl("ipv6/conf/all/disable_ipv6", "1");
    let proxy = stage.proxy_with(Mode::Nftables, &["--cluster-cidr=10.244.0.0/16"]);
    let web = stage.serve("web", &[Place::PodA]);
    stage.reaches(Who::Pod, cluster_ip(&web, Family::V4), &[Place::PodA]);
    assert!(proxy.log().contains("kube-proxy running in single-stack mode"), "{}", proxy.log());
}

/// Line 12 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_host_without_ipv6_refuses_a_cluster_that_has_nothing_else() {
    let stage = stage();
    stage.lab.network.node.sysctl("ipv6/conf/all/disable_ipv6", "1");
    let mut proxy = stage.proxy_with(Mode::Nftables, &["--cluster-cidr=fd00:10:244::/48"]);
    assert_eq!(proxy.wait().code(), Some(1));
    let log = proxy.log();
    assert!(log.contains("kube-proxy configuration is incorrect: "), "{log}");
}
