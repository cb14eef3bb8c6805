//! The part of a family worker that syncs: when a sync is due, what it commits, and what follows from a commit. It exists once
//! everything about the node is known.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::drift::Drift;
use kernel::inspection::DesiredState;
use kernel::nftables::CounterOwners;
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::Cluster;
use model::local::NodePortAddresses;
use model::names::{NamespacedName, ServicePortName};
use plan::explain::{self, Explanation, HealthCheckAnswer};
use plan::walk::Packet;

use super::drift::DriftWatch;
use super::report::Reports;
use super::{Start, TakeOver};
use crate::backend::{AfterTimer, Backend, SyncError};
use crate::flows::FlowFollower;
use crate::health::service::ServiceHealth;
use crate::metrics::Metrics;
use crate::rate_limit::{AfterFailure, MinInterval, RateLimiter};
use crate::threads;
use settings::duration::Duration as GoDuration;

/// A sync runs this long after the last one even if nothing has changed.
const MAX_SYNC_INTERVAL: Duration = Duration::from_secs(3_600);

/// The number of Services of an early commit. Meanwhile events accumulate, so it must not take long.
const PRELOADED_SERVICES: usize = 500;

pub struct Syncer {
    family: Family,
    backend: Box<dyn Backend>,
    rate_limiter: RateLimiter,
    drift: DriftWatch,
    flows: FlowFollower,
    service_health: ServiceHealth,
    reports: Reports,
    /// How packets traverse the rules of the backend.
    explain_settings: explain::ExplainSettings,
    /// Whether Services can be loaded before the first lists have ended.
    can_preload: bool,
    /// Whether a sync has succeeded.
    has_synced: bool,
    /// To run after the first successful sync; `None` once it has begun.
    take_over: Option<TakeOver>,
    /// Where node ports are served.
    node_port_addresses: NodePortAddresses,
    /// When the backend has something to do besides syncs; `None` if it has not.
    backend_due: Option<Instant>,
}

impl Syncer {
    pub fn new(family: Family, start: Start, drift: DriftWatch, metrics: Arc<Metrics>) -> Self {
        let Start { backend, flows, node_port_addresses, explain_settings, .. } = start;
        let Start { min_interval, sync_period, health, service_health, take_over, .. } = start;
        let (MinInterval::Fixed(min_sync) | MinInterval::Proportional(min_sync)) = min_interval;
        tracing::debug!(
            v = 2,
            ipFamily = %family,
            minSyncPeriod = %GoDuration::from(min_sync),
            syncPeriod = %GoDuration::from(sync_period),
            maxSyncPeriod = %GoDuration::from(MAX_SYNC_INTERVAL),
            "{} sync params", backend.title()
        );
        let mut rate_limiter = RateLimiter::new(min_interval, sync_period, MAX_SYNC_INTERVAL, Instant::now());
        rate_limiter.request();
        Self {
            family,
            backend,
            rate_limiter,
            drift,
            flows,
            service_health,
            reports: Reports::new(family, metrics, health, sync_period),
            explain_settings,
            can_preload: true,
            has_synced: false,
            take_over: Some(take_over),
            node_port_addresses,
            backend_due: None,
        }
    }

    /// The time until something is due, if no message arrives before.
    pub fn time_until_due(&self, now: Instant) -> Duration {
        let until =
            |due: Option<Instant>| due.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        self.rate_limiter.time_until_due(now).min(until(self.backend_due)).min(until(self.drift.due()))
    }

    /// An event has changed what the kernel should hold.
    pub fn request(&mut self) {
        self.rate_limiter.request();
        self.reports.queued();
    }

    pub fn drifted(&mut self, drift: Drift) {
        if self.drift.detected(drift, Instant::now()) {
            self.suspect_drift();
        }
    }

    /// Requests a sync that compares the kernel with the desired state.
    fn suspect_drift(&mut self) {
        self.backend.suspect_drift();
        self.rate_limiter.request();
    }

    /// Listens for foreign writers, if they can change what the backend has written.
    pub fn listen_for_drift(&mut self) {
        self.drift.listen(&mut *self.backend);
    }

    /// Requests a sync only if rules depend on the change: addresses of pods' interfaces change all the time.
    pub fn node_addresses_changed(&mut self, addresses: &[IpAddr]) {
        let of_family = addresses.iter().copied().filter(|ip| Family::of(*ip) == self.family);
        let all: Vec<IpAddr> = of_family.collect();
        let serving = self.node_port_addresses.among(&all);
        if self.backend.set_node_addresses(&all, &serving) {
            self.rate_limiter.request();
        }
        self.flows.node_ips_changed(serving);
    }

    /// The rules of other modes have been removed.
    pub fn other_modes_removed(&mut self, cluster: &Cluster) {
        let backend = &mut self.backend;
        self.flows.other_modes_removed(cluster.frontends(), |to| backend.is_unused(to));
    }

    /// Returns whether a sync is due. If so, requests from now on are for the next one.
    pub fn begin_if_due(&mut self, now: Instant) -> bool {
        if self.drift.begin(now) {
            self.suspect_drift();
        }
        let is_due = self.rate_limiter.time_until_due(now).is_zero();
        if is_due {
            self.rate_limiter.started(now);
        }
        is_due
    }

    /// Whether Services that have arrived before the first lists have ended can be loaded, and are worth a commit.
    pub fn should_preload(&self, cluster: &Cluster) -> bool {
        self.can_preload && !cluster.is_complete() && cluster.arrived() >= PRELOADED_SERVICES
    }

    /// Loads some of the Services that have arrived.
    pub fn preload(&mut self, cluster: &mut Cluster) {
        let mut take = || {
            let changes = cluster.take_early(PRELOADED_SERVICES);
            self.flows.prepare(&changes);
            self.service_health.apply(changes.health_checks.iter().cloned());
            changes
        };
        self.can_preload = self.backend.preload(&mut take);
    }

    /// One attempt at a sync: takes the changes, has the backend plan and commit the steps to them, does what follows from the
    /// rules being in place, and reports.
    pub fn sync(&mut self, cluster: &mut Cluster) {
        let changes = cluster.take_changes();
        self.flows.prepare(&changes);
        self.reports.begin(&changes.trigger_times);
        self.service_health.apply(changes.health_checks.iter().cloned());
        match self.backend.sync(changes) {
            Ok(outcome) => {
                self.after_commit(outcome, cluster);
                let elapsed = self.rate_limiter.succeeded(Instant::now());
                self.reports.observe_duration(elapsed, Some(outcome));
            }
            Err(error) => match self.rate_limiter.failed(Instant::now(), error.retry) {
                AfterFailure::AnotherAttempt => {
                    let err = format!("{:#}", error.cause);
                    tracing::debug!(v = 2, ipFamily = %self.family, err, "Sync failed, trying again immediately");
                }
                AfterFailure::SyncFailed(elapsed) => {
                    self.reports.observe_duration(elapsed, None);
                    self.fail(&error);
                }
            },
        }
    }

    fn fail(&mut self, error: &SyncError) {
        self.backend.sync_failed();
        self.reports.failed(
            &format!("{:#}", error.cause),
            self.backend.mode(),
            self.rate_limiter.retry_delay(),
            Instant::now(),
        );
    }

    /// The rules are committed.
    fn after_commit(&mut self, outcome: Outcome, cluster: &Cluster) {
        if self.drift.was_repaired_by(outcome) {
            // Until now packets may have been translated by other rules, and their flows still are.
            self.flows.recheck_everything(cluster.frontends());
        }
        if let Some(repaired) = self.drift.synced(outcome, Instant::now()) {
            self.reports.repaired(repaired);
        }
        self.reports.synced(cluster.counts());
        self.service_health.update_ports();
        let backend = &mut *self.backend;
        self.flows.committed(|to| backend.is_unused(to));
        self.has_synced = true;
        if let Some(take_over) = self.take_over.take() {
            threads::spawn_or_log(self.family, "take-over", take_over);
        }
        self.listen_for_drift();
    }

    /// Has the backend do what is due besides syncs.
    pub fn on_timer(&mut self, now: Instant) {
        self.backend_due = None;
        match self.backend.on_timer(now) {
            AfterTimer::Nothing => {}
            AfterTimer::Again(due) => self.backend_due = Some(due),
            AfterTimer::Sync => self.rate_limiter.request(),
        }
    }

    /// What would happen to a packet.
    pub fn explain(
        &self,
        packet: &Packet,
        node_addresses: &[IpAddr],
        cluster: &Cluster,
    ) -> Result<Explanation, String> {
        let slots = |name: &ServicePortName| self.backend.slots(name);
        let explained =
            explain::explain_in_slots(packet, &self.explain_settings, node_addresses, cluster, slots);
        let mut explanation = explained.map_err(|error| error.to_string())?;
        if let Some(check) = &mut explanation.health_check {
            let service = NamespacedName::new(&check.namespace, &check.service);
            let is_healthy = self.reports.health.is_healthy();
            *check = HealthCheckAnswer::new(&service, check.local_endpoints, is_healthy);
            check.trouble = self.service_health.open_error(&service).map(Into::into);
        }
        Ok(explanation)
    }

    /// The desired state; `None` before the first successful sync.
    pub fn desired(&self) -> Option<DesiredState> {
        self.has_synced.then(|| self.backend.desired())
    }

    /// The service ports and endpoints whose new connections the kernel counts.
    pub fn counter_owners(&self) -> CounterOwners {
        self.backend.counter_owners()
    }

    /// The name of the mode in logs.
    pub fn mode(&self) -> &'static str {
        self.backend.mode()
    }
}

impl fmt::Debug for Syncer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Syncer").field("backend", &self.backend).finish_non_exhaustive()
    }
}
