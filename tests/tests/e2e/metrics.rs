//! What dashboards and alerts are built on.

use std::collections::BTreeSet;

use model::address::Family;
use testkit::lab::{Place, Who};
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::stage::cluster_ip;
use tests::matrix::eventually;

use crate::{in_each_mode, stage};

in_each_mode!(every_metric_of_the_mode_is_there_and_none_of_another, the_mode_is_told);

/// Of every mode, once there was a sync, a change and a request.
const EVERYWHERE: &[&str] = &[
    "disabled_metrics_total",
    "hidden_metrics_total",
    "kubeproxy_conntrack_reconciler_deleted_entries_total",
    "kubeproxy_conntrack_reconciler_sync_duration_seconds",
    "kubeproxy_network_programming_duration_seconds",
    "kubeproxy_proxy_healthz_total",
    "kubeproxy_proxy_livez_total",
    "kubeproxy_sync_full_proxy_rules_duration_seconds",
    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
    "kubeproxy_sync_proxy_rules_duration_seconds",
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
    "kubeproxy_sync_proxy_rules_endpoint_changes_total",
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    "kubeproxy_sync_proxy_rules_service_changes_pending",
    "kubeproxy_sync_proxy_rules_service_changes_total",
    "kubernetes_build_info",
    "kubernetes_feature_enabled",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_network_receive_bytes_total",
    "process_network_transmit_bytes_total",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
    "process_virtual_memory_max_bytes",
    "registered_metrics_total",
    "rest_client_request_duration_seconds",
    "rest_client_request_size_bytes",
    "rest_client_requests_total",
    "rest_client_response_size_bytes",
];

/// Of one mode only.
const IPTABLES: &[&str] = &[
    "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
    "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
    "kubeproxy_sync_proxy_rules_iptables_last",
    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    "kubeproxy_sync_proxy_rules_iptables_total",
];
const NFTABLES: &[&str] = &[
    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
];

fn names(text: &str) -> BTreeSet<&str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

fn scrape(proxy: &Proxy) -> String {
    proxy.metrics("/metrics").map(|answer| answer.body).unwrap_or_default()
}

/// Line 14 of the checklist.
fn every_metric_of_the_mode_is_there_and_none_of_another(mode: Mode) {
    let stage = stage();
    let proxy = stage.proxy(mode);
    eventually("health", || proxy.health("/healthz").is_some_and(|answer| answer.code == 200));
    assert_eq!(proxy.health("/livez").unwrap().code, 200);
    let web = stage.serve("web", &[Place::PodA]);
    for family in Family::BOTH {
        stage.reaches(Who::Pod, cluster_ip(&web, family), &[Place::PodA]);
        // Of when a controller saw the cause of it: this is where it is told, and to the fraction of a second.
        let when = jiff::Timestamp::now().to_string();
        let annotation = serde_json::json!({"metadata": {"annotations": {
            "endpoints.kubernetes.io/last-change-trigger-time": when,
        }}});
        let endpoints = [tests::cluster::objects::endpoint(Place::PodB.ip(family))];
        let moved = tests::cluster::objects::slice("web", family, &endpoints);
        stage.api().replace(&stage.slice("web", family), &tests::cluster::objects::with(moved, annotation));
        stage.reaches(Who::Pod, cluster_ip(&web, family), &[Place::PodB]);
    }
    let (own, foreign): (&[&str], &str) = match mode {
        Mode::Nftables => (NFTABLES, "iptables"),
        Mode::Iptables => (IPTABLES, "nftables"),
    };
    let missing = || -> Vec<&str> {
        let text = scrape(&proxy);
        let found = names(&text);
        EVERYWHERE.iter().chain(own).copied().filter(|name| !found.contains(name)).collect()
    };
    let mut left = Vec::new();
    let complete = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("all metrics", || {
            left = missing();
            left.is_empty()
        });
    }));
    assert!(complete.is_ok(), "missing: {left:?} in\n{}", scrape(&proxy));
    let text = scrape(&proxy);
    let strangers: Vec<_> = names(&text).into_iter().filter(|name| name.contains(foreign)).collect();
    assert_eq!(strangers, [""; 0]);
    for family in Family::BOTH {
        let count = format!("kubeproxy_network_programming_duration_seconds_count{{ip_family=\"{family}\"}}");
        assert!(text.lines().any(|line| line.starts_with(&count)), "no {count} in\n{text}");
    }
}

fn the_mode_is_told(mode: Mode) {
    let stage = stage();
    let proxy = stage.proxy(mode);
    eventually("the mode", || proxy.metrics("/proxyMode").is_some());
    assert_eq!(proxy.metrics("/proxyMode").unwrap().body, mode.name());
    assert_eq!(proxy.metrics("/healthz").unwrap().body, "ok");
    let config: serde_json::Value = serde_json::from_str(&proxy.metrics("/configz").unwrap().body).unwrap();
    assert_eq!(config["kubeproxy.config.k8s.io"]["mode"], mode.name());
}
