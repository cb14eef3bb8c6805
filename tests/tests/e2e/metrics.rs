//! The metrics that dashboards and alerts use.

use std::collections::BTreeSet;

use model::address::Family;
use testkit::lab::{ClientPlace, Place};
use testkit::wait::{USUAL_TIMEOUT, eventually, holds_within};
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::test_cluster::cluster_ip;

use crate::{cluster, in_each_mode};

in_each_mode!(every_metric_of_the_mode_is_served_and_none_of_another, the_mode_is_served);

/// The metrics of all modes, after a sync, a change and an API request.
const ALL_MODES: &[&str] = &[
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

/// The metrics of one mode.
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
    proxy.metrics("/metrics").map(|response| response.body).unwrap_or_default()
}

/// Line 14 of the checklist.
fn every_metric_of_the_mode_is_served_and_none_of_another(mode: Mode) {
    let cluster = cluster();
    let proxy = cluster.proxy(mode);
    eventually("the proxy is healthy", || {
        proxy.health("/healthz").is_some_and(|response| response.code == 200)
    });
    assert_eq!(proxy.health("/livez").unwrap().code, 200);
    let web = cluster.create_service("web", &[Place::PodA]);
    for family in Family::BOTH {
        cluster.wait_until_reached(ClientPlace::Pod, cluster_ip(&web, family), &[Place::PodA]);
        // The time at which a controller saw the cause of the change, with fractions of a second.
        let when = jiff::Timestamp::now().to_string();
        let annotation = serde_json::json!({"metadata": {"annotations": {
            "endpoints.kubernetes.io/last-change-trigger-time": when,
        }}});
        let endpoints = [tests::cluster::objects::endpoint(Place::PodB.ip(family))];
        let moved = tests::cluster::objects::slice("web", family, &endpoints);
        cluster
            .api()
            .replace(&cluster.slice("web", family), &tests::cluster::objects::with(moved, annotation));
        cluster.wait_until_reached(ClientPlace::Pod, cluster_ip(&web, family), &[Place::PodB]);
    }
    let (own, foreign): (&[&str], &str) = match mode {
        Mode::Nftables => (NFTABLES, "iptables"),
        Mode::Iptables => (IPTABLES, "nftables"),
        Mode::Ipvs => panic!("no list of metrics for this mode"),
    };
    let missing = || -> Vec<&str> {
        let text = scrape(&proxy);
        let found = names(&text);
        ALL_MODES.iter().chain(own).copied().filter(|name| !found.contains(name)).collect()
    };
    let mut missing_now = Vec::new();
    let complete = holds_within(USUAL_TIMEOUT, || {
        missing_now = missing();
        missing_now.is_empty()
    });
    assert!(complete, "missing: {missing_now:?} in\n{}", scrape(&proxy));
    let text = scrape(&proxy);
    let unexpected: Vec<_> = names(&text).into_iter().filter(|name| name.contains(foreign)).collect();
    assert_eq!(unexpected, [""; 0]);
    for family in Family::BOTH {
        let count = format!("kubeproxy_network_programming_duration_seconds_count{{ip_family=\"{family}\"}}");
        assert!(text.lines().any(|line| line.starts_with(&count)), "no {count} in\n{text}");
    }
}

fn the_mode_is_served(mode: Mode) {
    let cluster = cluster();
    let proxy = cluster.proxy(mode);
    eventually("the mode is served", || proxy.metrics("/proxyMode").is_some());
    assert_eq!(proxy.metrics("/proxyMode").unwrap().body, mode.name());
    assert_eq!(proxy.metrics("/healthz").unwrap().body, "ok");
    let config: serde_json::Value = serde_json::from_str(&proxy.metrics("/configz").unwrap().body).unwrap();
    assert_eq!(config["kubeproxy.config.k8s.io"]["mode"], mode.name());
}
