//! The node's health and the health of its services, as load balancers ask for them.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use model::address::Family;
use serde_json::{Value, json};
use testkit::lab::Place;
use tests::cluster::objects::{endpoint, service, slice, with};
use tests::cluster::proxy::{Mode, Proxy};
use tests::matrix::{eventually, within};

use crate::stage;

fn is_healthy(proxy: &Proxy) -> bool {
    proxy.health("/healthz").is_some_and(|answer| answer.code == 200)
}

/// Line 9 of the checklist: it tries again every five seconds.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_busy_health_port_is_tried_again() {
    let stage = stage();
    let busy = stage.lab.network.node.enter(|| TcpListener::bind("0.0.0.0:10256")).unwrap();
    let mut proxy = stage.proxy(Mode::Nftables);
    eventually("it says so", || proxy.log().contains("Healthz server failed"));
    assert!(proxy.is_running());
    drop(busy);
    within(Duration::from_secs(15), "health", || is_healthy(&proxy));
}

/// Line 9 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_busy_health_port_is_the_end_if_it_must_not_be() {
    let stage = stage();
    let _busy = stage.lab.network.node.enter(|| TcpListener::bind("0.0.0.0:10256")).unwrap();
    let mut proxy = stage.proxy_with(Mode::Nftables, &["--bind-address-hard-fail"]);
    assert_eq!(proxy.wait().code(), Some(1));
    assert!(proxy.log().contains("healthz server failed"), "{}", proxy.log());
}

/// Line 13 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_health_of_a_node_is_told_in_both_families() {
    let stage = stage();
    let proxy = stage.proxy(Mode::Nftables);
    for address in ["127.0.0.1:10256", "[::1]:10256"] {
        eventually("health", || proxy.get(address, "/healthz").is_some_and(|answer| answer.code == 200));
    }
    let answer = proxy.health("/healthz").unwrap();
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&body["nodeEligible"], &body["healthy"]), (&json!(true), &json!(true)), "{body}");
    // Each family is told of from when its own loop has begun.
    eventually("the health of both families", || {
        let body: Value = serde_json::from_str(&proxy.health("/healthz").unwrap().body).unwrap();
        ["IPv4", "IPv6"].iter().all(|family| body["status"][family]["healthy"] == json!(true))
    });
    let alive: Value = serde_json::from_str(&proxy.health("/livez").unwrap().body).unwrap();
    assert!(alive.get("nodeEligible").is_none(), "{alive}");
    assert_eq!(proxy.health("/elsewhere").unwrap().code, 404);
}

/// Line 8 of the checklist, with iptables: what writes its rules can be replaced by something that fails.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_proxy_that_cannot_write_rules_is_unhealthy_after_two_periods_until_it_can() {
    const PORT: u16 = 32_101;
    const TWO_PERIODS: Duration = Duration::from_secs(10);
    let stage = stage();
    let (programs, broken) = (stage.folder().join("programs"), stage.folder().join("broken"));
    std::fs::create_dir(&programs).unwrap();
    for name in ["iptables-restore", "ip6tables-restore"] {
        let file = broken.display();
        let script = format!("#!/bin/sh\n[ ! -e {file} ] || exit 1\nPATH=${{PATH#*:}}\nexec {name} \"$@\"\n");
        let path = programs.join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
    let proxy = stage.proxy_among(&programs, Mode::Iptables, &["--iptables-sync-period=5s"]);
    let local = json!({"spec": {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": PORT,
    }});
    stage.api().create(&stage.services(), &with(service("lb"), local));
    let here = with(endpoint(Place::PodA.ip(Family::V4)), json!({"nodeName": stage.node}));
    stage.api().create(&stage.slices(), &slice("lb", Family::V4, &[here]));
    let web = stage.serve("web", &[Place::PodA]);
    stage.serves(&web, &[Place::PodA]);
    let of_service = || proxy.get(&format!("192.0.2.11:{PORT}"), "/");
    eventually("an endpoint", || of_service().is_some_and(|answer| answer.code == 200));

    std::fs::write(&broken, "").unwrap();
    let changed = Instant::now();
    stage.move_to("web", &[Place::PodB]);
    eventually("it is unhealthy", || !is_healthy(&proxy));
    assert!(changed.elapsed() >= TWO_PERIODS, "already after {:?}", changed.elapsed());
    assert_eq!(proxy.health("/livez").unwrap().code, 503);
    let answer = of_service().unwrap();
    assert_eq!((answer.code, answer.header("x-load-balancing-endpoint-weight")), (503, Some("1")));

    std::fs::remove_file(&broken).unwrap();
    eventually("it is healthy again", || is_healthy(&proxy));
    stage.serves(&web, &[Place::PodB]);
    assert_eq!(of_service().unwrap().code, 200);
}

/// Lines 7 and 13 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_health_of_a_service_is_told_in_its_family_by_the_endpoints_it_has_here() {
    const PORT: u16 = 32_100;
    let stage = stage();
    let proxy = stage.proxy(Mode::Nftables);
    let local = json!({"spec": {
        "type": "LoadBalancer",
        "ipFamilyPolicy": "SingleStack",
        "ipFamilies": ["IPv4"],
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": PORT,
    }});
    stage.api().create(&stage.services(), &with(service("lb"), local));
    let place = |number: u8, node: &str| {
        let ip = Place::Remote(number).ip(Family::V4);
        with(endpoint(ip), json!({"nodeName": node}))
    };
    let two_here = [place(5, &stage.node), place(6, &stage.node), place(7, "elsewhere")];
    stage.api().create(&stage.slices(), &slice("lb", Family::V4, &two_here));
    let at = format!("192.0.2.11:{PORT}");
    let ask = || proxy.get(&at, "/");
    eventually("two endpoints", || ask().is_some_and(|answer| answer.code == 200));
    let answer = ask().unwrap();
    assert_eq!(answer.header("x-load-balancing-endpoint-weight"), Some("2"));
    let space = stage.space();
    assert_eq!(
        answer.body,
        format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{space}\",\n\t\t\"name\": \"lb\"\n\t}},\n\
             \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}}"
        )
    );
    assert!(proxy.get(&format!("[2001:db8:2::11]:{PORT}"), "/").is_none(), "it answers in IPv6");

    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    stage.api().patch(&stage.node_path(), &json!({"spec": {"taints": taint}}));
    eventually("the node is not eligible", || !is_healthy(&proxy));
    assert_eq!(ask().unwrap().code, 200, "whether the node is eligible is not its business");

    stage.api().replace(&stage.slice("lb", Family::V4), &slice("lb", Family::V4, &[place(7, "elsewhere")]));
    eventually("none here", || ask().is_some_and(|answer| answer.code == 503));
    stage.api().delete(&stage.service("lb"));
    eventually("nobody answers for a service that is gone", || ask().is_none());
}
