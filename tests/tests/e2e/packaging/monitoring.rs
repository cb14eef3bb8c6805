//! Dashboards and alerts that ask for nothing that is not there.

use std::collections::BTreeSet;
use std::process::Command;

use model::address::Family;
use serde_json::{Value, json};
use testkit::lab::Place;
use tests::cluster::manifests::read;
use tests::cluster::objects::{endpoint, slice, with};
use tests::cluster::proxy::Mode;
use tests::matrix::eventually;

use super::packaging;
use super::render::{output, success, tool};
use crate::stage;

/// Prometheus' own.
const NOT_OURS: &str = "up";

/// Every metric that a rule or a panel asks for, but those that rules make.
fn asked_for() -> BTreeSet<String> {
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
        // Grafana's, around one of Prometheus.
        let query = text(&variable["query"]);
        let query = query.strip_prefix("label_values(").unwrap();
        expressions.push(query.rsplit_once(", ").unwrap().0.to_owned());
    }
    let lines = expressions.join("\n").replace("$__rate_interval", "5m");
    let rules = packaging().join("monitoring/rules.yaml");
    let names = success(output(Command::new(tool("promql")).arg(&rules), &lines));
    let made: Vec<String> = list(&read(&rules)[0]["groups"])
        .iter()
        .flat_map(|group| list(&group["rules"]))
        .filter_map(|rule| Some(rule["record"].as_str()?.to_owned()))
        .collect();
    assert!(!made.is_empty());
    names.lines().filter(|name| !made.iter().any(|made| made == name)).map(String::from).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// Names of samples, not of metrics: a histogram has several.
fn samples(page: &str) -> impl Iterator<Item = String> {
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned()))
}

#[test]
#[ignore = "needs a control plane: make e2e"]
fn whatever_rules_and_dashboards_ask_for_is_there() {
    let stage = stage();
    stage.serve("web", &[Place::PodA]);
    let asked_for = asked_for();
    let mut found: BTreeSet<String> = [NOT_OURS.to_owned()].into();
    for mode in [Mode::Nftables, Mode::Iptables] {
        let proxy = stage.proxy_with(mode, &["--connection-metrics"]);
        eventually("health", || proxy.health("/healthz").is_some_and(|answer| answer.code == 200));
        assert_eq!(proxy.health("/livez").unwrap().code, 200);
        // Of when a controller saw the cause of it.
        let cause =
            json!({"endpoints.kubernetes.io/last-change-trigger-time": jiff::Timestamp::now().to_string()});
        let cause = json!({"metadata": {"annotations": cause}});
        for family in Family::BOTH {
            let moved = slice("web", family, &[endpoint(Place::PodB.ip(family))]);
            stage.api().replace(&stage.slice("web", family), &with(moved, cause.clone()));
        }
        let programmed = "kubeproxy_network_programming_duration_seconds_count";
        let mut page = String::new();
        eventually("a change that was timed", || {
            page = proxy.metrics("/metrics").map(|answer| answer.body).unwrap_or_default();
            page.contains(programmed)
        });
        found.extend(samples(&page));
        stage.move_to("web", &[Place::PodA]);
    }
    let missing: Vec<_> = asked_for.difference(&found).collect();
    assert!(missing.is_empty(), "{missing:?} are asked for and not there; there are {found:#?}");
}
