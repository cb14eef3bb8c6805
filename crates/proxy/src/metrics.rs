//! Every metric of the process, with upstream's names. Metrics are declared here and nowhere else.
//!
//! ```text
//!   sync, health, client ── set ──▶ Metrics ─┐
//!   kernel, /proc ── read at a scrape ───────┴─▶ page ─▶ /metrics
//! ```
//!
//! Implemented here, since dashboards and alerts match on the exact text: numbers and order as in Go, and help texts that begin
//! with the stability. No library writes that.

mod buckets;
pub mod connections;
pub mod kinds;
pub mod packets;
pub mod process;
mod rest_client;
pub mod text;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::address::Family;
use settings::config::ProxyMode::{self, Iptables, Ipvs, Nftables};
use settings::gates::Gates;
use settings::version::{Build, COMPILER, MAJOR, MINOR};

use buckets::{NETWORK_PROGRAMMING, REQUEST, REQUEST_SIZE, SYNC};
use kinds::{AgeVec, CounterVec, GaugeVec, HistogramVec, Metric};
use process::ProcessMetrics;
use text::Entry;
use text::Stability::{Alpha, Beta};

/// Reads metrics at each scrape. May take a while, but must not block forever.
pub trait Collector: Send {
    fn entries(&mut self) -> Vec<Entry>;
}

const ALL_MODES: &[ProxyMode] = &[Iptables, Ipvs, Nftables];

/// A field per metric, the modes that have it, and what it is.
macro_rules! catalogue {
    ($($field:ident: $kind:ty, $modes:expr, $new:expr;)*) => {
        /// All metrics. Code that causes a change sets them directly.
        pub struct Metrics {
            $(pub $field: $kind,)*
            mode: ProxyMode,
            /// When the last message of each resource's watch arrived.
            watch_messages: Mutex<BTreeMap<&'static str, Instant>>,
            collectors: Mutex<Vec<Box<dyn Collector>>>,
        }

        impl Metrics {
            fn unregistered(mode: ProxyMode) -> Self {
                Self { $($field: $new,)* mode, watch_messages: Mutex::default(), collectors: Mutex::default() }
            }

            /// The metrics of the mode.
            fn registered(&self) -> Vec<&dyn Metric> {
                let all: Vec<(&[ProxyMode], &dyn Metric)> = vec![$(($modes, &self.$field),)*];
                all.into_iter().filter(|(modes, _)| modes.contains(&self.mode)).map(|(_, metric)| metric).collect()
            }
        }
    };
}

catalogue! {
    sync_proxy_rules_duration: HistogramVec<1>, ALL_MODES, HistogramVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_duration_seconds", ["ip_family"], &SYNC,
        "SyncProxyRules latency in seconds");
    sync_full_proxy_rules_duration: HistogramVec<1>, &[Iptables, Nftables], HistogramVec::new(Alpha,
        "kubeproxy_sync_full_proxy_rules_duration_seconds", ["ip_family"], &SYNC,
        "SyncProxyRules latency in seconds for full resyncs");
    sync_partial_proxy_rules_duration: HistogramVec<1>, &[Iptables, Nftables], HistogramVec::new(Alpha,
        "kubeproxy_sync_partial_proxy_rules_duration_seconds", ["ip_family"], &SYNC,
        "SyncProxyRules latency in seconds for partial resyncs");
    sync_proxy_rules_last_timestamp: GaugeVec<1>, ALL_MODES, GaugeVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds", ["ip_family"],
        "The last time proxy rules were successfully synced");
    sync_proxy_rules_last_queued_timestamp: GaugeVec<1>, ALL_MODES, GaugeVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", ["ip_family"],
        "The last time a sync of proxy rules was queued");
    network_programming_duration: HistogramVec<1>, ALL_MODES, HistogramVec::new(Alpha,
        "kubeproxy_network_programming_duration_seconds", ["ip_family"], &NETWORK_PROGRAMMING,
        "In Cluster Network Programming Latency in seconds");
    sync_proxy_rules_endpoint_changes_pending: GaugeVec<0>, ALL_MODES, GaugeVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending", [],
        "Pending proxy rules Endpoint changes");
    sync_proxy_rules_endpoint_changes: CounterVec<0>, ALL_MODES, CounterVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_endpoint_changes_total", [],
        "Cumulative proxy rules Endpoint changes");
    sync_proxy_rules_service_changes_pending: GaugeVec<0>, ALL_MODES, GaugeVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_service_changes_pending", [],
        "Pending proxy rules Service changes");
    sync_proxy_rules_service_changes: CounterVec<0>, ALL_MODES, CounterVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_service_changes_total", [],
        "Cumulative proxy rules Service changes");
    sync_proxy_rules_no_local_endpoints: GaugeVec<2>, ALL_MODES, GaugeVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total", ["ip_family", "traffic_policy"],
        "Number of services with a Local traffic policy and no endpoints");
    proxy_healthz: CounterVec<1>, ALL_MODES, CounterVec::new(Alpha,
        "kubeproxy_proxy_healthz_total", ["code"],
        "Cumulative proxy healthz HTTP status");
    proxy_livez: CounterVec<1>, ALL_MODES, CounterVec::new(Alpha,
        "kubeproxy_proxy_livez_total", ["code"],
        "Cumulative proxy livez HTTP status");
    sync_proxy_rules_iptables_restore_failures: CounterVec<1>, &[Iptables, Ipvs], CounterVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", ["ip_family"],
        "Cumulative proxy iptables restore failures");
    sync_proxy_rules_iptables_partial_restore_failures: CounterVec<1>, &[Iptables], CounterVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total", ["ip_family"],
        "Cumulative proxy iptables partial restore failures");
    sync_proxy_rules_iptables_total: GaugeVec<2>, &[Iptables], GaugeVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_iptables_total", ["ip_family", "table"],
        "Total number of iptables rules owned by kube-proxy");
    sync_proxy_rules_iptables_last: GaugeVec<2>, &[Iptables], GaugeVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_iptables_last", ["ip_family", "table"],
        "Number of iptables rules written by kube-proxy in last sync");
    sync_proxy_rules_nftables_sync_failures: CounterVec<1>, &[Nftables], CounterVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", ["ip_family"],
        "Cumulative proxy nftables sync failures");
    sync_proxy_rules_nftables_cleanup_failures: CounterVec<1>, &[Nftables], CounterVec::new(Alpha,
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", ["ip_family"],
        "Cumulative proxy nftables cleanup failures");
    endpoints_left_out: GaugeVec<1>, &[Nftables], GaugeVec::new(Alpha,
        "sluice_endpoints_left_out", ["ip_family"],
        "Endpoints that get no traffic, since their service port has more than a frontend has slots for");
    conntrack_reconciler_sync_duration: HistogramVec<1>, ALL_MODES, HistogramVec::new(Alpha,
        "kubeproxy_conntrack_reconciler_sync_duration_seconds", ["ip_family"], &SYNC,
        "ReconcileConntrackFlowsLatency latency in seconds");
    conntrack_reconciler_deleted_entries: CounterVec<1>, ALL_MODES, CounterVec::new(Alpha,
        "kubeproxy_conntrack_reconciler_deleted_entries_total", ["ip_family"],
        "Cumulative conntrack flows deleted by conntrack reconciler");
    conntrack_recheck_age: AgeVec<1>, ALL_MODES, AgeVec::new(Alpha,
        "sluice_conntrack_recheck_age_seconds", ["ip_family"],
        "How long the oldest change has waited for a scan of conntrack entries that it may have made stale");
    drift_repairs: CounterVec<1>, ALL_MODES, CounterVec::new(Alpha,
        "sluice_drift_repairs_total", ["ip_family"],
        "Cumulative repairs of rules that something other than this proxy had changed");
    watch_last_message_age: GaugeVec<1>, ALL_MODES, GaugeVec::new(Alpha,
        "sluice_watch_last_message_age_seconds", ["resource"],
        "Seconds since the watch of a resource last began or brought an object or a bookmark");

    rest_client_requests: CounterVec<3>, ALL_MODES, CounterVec::new(Alpha,
        "rest_client_requests_total", ["code", "host", "method"],
        "Number of HTTP requests, partitioned by status code, method, and host.");
    rest_client_request_duration: HistogramVec<2>, ALL_MODES, HistogramVec::new(Alpha,
        "rest_client_request_duration_seconds", ["host", "verb"], &REQUEST,
        "Request latency in seconds. Broken down by verb, and host.");
    rest_client_rate_limiter_duration: HistogramVec<2>, ALL_MODES, HistogramVec::new(Alpha,
        "rest_client_rate_limiter_duration_seconds", ["host", "verb"], &REQUEST,
        "Client side rate limiter latency in seconds. Broken down by verb, and host.");
    rest_client_request_size: HistogramVec<2>, ALL_MODES, HistogramVec::new(Alpha,
        "rest_client_request_size_bytes", ["host", "verb"], &REQUEST_SIZE,
        "Request size in bytes. Broken down by verb and host.");
    rest_client_response_size: HistogramVec<2>, ALL_MODES, HistogramVec::new(Alpha,
        "rest_client_response_size_bytes", ["host", "verb"], &REQUEST_SIZE,
        "Response size in bytes. Broken down by verb and host.");

    build_info: GaugeVec<9>, ALL_MODES, GaugeVec::new(Beta,
        "kubernetes_build_info",
        ["build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version", "major", "minor", "platform"],
        "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, \
         build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.");
    feature_enabled: GaugeVec<2>, ALL_MODES, GaugeVec::new(Beta,
        "kubernetes_feature_enabled", ["name", "stage"],
        "This metric records the data about the stage and enablement of a k8s feature.");
    registered_metrics: CounterVec<2>, ALL_MODES, CounterVec::new(Beta,
        "registered_metrics_total", ["deprecated_version", "stability_level"],
        "The count of registered metrics broken by stability level and deprecation version.");
    hidden_metrics: CounterVec<0>, ALL_MODES, CounterVec::new(Beta,
        "hidden_metrics_total", [],
        "The count of hidden metrics.");
    disabled_metrics: CounterVec<0>, ALL_MODES, CounterVec::new(Beta,
        "disabled_metrics_total", [],
        "The count of disabled metrics.");
}

impl Metrics {
    pub fn new(mode: ProxyMode) -> Self {
        let metrics = Self::unregistered(mode);
        for metric in metrics.registered() {
            if let Some(stability) = metric.about().stability {
                metrics.registered_metrics.increment(["", stability.name()]);
            }
        }
        metrics
    }

    /// Sets the metrics of the build and the feature gates.
    pub fn describe(&self, build: &Build, gates: &Gates) {
        self.build_info.set(
            [
                build.build_date,
                COMPILER,
                build.git_commit,
                build.git_tree_state,
                &build.git_version,
                build.go_version,
                MAJOR,
                MINOR,
                &build.platform,
            ],
            1.0,
        );
        for (gate, is_on) in gates.states() {
            self.feature_enabled.set([gate.name, gate.stage_label()], f64::from(u8::from(is_on)));
        }
    }

    /// Adds metrics that are read at each scrape.
    pub fn collect(&self, collector: Box<dyn Collector>) {
        self.collectors.lock().unwrap_or_else(PoisonError::into_inner).push(collector);
    }

    /// The time since the last message of each watch, by resource. A watch that has begun counts as a message.
    pub fn watch_ages(&self) -> Vec<(&'static str, Duration)> {
        let messages = self.watch_messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.iter().map(|(resource, at)| (*resource, at.elapsed())).collect()
    }

    /// The text of `/metrics`. Reads the kernel, so it may take a while.
    pub fn page(&self) -> String {
        for (resource, age) in self.watch_ages() {
            self.watch_last_message_age.set([resource], age.as_secs_f64());
        }
        let mut entries: Vec<_> = self.registered().into_iter().map(Metric::entry).collect();
        entries.extend(ProcessMetrics::current().entries());
        let mut collectors = self.collectors.lock().unwrap_or_else(PoisonError::into_inner);
        entries.extend(collectors.iter_mut().flat_map(|collector| collector.entries()));
        text::page(entries)
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// Converts a count to a float, as Prometheus has it.
#[allow(clippy::cast_precision_loss, reason = "no count is that large")]
pub fn count(number: impl TryInto<u64>) -> f64 {
    number.try_into().unwrap_or(u64::MAX) as f64
}

/// The value of the label `ip_family`.
pub fn ip_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

#[cfg(test)]
mod tests;
