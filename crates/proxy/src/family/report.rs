//! The part of a family worker that reports its syncs: health, metrics, logs and latencies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::{Cluster, Counts};
use model::names::NamespacedName;

use crate::health::node::NodeHealth;
use crate::metrics::{Metrics, count, ip_family};
use crate::repairs::Repaired;
use settings::duration::Duration as GoDuration;

#[derive(Debug)]
pub struct Reports {
    family: Family,
    metrics: Arc<Metrics>,
    pub health: Arc<NodeHealth>,
    /// The interval at which an unchanged failure is logged again.
    sync_period: Duration,
    /// The trigger times of changes that no successful sync has written yet.
    trigger_times: Vec<Timestamp>,
    /// The error that was last logged, and when; `None` after a successful sync.
    failure: Option<(Instant, String)>,
}

impl Reports {
    pub fn new(
        family: Family,
        metrics: Arc<Metrics>,
        health: Arc<NodeHealth>,
        sync_period: Duration,
    ) -> Self {
        health.started(family);
        // Present from the start, so that an alert sees the first repair.
        metrics.drift_repairs.add([ip_family(family)], 0.0);
        metrics.sync_proxy_rules_last_queued_timestamp.set_to_time([ip_family(family)], Timestamp::now());
        let (trigger_times, failure) = (Vec::new(), None);
        Self { family, metrics, health, sync_period, trigger_times, failure }
    }

    /// An event requests a sync: health measures from here.
    pub fn queued(&self) {
        self.health.queued(self.family);
        let family = [ip_family(self.family)];
        self.metrics.sync_proxy_rules_last_queued_timestamp.set_to_time(family, Timestamp::now());
    }

    /// A sync begins, with changes that were triggered at these times.
    pub fn begin(&mut self, trigger_times: &[(NamespacedName, Vec<Timestamp>)]) {
        // A sync that fails is due from its first attempt, even if no event requested it. Upstream counts only events.
        self.health.queued(self.family);
        self.trigger_times.extend(trigger_times.iter().flat_map(|(_, times)| times));
    }

    /// The rules of a sync are committed.
    pub fn synced(&mut self, counts: Counts) {
        self.failure = None;
        self.observe_latencies();
        self.set_no_local_endpoints(counts);
        self.health.synced(self.family);
        let family = [ip_family(self.family)];
        self.metrics.sync_proxy_rules_last_timestamp.set_to_time(family, Timestamp::now());
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
                tracing::warn!(ipFamily = %family, by = by.to_string(), %delay, "Another process keeps changing the rules: repairing them at growing intervals until it stops");
            }
            Repaired::Again => {
                tracing::debug!(v = 2, ipFamily = %family, "Repaired rules again that another process keeps changing");
            }
        }
    }

    /// A sync failed, and is retried after `retry`. An unchanged error is logged once per sync period: until the first sync has
    /// succeeded, retries are frequent.
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

    /// Counts a failed sync as full, since its outcome is not known and the next sync will be full.
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

    /// The latency of each change is the time from its trigger until now.
    fn observe_latencies(&mut self) {
        let now = Timestamp::now();
        for triggered in self.trigger_times.drain(..) {
            let latency = now.duration_since(triggered).as_secs_f64();
            self.metrics.network_programming_duration.observe([ip_family(self.family)], latency);
        }
    }

    fn set_no_local_endpoints(&self, counts: Counts) {
        let gauge = &self.metrics.sync_proxy_rules_no_local_endpoints;
        let family = ip_family(self.family);
        gauge.set([family, "internal"], count(counts.internal_without_local));
        gauge.set([family, "external"], count(counts.external_without_local));
    }
}

/// Counts events in the metrics. Families share these metrics, so each adds only what is new.
#[derive(Debug)]
pub struct EventCounts {
    metrics: Arc<Metrics>,
    /// What this family has added to the metrics.
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
            self.set_pending(cluster);
        }
        self.counted = now;
    }

    pub fn set_pending(&self, cluster: &Cluster) {
        let (services, slices) = cluster.pending();
        self.metrics.sync_proxy_rules_service_changes_pending.set([], count(services));
        self.metrics.sync_proxy_rules_endpoint_changes_pending.set([], count(slices));
    }
}
