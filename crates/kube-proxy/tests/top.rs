//! `kube-proxy top` beside a running proxy, with real connections.
#![cfg(feature = "top")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use model::address::Family;
use model::names::Protocol;
use serde_json::Value;
use testkit::lab::{Address, ClientPlace, NODE_PORT};
use testkit::lab_proxy::LabProxy;
use testkit::manifests::{A, B, web};
use testkit::probe::{Answer, probe};
use testkit::wait::eventually;

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

fn top(proxy: &LabProxy, arguments: &[&str]) -> Output {
    let mut command = Command::new(KUBE_PROXY);
    command.arg("top").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    proxy.lab.network.node.spawn(&mut command).unwrap().wait_with_output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn connect(proxy: &LabProxy, from: ClientPlace, to: Address, port: u16) -> bool {
    let to = SocketAddr::new(to.ip(proxy.family), port);
    matches!(probe(proxy.lab.namespace(from), Protocol::Tcp, to), Answer::From { .. })
}

fn wait_until_served(proxy: &LabProxy) {
    eventually("the Service answers", || connect(proxy, ClientPlace::Pod, Address::ClusterIp, 80));
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
fn top_counts_connections_by_frontend_and_endpoint() {
    for (family, node_port) in [(Family::V4, "*:30080"), (Family::V6, "[*]:30080")] {
        let proxy = LabProxy::new(KUBE_PROXY, "nftables", family);
        proxy.apply(web(&[A, B]));
        wait_until_served(&proxy);
        let cluster_ip = SocketAddr::new(Address::ClusterIp.ip(family), 80).to_string();
        let counts = || json(&top(&proxy, &["--once", "--interval=0", "-o", "json"]));
        let before = counts();
        assert_eq!((&before["node"], &before["mode"]), (&"node-1".into(), &"nftables".into()));
        for _ in 0..20 {
            assert!(connect(&proxy, ClientPlace::Pod, Address::ClusterIp, 80));
        }
        for _ in 0..10 {
            assert!(connect(&proxy, ClientPlace::Outside, Address::NodeIp, NODE_PORT));
        }
        // The proxy caches counters for a moment.
        let mut after = counts();
        eventually("top has counted all connections", || {
            after = counts();
            count(tcp(&after)) - count(tcp(&before)) >= 30
        });
        let (before, after) = (tcp(&before), tcp(&after));
        assert_eq!(count(after) - count(before), 30, "{family}");
        assert_eq!(at(after, &cluster_ip) - at(before, &cluster_ip), 20, "{family}");
        assert_eq!(at(after, node_port) - at(before, node_port), 10, "{family}");
        assert_eq!(at_endpoints(after) - at_endpoints(before), 30, "{family}");
        assert_eq!(after["endpoints"].as_array().unwrap().len(), 2, "{family}");
        assert_eq!(after["newConnectionsPerSecond"], Value::Null, "one sample gives no rate");
    }
}

#[test]
fn rates_cover_the_time_between_two_samples() {
    let proxy = LabProxy::new(KUBE_PROXY, "nftables", Family::V4);
    proxy.apply(web(&[A, B]));
    wait_until_served(&proxy);
    let mut command = Command::new(KUBE_PROXY);
    command.args(["top", "--once", "--interval=1s", "-o", "json"]).stdout(Stdio::piped());
    let mut top_process = proxy.lab.network.node.spawn(&mut command).unwrap();
    while top_process.try_wait().unwrap().is_none() {
        connect(&proxy, ClientPlace::Pod, Address::ClusterIp, 80);
    }
    let seen = json(&top_process.wait_with_output().unwrap());
    let seconds = seen["intervalSeconds"].as_f64().unwrap();
    let rate = |of: &Value| of["newConnectionsPerSecond"].as_f64().unwrap();
    assert!(seconds >= 1.0, "{seconds}");
    assert!(rate(&seen) > 1.0, "{seen:#}");
    let port = tcp(&seen);
    let endpoints = port["endpoints"].as_array().unwrap();
    let together: f64 = endpoints.iter().map(rate).sum();
    // top reads frontends and endpoints one after the other, while thousands of connections are opened.
    assert!((together - rate(port)).abs() < rate(port) / 4.0, "{port:#}");
    let shares: f64 = endpoints.iter().map(|endpoint| endpoint["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");

    let text = top(&proxy, &["--once", "--interval=100ms"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("SERVICE PORT ") && text.contains(":8080 "), "{text}");
}

#[test]
fn top_reports_why_it_has_no_figures() {
    let proxy = LabProxy::new(KUBE_PROXY, "iptables", Family::V4);
    proxy.apply(web(&[A]));
    wait_until_served(&proxy);
    let refused = top(&proxy, &["--once", "-o", "json"]);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(stderr.contains("new connections are counted in nftables and ipvs mode"), "{stderr}");

    let unreachable = top(&proxy, &["--once", "--metrics-bind-address=127.0.0.1:1"]);
    let stderr = String::from_utf8(unreachable.stderr).unwrap();
    assert!(stderr.contains("127.0.0.1:1 (is it running"), "{stderr}");

    for (arguments, complaint) in [
        (&["--interval=0"][..], "--interval must be at least 100ms"),
        (&["-o", "json"], "--once"),
        (&["--interval=soon"], "invalid duration"),
        (&[], "standard input and output must be a terminal"),
    ] {
        let refused = top(&proxy, arguments);
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && stderr.contains(complaint), "{arguments:?}: {stderr}");
    }
}
