//! Dashboards and alerts use only metrics that exist.

use std::collections::BTreeSet;
use std::process::Command;

use model::address::Family;
use serde_json::{Value, json};
use testkit::lab::Place;
use testkit::wait::eventually;
use tests::cluster::manifests::read;
use tests::cluster::objects::{endpoint, slice, with};
use tests::cluster::proxy::Mode;

use super::packaging;
use super::render::{output, success, tool};
use crate::cluster;

/// Prometheus itself adds this one.
const OF_PROMETHEUS: &str = "up";

/// All metrics that rules and panels use, except those that recording rules define.
fn used_metrics() -> BTreeSet<String> {
    let dashboard = std::fs::read_to_string(packaging().join("monitoring/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let panels = list(&dashboard["panels"]);
    let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
    let mut expressions: Vec<String> = targets.map(|target| text(&target["expr"])).collect();
    assert!(expressions.len() > 20, "{expressions:?}");
    for variable in
        list(&dashboard["templating"]["list"]).iter().filter(|variable| variable["type"] == "query")
    {
        // Grafana's `label_values` wraps a Prometheus selector.
        let query = text(&variable["query"]);
        let query = query.strip_prefix("label_values(").unwrap();
        expressions.push(query.rsplit_once(", ").unwrap().0.to_owned());
    }
    let lines = expressions.join("\n").replace("$__rate_interval", "5m");
    let rules = packaging().join("monitoring/rules.yaml");
    let names = success(output(Command::new(tool("promql")).arg(&rules), &lines));
    let recorded: Vec<String> = list(&read(&rules)[0]["groups"])
        .iter()
        .flat_map(|group| list(&group["rules"]))
        .filter_map(|rule| Some(rule["record"].as_str()?.to_owned()))
        .collect();
    assert!(!recorded.is_empty());
    names.lines().filter(|name| !recorded.iter().any(|recorded| recorded == name)).map(String::from).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}")).to_owned()
}

/// The names of samples: a histogram has several.
fn samples(page: &str) -> impl Iterator<Item = String> {
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned()))
}

#[test]
#[ignore = "needs a control plane: make e2e"]
fn every_metric_of_rules_and_dashboards_is_served() {
    let cluster = cluster();
    cluster.create_service("web", &[Place::PodA]);
    let used = used_metrics();
    let mut found: BTreeSet<String> = [OF_PROMETHEUS.to_owned()].into();
    for mode in [Mode::Nftables, Mode::Iptables] {
        let proxy = cluster.proxy_with(mode, &["--connection-metrics"]);
        eventually("the proxy is healthy", || {
            proxy.health("/healthz").is_some_and(|response| response.code == 200)
        });
        assert_eq!(proxy.health("/livez").unwrap().code, 200);
        // The time at which a controller saw the cause of the change.
        let cause =
            json!({"endpoints.kubernetes.io/last-change-trigger-time": jiff::Timestamp::now().to_string()});
        let cause = json!({"metadata": {"annotations": cause}});
        for family in Family::BOTH {
            let moved = slice("web", family, &[endpoint(Place::PodB.ip(family))]);
            cluster.api().replace(&cluster.slice("web", family), &with(moved, cause.clone()));
        }
        let programmed = "kubeproxy_network_programming_duration_seconds_count";
        let mut page = String::new();
        eventually("the duration of a change is recorded", || {
            page = proxy.metrics("/metrics").map(|response| response.body).unwrap_or_default();
            page.contains(programmed)
        });
        found.extend(samples(&page));
        cluster.move_endpoints("web", &[Place::PodA]);
    }
    let missing: Vec<_> = used.difference(&found).collect();
    assert!(missing.is_empty(), "{missing:?} are not served; served are {found:#?}");
}
