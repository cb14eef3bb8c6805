//! The family worker: the thread of one IP family. It owns the family's store and backend, so that nothing between an event and the
//! kernel needs a lock.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::drift::Drift;
use kernel::inspection::DesiredState;
use kernel::nftables::Owners;
use kernel::outcome::Outcome;
use model::address::Family;
use model::backlog::Update;
use model::cluster::{Cluster, Here};
use model::names::{NamespacedName, ServicePortName};
use plan::explain::{self, Explanation, HealthCheckAnswer};

use super::drift::DriftWatch;
use super::inbox::{Inbox, InboxContents};
use super::report::{EventCounts, Reports};
use super::syncing::Syncing;
use super::{FamilyHandle, Start};
use crate::backend::SyncError;
use crate::debug_api::packet_query::{PacketQuery, route_source};
use crate::flows::FlowFollower;
use crate::metrics::Metrics;
use crate::rate_limit::AttemptResult;
use crate::threads;

/// The timeout of the inbox while nothing is due.
const MAX_INBOX_WAIT: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
pub struct Worker {
    family: Family,
    cluster: Cluster,
    /// All addresses of the node, of both families.
    node_addresses: Arc<[IpAddr]>,
    events: EventCounts,
    metrics: Arc<Metrics>,
    /// For threads that the worker starts.
    handle: FamilyHandle,
    /// `None` until everything about the node is known.
    running: Option<Running>,
}

/// A worker that may sync.
struct Running {
    syncing: Syncing,
    flows: FlowFollower,
    drift: DriftWatch,
    reports: Reports,
}

impl Worker {
    pub fn new(here: Here, metrics: Arc<Metrics>, handle: FamilyHandle) -> Self {
        Self {
            family: here.family,
            cluster: Cluster::new(here),
            node_addresses: Arc::default(),
            events: EventCounts::new(metrics.clone()),
            metrics,
            handle,
            running: None,
        }
    }

    /// Never returns.
    pub fn run(mut self, inbox: &Inbox) {
        loop {
            let timeout = self
                .running
                .as_ref()
                .map_or(MAX_INBOX_WAIT, |running| running.time_until_due(Instant::now()));
            self.receive(inbox.take(timeout.min(MAX_INBOX_WAIT)));
            self.sync_if_due(Instant::now());
            if let Some(running) = &mut self.running {
                running.syncing.log_held_back(Instant::now());
            }
        }
    }

    fn receive(&mut self, contents: InboxContents) {
        let InboxContents { mut backlog, start, node_addresses, drift, other_modes_removed, queries } =
            contents;
        self.apply(&backlog.take());
        if let Some(addresses) = node_addresses {
            self.node_addresses = addresses;
            self.running.iter_mut().for_each(|running| running.node_addresses_changed(&self.node_addresses));
        }
        if let Some(start) = start {
            self.start(*start);
        }
        drift.into_iter().for_each(|drift| self.drifted(drift));
        if other_modes_removed && let Some(running) = &mut self.running {
            let backend = &mut running.syncing.backend;
            running.flows.other_modes_removed(self.cluster.frontends(), |to| backend.is_unused(to));
        }
        queries.into_iter().for_each(|query| query(self));
    }

    /// Applies a whole backlog: until then the cluster may be inconsistent.
    fn apply(&mut self, updates: &[Update]) {
        let was_complete = self.cluster.is_complete();
        for update in updates {
            for note in self.cluster.apply_update(update) {
                let (field, value) = note.detail.unwrap_or_default();
                tracing::error!(ipFamily = %self.family, object = note.object, field, value, "{}", note.message);
            }
        }
        self.events.add_new(&self.cluster);
        // An incomplete cluster cannot be synced. Its completion requests a sync even if that has nothing to change.
        let has_changes = self.cluster.has_changes() || !was_complete;
        if !updates.is_empty()
            && has_changes
            && self.cluster.is_complete()
            && let Some(running) = &mut self.running
        {
            running.syncing.rate_limiter.request();
            running.reports.queued();
        }
    }

    fn start(&mut self, start: Start) {
        let Start { node_ip, backend, flows, node_port_addresses, explain_settings, .. } = start;
        let Start { min_interval, sync_period, health, service_health, take_over, .. } = start;
        self.cluster.set_node_ip(node_ip);
        let family = self.family;
        let intervals = (min_interval, sync_period);
        let syncing =
            Syncing::new(family, backend, intervals, node_port_addresses, explain_settings, take_over);
        let handle = self.handle.clone();
        let drift = DriftWatch::new(family, move |drift| handle.drifted(drift));
        let reports = Reports::new(family, self.metrics.clone(), health, service_health, sync_period);
        let running = self.running.insert(Running { syncing, flows, drift, reports });
        running.node_addresses_changed(&self.node_addresses);
        running.drift.listen(&mut *running.syncing.backend);
    }

    fn drifted(&mut self, drift: Drift) {
        let Some(running) = &mut self.running else { return };
        if running.drift.detected(drift, Instant::now()) {
            running.syncing.suspect_drift();
        }
    }

    fn sync_if_due(&mut self, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if running.drift.begin(now) {
            running.syncing.suspect_drift();
        }
        if !running.syncing.rate_limiter.time_until_due(now).is_zero() {
            return;
        }
        let (family, mode) = (self.family, running.syncing.backend.mode());
        running.syncing.rate_limiter.started(now);
        if !self.cluster.is_complete() {
            tracing::debug!(v = 2, ipFamily = %family, "Not syncing {mode} until Services and Endpoints have been received from master");
            return;
        }
        tracing::debug!(v = 2, ipFamily = %family, "Syncing {mode} rules");
        running.sync(&mut self.cluster, &self.handle);
        self.events.set_pending(&self.cluster);
    }

    pub fn explain(&self, query: &PacketQuery) -> Result<Explanation, String> {
        let ready = self.running.as_ref().filter(|_| self.cluster.is_complete());
        let Running { syncing, reports, .. } =
            ready.ok_or("the proxy has only just started: try again in a moment")?;
        let packet = query.packet(&self.node_addresses, self.cluster.node_ip(), route_source);
        let packet = packet.map_err(|error| error.to_string())?;
        let slots = |name: &ServicePortName| syncing.backend.slots(name);
        let explained = explain::explain_in_slots(
            &packet,
            &syncing.explain_settings,
            &self.node_addresses,
            &self.cluster,
            slots,
        );
        let mut explanation = explained.map_err(|error| error.to_string())?;
        if let Some(check) = &mut explanation.health_check {
            let service = NamespacedName::new(&check.namespace, &check.service);
            *check = HealthCheckAnswer::new(&service, check.local_endpoints, reports.health.is_healthy());
            check.trouble = reports.service_health.open_error(&service).map(Into::into);
        }
        Ok(explanation)
    }

    /// The desired state; `None` before the first successful sync.
    pub fn desired(&self) -> Option<DesiredState> {
        let running = self.running.as_ref().filter(|running| running.syncing.has_synced)?;
        Some(running.syncing.backend.desired())
    }

    /// The service ports and endpoints whose new connections the kernel counts.
    pub fn owners(&self) -> Owners {
        self.running.as_ref().map(|running| running.syncing.backend.owners()).unwrap_or_default()
    }
}

impl Running {
    /// The time until something is due, if no message arrives before.
    fn time_until_due(&self, now: Instant) -> Duration {
        let repair = self.drift.due().map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        self.syncing.time_until_due(now).min(repair)
    }

    /// One attempt at a sync: takes the changes, has the backend plan and commit the steps to them, settles what follows from the
    /// rules being in place, and reports.
    fn sync(&mut self, cluster: &mut Cluster, handle: &FamilyHandle) {
        let mut changes = cluster.take_changes();
        self.flows.prepare(&mut changes);
        self.reports.begin(&mut changes);
        let committed = self.syncing.backend.sync(changes);
        if let Ok(outcome) = committed {
            self.settle(outcome, cluster, handle);
        }
        let result = committed
            .as_ref()
            .map_or_else(|error| AttemptResult::Failed(error.retry), |_| AttemptResult::Succeeded);
        let elapsed = self.syncing.rate_limiter.ended(Instant::now(), result);
        match (elapsed, committed) {
            (Some(elapsed), Ok(outcome)) => self.reports.observe_duration(elapsed, Some(outcome)),
            (Some(elapsed), Err(error)) => {
                self.reports.observe_duration(elapsed, None);
                self.fail(&error);
            }
            (None, committed) => {
                if let Err(SyncError { cause, .. }) = committed {
                    let err = format!("{cause:#}");
                    tracing::debug!(v = 2, ipFamily = %handle.family(), err, "Sync failed, trying again immediately");
                }
            }
        }
    }

    fn fail(&mut self, error: &SyncError) {
        let Syncing { backend, rate_limiter, .. } = &mut self.syncing;
        backend.sync_failed();
        self.reports.failed(
            &format!("{:#}", error.cause),
            backend.mode(),
            rate_limiter.retry_delay(),
            Instant::now(),
        );
    }

    /// The rules are committed.
    fn settle(&mut self, outcome: Outcome, cluster: &Cluster, handle: &FamilyHandle) {
        if self.drift.was_repaired_by(outcome) {
            // Until now packets may have been translated by other rules, and their flows still are.
            self.flows.recheck_everything(cluster.frontends());
        }
        if let Some(repaired) = self.drift.synced(outcome, Instant::now()) {
            self.reports.repaired(repaired);
        }
        self.reports.synced(cluster.counts());
        let backend = &mut *self.syncing.backend;
        self.flows.committed(|to| backend.is_unused(to));
        self.syncing.has_synced = true;
        if let Some(take_over) = self.syncing.take_over.take() {
            let handle = handle.clone();
            threads::spawn_or_log(handle.family(), "take-over", move || {
                take_over();
                handle.other_modes_removed();
            });
        }
        self.drift.listen(&mut *self.syncing.backend);
    }

    fn node_addresses_changed(&mut self, addresses: &[IpAddr]) {
        let serving = self.syncing.node_addresses_changed(addresses);
        self.flows.node_ips_changed(serving);
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("backend", &self.syncing.backend).finish_non_exhaustive()
    }
}
