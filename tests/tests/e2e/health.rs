//! The health checks of the node and of Services, which load balancers use.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use model::address::Family;
use serde_json::{Value, json};
use testkit::lab::Place;
use testkit::wait::{eventually, within};
use tests::cluster::objects::{endpoint, service, slice, with};
use tests::cluster::proxy::{Mode, Proxy};

use crate::cluster;

fn is_healthy(proxy: &Proxy) -> bool {
    proxy.health("/healthz").is_some_and(|response| response.code == 200)
}

/// Line 9 of the checklist: the proxy retries every five seconds.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_proxy_retries_a_busy_health_port() {
    let cluster = cluster();
    let busy = cluster.lab.network.node.enter(|| TcpListener::bind("0.0.0.0:10256")).unwrap();
    let mut proxy = cluster.proxy(Mode::Nftables);
    eventually("the proxy logs it", || proxy.log().contains("Healthz server failed"));
    assert!(proxy.is_running());
    drop(busy);
    within(Duration::from_secs(15), "the proxy is healthy", || is_healthy(&proxy));
}

/// Line 9 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_busy_health_port_ends_the_proxy_with_bind_address_hard_fail() {
    let cluster = cluster();
    let _busy = cluster.lab.network.node.enter(|| TcpListener::bind("0.0.0.0:10256")).unwrap();
    let mut proxy = cluster.proxy_with(Mode::Nftables, &["--bind-address-hard-fail"]);
    assert_eq!(proxy.wait().code(), Some(1));
    assert!(proxy.log().contains("healthz server failed"), "{}", proxy.log());
}

/// Line 13 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn node_health_is_served_in_both_families() {
    let cluster = cluster();
    let proxy = cluster.proxy(Mode::Nftables);
    for address in ["127.0.0.1:10256", "[::1]:10256"] {
        eventually("the node is healthy", || {
            proxy.get(address, "/healthz").is_some_and(|response| response.code == 200)
        });
    }
    let response = proxy.health("/healthz").unwrap();
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
    let body: Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!((&body["nodeEligible"], &body["healthy"]), (&json!(true), &json!(true)), "{body}");
    // A family appears in the status once its worker has started.
    eventually("the health of both families", || {
        let body: Value = serde_json::from_str(&proxy.health("/healthz").unwrap().body).unwrap();
        ["IPv4", "IPv6"].iter().all(|family| body["status"][family]["healthy"] == json!(true))
    });
    let alive: Value = serde_json::from_str(&proxy.health("/livez").unwrap().body).unwrap();
    assert!(alive.get("nodeEligible").is_none(), "{alive}");
    assert_eq!(proxy.health("/elsewhere").unwrap().code, 404);
}

/// Line 8 of the checklist, in iptables mode, where `iptables-restore` can be replaced by a script that fails.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_proxy_that_cannot_write_rules_is_unhealthy_after_two_sync_periods_until_it_can() {
    const PORT: u16 = 32_101;
    const TWO_PERIODS: Duration = Duration::from_secs(10);
    let cluster = cluster();
    let (programs, broken) = (cluster.folder().join("programs"), cluster.folder().join("broken"));
    std::fs::create_dir(&programs).unwrap();
    for name in ["iptables-restore", "ip6tables-restore"] {
        let file = broken.display();
        let script = format!("#!/bin/sh\n[ ! -e {file} ] || exit 1\nPATH=${{PATH#*:}}\nexec {name} \"$@\"\n");
        let path = programs.join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
    let proxy = cluster.proxy_with_path(&programs, Mode::Iptables, &["--iptables-sync-period=5s"]);
    let local = json!({"spec": {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": PORT,
    }});
    cluster.api().create(&cluster.services(), &with(service("lb"), local));
    let here = with(endpoint(Place::PodA.ip(Family::V4)), json!({"nodeName": cluster.node}));
    cluster.api().create(&cluster.slices(), &slice("lb", Family::V4, &[here]));
    let web = cluster.create_service("web", &[Place::PodA]);
    cluster.wait_until_served(&web, &[Place::PodA]);
    let service_health = || proxy.get(&format!("192.0.2.11:{PORT}"), "/");
    eventually("the Service is healthy", || service_health().is_some_and(|response| response.code == 200));

    std::fs::write(&broken, "").unwrap();
    let changed = Instant::now();
    cluster.move_endpoints("web", &[Place::PodB]);
    eventually("the proxy is unhealthy", || !is_healthy(&proxy));
    assert!(changed.elapsed() >= TWO_PERIODS, "already after {:?}", changed.elapsed());
    assert_eq!(proxy.health("/livez").unwrap().code, 503);
    let response = service_health().unwrap();
    assert_eq!((response.code, response.header("x-load-balancing-endpoint-weight")), (503, Some("1")));

    std::fs::remove_file(&broken).unwrap();
    eventually("the proxy is healthy again", || is_healthy(&proxy));
    cluster.wait_until_served(&web, &[Place::PodB]);
    assert_eq!(service_health().unwrap().code, 200);
}

/// Lines 7 and 13 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn service_health_is_served_in_its_family_and_counts_local_endpoints() {
    const PORT: u16 = 32_100;
    let cluster = cluster();
    let proxy = cluster.proxy(Mode::Nftables);
    let local = json!({"spec": {
        "type": "LoadBalancer",
        "ipFamilyPolicy": "SingleStack",
        "ipFamilies": ["IPv4"],
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": PORT,
    }});
    cluster.api().create(&cluster.services(), &with(service("lb"), local));
    let place = |number: u8, node: &str| {
        let ip = Place::Remote(number).ip(Family::V4);
        with(endpoint(ip), json!({"nodeName": node}))
    };
    let two_local = [place(5, &cluster.node), place(6, &cluster.node), place(7, "elsewhere")];
    cluster.api().create(&cluster.slices(), &slice("lb", Family::V4, &two_local));
    let at = format!("192.0.2.11:{PORT}");
    let health = || proxy.get(&at, "/");
    eventually("the Service has two local endpoints", || {
        health().is_some_and(|response| response.code == 200)
    });
    let response = health().unwrap();
    assert_eq!(response.header("x-load-balancing-endpoint-weight"), Some("2"));
    let space = cluster.namespace();
    assert_eq!(
        response.body,
        format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{space}\",\n\t\t\"name\": \"lb\"\n\t}},\n\
             \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}}"
        )
    );
    assert!(proxy.get(&format!("[2001:db8:2::11]:{PORT}"), "/").is_none(), "the server responds in IPv6");

    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    cluster.api().patch(&cluster.node_path(), &json!({"spec": {"taints": taint}}));
    eventually("the node is not eligible", || !is_healthy(&proxy));
    assert_eq!(health().unwrap().code, 200, "the eligibility of the node does not matter to it");

    cluster
        .api()
        .replace(&cluster.slice("lb", Family::V4), &slice("lb", Family::V4, &[place(7, "elsewhere")]));
    eventually("the Service has no local endpoint", || health().is_some_and(|response| response.code == 503));
    cluster.api().delete(&cluster.service("lb"));
    eventually("the server of a deleted Service is closed", || health().is_none());
}
