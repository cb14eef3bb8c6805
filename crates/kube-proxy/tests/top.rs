//! `kube-proxy top` beside a running proxy, with connections that were really made.
#![cfg(feature = "top")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod stage;

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::Value;
use stage::Stage;
use testkit::lab::{Address, NODE_PORT, Who};
use testkit::patience::Deadline;
use testkit::talk::{Answer, ask};
use tests::manifests::{A, B, web};

fn top(stage: &Stage, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
    command.arg("top").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    stage.lab.network.node.spawn(&mut command).unwrap().wait_with_output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn connect(stage: &Stage, who: Who, to: Address, port: u16) -> bool {
    let to = SocketAddr::new(to.ip(stage.family), port);
    matches!(ask(stage.lab.namespace(who), Protocol::Tcp, to), Answer::From { .. })
}

fn wait_until_served(stage: &Stage) {
    let mut deadline = Deadline::after(Duration::from_secs(20));
    while !connect(stage, Who::Pod, Address::ClusterIp, 80) {
        assert!(!deadline.has_passed(), "nobody answers");
    }
}

fn tcp(seen: &Value) -> &Value {
    let ports = seen["servicePorts"].as_array().unwrap();
    ports.iter().find(|port| port["service"] == "web" && port["protocol"] == "TCP").unwrap()
}

fn count(part: &Value) -> u64 {
    part["connections"].as_u64().unwrap()
}

fn at(port: &Value, address: &str) -> u64 {
    let found = port["frontends"].as_array().unwrap().iter().find(|frontend| frontend["address"] == address);
    count(found.unwrap_or_else(|| panic!("no {address} in {port:#}")))
}

fn at_endpoints(port: &Value) -> u64 {
    port["endpoints"].as_array().unwrap().iter().map(count).sum()
}

#[test]
fn connections_are_shown_where_they_went() {
    for (family, node_port) in [(Family::V4, "*:30080"), (Family::V6, "[*]:30080")] {
        let stage = Stage::new("nftables", family);
        stage.hold(web(&[A, B]));
        wait_until_served(&stage);
        let cluster_ip = SocketAddr::new(Address::ClusterIp.ip(family), 80).to_string();
        let counts = || json(&top(&stage, &["--once", "--interval=0", "-o", "json"]));
        let before = counts();
        assert_eq!((&before["node"], &before["mode"]), (&"node-1".into(), &"nftables".into()));
        for _ in 0..20 {
            assert!(connect(&stage, Who::Pod, Address::ClusterIp, 80));
        }
        for _ in 0..10 {
            assert!(connect(&stage, Who::Outside, Address::NodeIp, NODE_PORT));
        }
        // What was counted just before is told for a moment longer.
        let mut deadline = Deadline::after(Duration::from_secs(20));
        let mut after = counts();
        while count(tcp(&after)) - count(tcp(&before)) < 30 && !deadline.has_passed() {
            sleep(Duration::from_millis(50));
            after = counts();
        }
        let (before, after) = (tcp(&before), tcp(&after));
        assert_eq!(count(after) - count(before), 30, "{family}");
        assert_eq!(at(after, &cluster_ip) - at(before, &cluster_ip), 20, "{family}");
        assert_eq!(at(after, node_port) - at(before, node_port), 10, "{family}");
        assert_eq!(at_endpoints(after) - at_endpoints(before), 30, "{family}");
        assert_eq!(after["endpoints"].as_array().unwrap().len(), 2, "{family}");
        assert_eq!(after["newConnectionsPerSecond"], Value::Null, "one look tells no rate");
    }
}

#[test]
fn rates_are_over_the_time_between_two_looks() {
    let stage = Stage::new("nftables", Family::V4);
    stage.hold(web(&[A, B]));
    wait_until_served(&stage);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
    command.args(["top", "--once", "--interval=1s", "-o", "json"]).stdout(Stdio::piped());
    let mut looking = stage.lab.network.node.spawn(&mut command).unwrap();
    while looking.try_wait().unwrap().is_none() {
        connect(&stage, Who::Pod, Address::ClusterIp, 80);
    }
    let seen = json(&looking.wait_with_output().unwrap());
    let seconds = seen["intervalSeconds"].as_f64().unwrap();
    let rate = |of: &Value| of["newConnectionsPerSecond"].as_f64().unwrap();
    assert!(seconds >= 1.0, "{seconds}");
    assert!(rate(&seen) > 1.0, "{seen:#}");
    let port = tcp(&seen);
    let endpoints = port["endpoints"].as_array().unwrap();
    let together: f64 = endpoints.iter().map(rate).sum();
    // Frontends and endpoints are read one after the other, and there are thousands of connections a second.
    assert!((together - rate(port)).abs() < rate(port) / 4.0, "{port:#}");
    let shares: f64 = endpoints.iter().map(|endpoint| endpoint["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");

    let text = top(&stage, &["--once", "--interval=100ms"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("SERVICE PORT ") && text.contains(":8080 "), "{text}");
}

#[test]
fn whoever_cannot_be_asked_is_told_of() {
    let stage = Stage::new("iptables", Family::V4);
    stage.hold(web(&[A]));
    wait_until_served(&stage);
    let refused = top(&stage, &["--once", "-o", "json"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(said.contains("new connections are counted in nftables mode only"), "{said}");

    let nobody = top(&stage, &["--once", "--metrics-bind-address=127.0.0.1:1"]);
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert!(said.contains("127.0.0.1:1 (is it running"), "{said}");

    for (arguments, complaint) in [
        (&["--interval=0"][..], "--interval must be at least 100ms"),
        (&["-o", "json"], "--once"),
        (&["--interval=soon"], "invalid duration"),
        (&[], "standard input and output must be a terminal"),
    ] {
        let refused = top(&stage, arguments);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(complaint), "{arguments:?}: {said}");
    }
}
