use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use settings::version::KUBERNETES;
use watch::client::{Exchange, Observer as _};

use super::packets::{PacketCounts, Packets};
use super::*;

/// Every metric that a healthy proxy of upstream shows, each with a value.
fn in_use(mode: ProxyMode) -> Metrics {
    let metrics = Metrics::new(mode);
    metrics.describe(&Build::reported_as(KUBERNETES), &Gates::resolve(&BTreeMap::new()).unwrap());
    let v4 = ip_family(Family::V4);
    for duration in [
        &metrics.sync_proxy_rules_duration,
        &metrics.sync_full_proxy_rules_duration,
        &metrics.sync_partial_proxy_rules_duration,
        &metrics.network_programming_duration,
        &metrics.conntrack_reconciler_sync_duration,
    ] {
        duration.observe([v4], 0.02);
    }
    metrics.sync_proxy_rules_last_timestamp.set([v4], 1.0);
    metrics.sync_proxy_rules_last_queued_timestamp.set([v4], 1.0);
    metrics.conntrack_reconciler_deleted_entries.add([v4], 0.0);
    for policy in ["internal", "external"] {
        metrics.sync_proxy_rules_no_local_endpoints.set([v4, policy], 0.0);
    }
    for table in ["filter", "nat"] {
        metrics.sync_proxy_rules_iptables_total.set([v4, table], 0.0);
        metrics.sync_proxy_rules_iptables_last.set([v4, table], 0.0);
    }
    metrics.proxy_healthz.increment(["200"]);
    metrics.proxy_livez.increment(["200"]);
    let (verb, host) = (&Method::POST, "192.0.2.1:6443");
    let took = Duration::from_millis(10);
    metrics.answered(&Exchange { verb, host, code: Some(200), took, request_bytes: 206, is_watch: false });
    metrics.throttled(verb, host, Duration::ZERO);
    metrics.received(verb, host, 450);
    metrics
}

/// The page without values, except for those that are always the same.
fn shape(page: &str) -> Vec<String> {
    let strip = |line: &str| match line.rsplit_once(' ') {
        _ if line.starts_with('#') || line.starts_with("kubernetes_feature_enabled") => line.to_owned(),
        Some((series, _)) if series.starts_with("kubernetes_build_info") => {
            let mut parts = series.split('"');
            let names: Vec<_> = parts.by_ref().step_by(2).collect();
            names.join("\"\"")
        }
        Some((series, _)) => series.to_owned(),
        None => panic!("{line}"),
    };
    page.lines().map(strip).collect()
}

fn assert_same(page: &str, golden: &str) {
    for (ours, upstream) in shape(page).iter().zip(golden.lines()) {
        assert_eq!(ours, upstream);
    }
    assert_eq!(shape(page).len(), golden.lines().count());
}

#[test]
fn names_help_types_labels_and_buckets_are_those_of_upstream() {
    assert_same(&in_use(Nftables).page(), include_str!("../../tests/fixtures/metrics/nftables.txt"));
    let metrics = in_use(Iptables);
    metrics.collect(Box::new(PacketCounts::new(|| Packets {
        ct_state_invalid_dropped: Some(1),
        localhost_nodeports_accepted: Some(2),
    })));
    assert_same(&metrics.page(), include_str!("../../tests/fixtures/metrics/iptables.txt"));
}

#[test]
fn a_mode_shows_no_metrics_of_other_modes() {
    for (mode, failures, absent) in [
        (Nftables, 2, "iptables"),
        (Iptables, 2, "nftables"),
        (Ipvs, 1, "nftables"),
        (Ipvs, 1, "kubeproxy_sync_full_"),
    ] {
        let metrics = in_use(mode);
        metrics.sync_proxy_rules_nftables_sync_failures.increment(["IPv4"]);
        metrics.sync_proxy_rules_nftables_cleanup_failures.increment(["IPv4"]);
        metrics.sync_proxy_rules_iptables_restore_failures.increment(["IPv4"]);
        metrics.sync_proxy_rules_iptables_partial_restore_failures.increment(["IPv4"]);
        let page = metrics.page();
        assert_eq!(
            page.lines().filter(|line| line.contains("failures_total{")).count(),
            failures,
            "{mode:?}"
        );
        assert!(!page.contains(absent), "{mode:?} {absent}");
    }
}

#[test]
fn names_are_unique_and_labels_in_order() {
    let metrics = in_use(Iptables);
    let names: BTreeSet<_> = metrics.registered().iter().map(|metric| metric.about().name).collect();
    assert_eq!(names.len(), metrics.registered().len());
    for line in metrics.page().lines().filter(|line| !line.starts_with('#')) {
        let labels: Vec<_> = line
            .split(['{', ','])
            .skip(1)
            .filter_map(|label| label.split_once('=').map(|(name, _)| name))
            .filter(|name| *name != "le")
            .collect();
        assert!(labels.is_sorted(), "{line}");
    }
}

#[test]
fn a_watch_is_counted_without_its_duration_and_a_missing_response_is_an_error() {
    let metrics = Metrics::new(Nftables);
    let took = Duration::from_secs(300);
    let exchange =
        Exchange { verb: &Method::GET, host: "api", code: None, took, request_bytes: 0, is_watch: true };
    metrics.answered(&exchange);
    let page = metrics.page();
    assert!(page.contains("\nrest_client_requests_total{code=\"<error>\",host=\"api\",method=\"GET\"} 1\n"));
    assert!(!page.contains("rest_client_request_duration_seconds"));
}

#[test]
fn the_age_of_a_watch_grows_until_its_next_message() {
    let metrics = Metrics::new(Nftables);
    assert!(!metrics.page().contains("sluice_watch"));
    let age = || {
        let page = metrics.page();
        let (_, rest) =
            page.split_once("\nsluice_watch_last_message_age_seconds{resource=\"nodes\"} ").unwrap();
        rest.lines().next().unwrap().parse::<f64>().unwrap()
    };
    metrics.message("nodes");
    let young = age();
    std::thread::sleep(Duration::from_millis(5));
    let old = age();
    assert!(old >= young + 0.005, "{old} after {young}");
    let before = std::time::Instant::now();
    metrics.message("nodes");
    assert!(age() <= before.elapsed().as_secs_f64());
}

#[test]
fn the_book_explains_every_metric() {
    let chapter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/metrics.md");
    let chapter = std::fs::read_to_string(chapter).unwrap();
    let explained: BTreeSet<&str> = chapter.split('`').collect();
    let mut names = BTreeSet::new();
    for mode in ALL_MODES {
        let metrics = Metrics::new(*mode);
        names.extend(metrics.registered().iter().map(|metric| metric.about().name));
    }
    let packets = PacketCounts::new(|| Packets {
        ct_state_invalid_dropped: Some(0),
        localhost_nodeports_accepted: Some(0),
    });
    let counted = connections::NewConnections::new(Family::V4, || Ok(Vec::new()));
    let collectors: [Box<dyn Collector>; 2] = [Box::new(packets), Box::new(counted)];
    let mut pages = text::page(ProcessMetrics::current().entries());
    pages.extend(collectors.into_iter().map(|mut collector| text::page(collector.entries())));
    names.extend(pages.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()));
    // These have no samples while there is nothing to count.
    names.extend(["sluice_service_new_connections_total", "sluice_endpoint_new_connections_total"]);
    let missing: Vec<_> = names.iter().filter(|name| !explained.contains(**name)).collect();
    assert!(names.len() > 40 && missing.is_empty(), "docs/src/metrics.md lacks {missing:?}");
}
