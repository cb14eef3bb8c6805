//! What reports: health, metrics, logs and latencies of one family's syncs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::{Changes, Cluster, Counts};

use crate::health::node::NodeHealth;
use crate::health::service::ServiceHealth;
use crate::metrics::{Metrics, count, ip_family};
use crate::repairs::Repaired;
use settings::duration::Duration as GoDuration;

#[derive(Debug)]
pub struct Reports {
    family: Family,
    metrics: Arc<Metrics>,
    pub health: Arc<NodeHealth>,
    pub service_health: ServiceHealth,
    /// The same failure is logged once in this time.
    sync_period: Duration,
    /// When changes were triggered that no successful sync has written yet.
    trigger_times: Vec<Timestamp>,
    /// The error that was last logged, and when, as long as syncs fail.
    failure: Option<(Instant, String)>,
}

impl Reports {
    pub fn new(
        family: Family,
        metrics: Arc<Metrics>,
        health: Arc<NodeHealth>,
        service_health: ServiceHealth,
        sync_period: Duration,
    ) -> Self {
        health.started(family);
        // There from the start, so that an alert sees the first one.
        metrics.drift_repairs.add([ip_family(family)], 0.0);
        metrics.sync_proxy_rules_last_queued_timestamp.set_to_time([ip_family(family)], Timestamp::now());
        let (trigger_times, failure) = (Vec::new(), None);
        Self { family, metrics, health, service_health, sync_period, trigger_times, failure }
    }

    /// A sync is due because of an event: health counts from here.
    pub fn queued(&self) {
        self.health.queued(self.family);
        let family = [ip_family(self.family)];
        self.metrics.sync_proxy_rules_last_queued_timestamp.set_to_time(family, Timestamp::now());
    }

    /// A sync begins with these changes.
    pub fn begin(&mut self, changes: &mut Changes) {
        // A sync that fails is due from its first attempt, also if no event asked for it. Upstream counts only events.
        self.health.queued(self.family);
        self.service_health.hear(std::mem::take(&mut changes.health_checks));
        let times = std::mem::take(&mut changes.trigger_times);
        self.trigger_times.extend(times.into_iter().flat_map(|(_, times)| times));
    }

    /// The rules of a sync are committed.
    pub fn synced(&mut self, counts: Counts) {
        self.failure = None;
        self.observe_latencies();
        self.show_lack_of_local_endpoints(counts);
        self.health.synced(self.family);
        let family = [ip_family(self.family)];
        self.metrics.sync_proxy_rules_last_timestamp.set_to_time(family, Timestamp::now());
        self.service_health.settle();
    }

    pub fn repaired(&self, repaired: Repaired) {
        let family = self.family;
        self.metrics.drift_repairs.increment([ip_family(family)]);
        match repaired {
            Repaired::Once(by) => {
                tracing::warn!(ipFamily = %family, by = by.to_string(), "Repaired rules that another process had changed");
            }
            Repaired::Slowed(by, delay) => {
                let delay = GoDuration::from(delay);
                tracing::warn!(ipFamily = %family, by = by.to_string(), %delay, "Another process keeps changing the rules: repairing them ever more slowly until it stops");
            }
            Repaired::Again => {
                tracing::debug!(v = 2, ipFamily = %family, "Repaired rules again that another process keeps changing");
            }
        }
    }

    /// A sync failed, and is tried again after `retry`. The same error is logged once per sync period: until the first sync has
    /// succeeded, attempts are many.
    pub fn failed(&mut self, error: &str, mode: &str, retry: Option<Duration>, now: Instant) {
        let is_known = self.failure.as_ref().is_some_and(|(logged, known)| {
            known == error && now.saturating_duration_since(*logged) < self.sync_period
        });
        if is_known {
            return;
        }
        let family = self.family;
        tracing::error!(ipFamily = %family, err = error, "{mode} sync failed");
        if let Some(retry) = retry {
            tracing::info!(ipFamily = %family, retryingTime = %GoDuration::from(retry), "Sync failed");
        }
        self.failure = Some((now, error.to_owned()));
    }

    /// How long a sync took; one that failed before it knew its kind counts as full, which the next one will be.
    pub fn observe_duration(&self, elapsed: Duration, outcome: Option<Outcome>) {
        let (family, seconds) = ([ip_family(self.family)], elapsed.as_secs_f64());
        self.metrics.sync_proxy_rules_duration.observe(family, seconds);
        match outcome {
            Some(Outcome { is_full: false, .. }) => {
                self.metrics.sync_partial_proxy_rules_duration.observe(family, seconds)
            }
            Some(Outcome { is_full: true, .. }) | None => {
                self.metrics.sync_full_proxy_rules_duration.observe(family, seconds)
            }
        }
    }

    /// From each change in the cluster until now.
    fn observe_latencies(&mut self) {
        let now = Timestamp::now();
        for triggered in self.trigger_times.drain(..) {
            let latency = now.duration_since(triggered).as_secs_f64();
            self.metrics.network_programming_duration.observe([ip_family(self.family)], latency);
        }
    }

    fn show_lack_of_local_endpoints(&self, counts: Counts) {
        let gauge = &self.metrics.sync_proxy_rules_no_local_endpoints;
        let family = ip_family(self.family);
        gauge.set([family, "internal"], count(counts.internal_without_local));
        gauge.set([family, "external"], count(counts.external_without_local));
    }
}

/// Counts events in the metrics. Families share these, so that only what is new is added.
#[derive(Debug)]
pub struct EventCounts {
    metrics: Arc<Metrics>,
    /// What the metrics have counted.
    counted: Counts,
}

impl EventCounts {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, counted: Counts::default() }
    }

    pub fn add_new(&mut self, cluster: &Cluster) {
        let (now, before) = (cluster.counts(), self.counted);
        let services = now.service_changes - before.service_changes;
        let endpoints = now.endpoint_changes - before.endpoint_changes;
        if services > 0 {
            self.metrics.sync_proxy_rules_service_changes.add([], count(services));
        }
        if endpoints > 0 {
            self.metrics.sync_proxy_rules_endpoint_changes.add([], count(endpoints));
        }
        if services > 0 || endpoints > 0 {
            self.show_pending(cluster);
        }
        self.counted = now;
    }

    pub fn show_pending(&self, cluster: &Cluster) {
        let (services, slices) = cluster.pending();
        self.metrics.sync_proxy_rules_service_changes_pending.set([], count(services));
        self.metrics.sync_proxy_rules_endpoint_changes_pending.set([], count(slices));
    }
}
