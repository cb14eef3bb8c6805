//! The thread of one IP family. It owns the family's store and backend, so that nothing between an event and the kernel needs a lock.

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
use plan::explain::{self, Explanation, HealthCheck};

use super::drift::DriftWatch;
use super::inbox::{Inbox, Mail};
use super::report::{EventCounts, Reports};
use super::syncing::Syncing;
use super::{FamilyHandle, Start};
use crate::backend::SyncError;
use crate::debug_api::question::{Question, kernel_picks};
use crate::flows::FlowFollower;
use crate::metrics::Metrics;
use crate::pace::Ended;
use crate::threads;

/// A worker without anything to do looks at its inbox once in a while.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

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
            let wait = self.running.as_ref().map_or(LONGEST_WAIT, |running| running.wait(Instant::now()));
            self.receive(inbox.take(wait.min(LONGEST_WAIT)));
            self.sync_if_due(Instant::now());
            if let Some(running) = &mut self.running {
                running.syncing.log_held_back(Instant::now());
            }
        }
    }

    fn receive(&mut self, mail: Mail) {
        let Mail { mut backlog, start, node_addresses, drift, other_modes_removed, questions } = mail;
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
        questions.into_iter().for_each(|answer| answer(self));
    }

    /// All of a backlog, before anything else looks at the cluster.
    fn apply(&mut self, updates: &[Update]) {
        let was_complete = self.cluster.is_complete();
        for update in updates {
            for note in self.cluster.apply_update(update) {
                let (field, value) = note.detail.unwrap_or_default();
                tracing::error!(ipFamily = %self.family, object = note.object, field, value, "{}", note.message);
            }
        }
        self.events.add_new(&self.cluster);
        // Before the cluster is complete nothing can be done. Then there is a sync, be it one that finds nothing to do.
        let has_changes = self.cluster.has_changes() || !was_complete;
        if !updates.is_empty()
            && has_changes
            && self.cluster.is_complete()
            && let Some(running) = &mut self.running
        {
            running.syncing.pace.ask();
            running.reports.queued();
        }
    }

    fn start(&mut self, start: Start) {
        let Start { node_ip, backend, flows, node_port_addresses, tracing, .. } = start;
        let Start { pause, sync_period, health, service_health, take_over, .. } = start;
        self.cluster.move_to(node_ip);
        let family = self.family;
        let rhythm = (pause, sync_period);
        let syncing = Syncing::new(family, backend, rhythm, node_port_addresses, tracing, take_over);
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
            running.syncing.distrust();
        }
    }

    fn sync_if_due(&mut self, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if running.drift.begin(now) {
            running.syncing.distrust();
        }
        if !running.syncing.pace.wait(now).is_zero() {
            return;
        }
        let (family, mode) = (self.family, running.syncing.backend.mode());
        running.syncing.pace.started(now);
        if !self.cluster.is_complete() {
            tracing::debug!(v = 2, ipFamily = %family, "Not syncing {mode} until Services and Endpoints have been received from master");
            return;
        }
        tracing::debug!(v = 2, ipFamily = %family, "Syncing {mode} rules");
        running.sync(&mut self.cluster, &self.handle);
        self.events.show_pending(&self.cluster);
    }

    pub fn explain(&self, question: &Question) -> Result<Explanation, String> {
        let known = self.running.as_ref().filter(|_| self.cluster.is_complete());
        let Running { syncing, reports, .. } =
            known.ok_or("the proxy has only just started: ask again in a moment")?;
        let packet = question.packet(&self.node_addresses, self.cluster.node_ip(), kernel_picks);
        let packet = packet.map_err(|error| error.to_string())?;
        let seats = |name: &ServicePortName| syncing.backend.seats(name);
        let explained =
            explain::explain_in_slots(&packet, &syncing.tracing, &self.node_addresses, &self.cluster, seats);
        let mut explanation = explained.map_err(|error| error.to_string())?;
        if let Some(check) = &mut explanation.health_check {
            let service = NamespacedName::new(&check.namespace, &check.service);
            *check = HealthCheck::new(&service, check.local_endpoints, reports.health.is_healthy());
            check.trouble = reports.service_health.trouble(&service).map(Into::into);
        }
        Ok(explanation)
    }

    /// What the kernel should hold; `None` before the first sync.
    pub fn desired(&self) -> Option<DesiredState> {
        let running = self.running.as_ref().filter(|running| running.syncing.has_synced)?;
        Some(running.syncing.backend.desired())
    }

    /// Whose new connections the kernel counts.
    pub fn owners(&self) -> Owners {
        self.running.as_ref().map(|running| running.syncing.backend.owners()).unwrap_or_default()
    }
}

impl Running {
    /// How long nothing has to be done, if no mail comes.
    fn wait(&self, now: Instant) -> Duration {
        let repair = self.drift.due().map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        self.syncing.wait(now).min(repair)
    }

    /// One sync: takes the changes, has the backend plan and commit the steps to them, settles what follows from the rules being
    /// in place, and reports.
    fn sync(&mut self, cluster: &mut Cluster, handle: &FamilyHandle) {
        let mut changes = cluster.take_changes();
        self.flows.prepare(&mut changes);
        self.reports.begin(&mut changes);
        let committed = self.syncing.backend.sync(changes);
        if let Ok(outcome) = committed {
            self.settle(outcome, cluster, handle);
        }
        let ended = committed.as_ref().map_or_else(|error| Ended::Failed(error.retry), |_| Ended::Succeeded);
        let elapsed = self.syncing.pace.ended(Instant::now(), ended);
        match (elapsed, committed) {
            (Some(elapsed), Ok(outcome)) => self.reports.observe_duration(elapsed, Some(outcome)),
            (Some(elapsed), Err(error)) => {
                self.reports.observe_duration(elapsed, None);
                self.fail(&error);
            }
            (None, committed) => {
                if let Err(SyncError { cause, .. }) = committed {
                    let err = format!("{cause:#}");
                    tracing::debug!(v = 2, ipFamily = %handle.family(), err, "Sync failed, trying again at once");
                }
            }
        }
    }

    fn fail(&mut self, error: &SyncError) {
        let Syncing { backend, pace, .. } = &mut self.syncing;
        backend.failed();
        self.reports.failed(&format!("{:#}", error.cause), backend.mode(), pace.retry(), Instant::now());
    }

    /// The rules are committed.
    fn settle(&mut self, outcome: Outcome, cluster: &Cluster, handle: &FamilyHandle) {
        if self.drift.was_repaired_by(outcome) {
            // Until now packets may have gone anywhere, and made flows that still do.
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
