//! The nftables mode: writes elements of our own table.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use kernel::inspection::DesiredState;
use kernel::nftables::{self, CommitError, CounterOwners, KernelTable};
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::Changes;
use model::names::ServicePortName;
use plan::flows::{Contended, Destination};
use plan::nftables::claims::{Contention, ContentionChange};
use plan::nftables::elements::SlotAssignment;
use plan::nftables::plan::NftablesPlan;
use plan::nftables::program::ProgramSettings;
use settings::duration::Duration;

use super::{AfterTimer, Backend, DriftListener, SyncError};
use crate::contention::{Contentions, LogLine};
use crate::metrics::{Metrics, count, ip_family};
use crate::rate_limit::Retry;

#[derive(Debug)]
pub struct Nftables {
    pub plan: NftablesPlan,
    pub table: KernelTable,
    contentions: Contentions,
    /// Endpoints that have no slot, by service port, as last logged.
    left_out: BTreeMap<ServicePortName, usize>,
    metrics: Arc<Metrics>,
}

/// Frontends that a log line names; the others are only counted.
const MAX_NAMED: usize = 3;

impl Nftables {
    pub fn new(table: KernelTable, settings: ProgramSettings, metrics: Arc<Metrics>) -> Self {
        // Present from the start, so that an alert sees the first failure. A sync leaves nothing to clean up in this
        // implementation, but dashboards expect the metric.
        let family = [ip_family(table.family())];
        metrics.sync_proxy_rules_nftables_sync_failures.add(family, 0.0);
        metrics.sync_proxy_rules_nftables_cleanup_failures.add(family, 0.0);
        metrics.endpoints_left_out.set(family, 0.0);
        let plan = NftablesPlan::new(settings);
        Self { plan, table, contentions: Contentions::default(), left_out: BTreeMap::new(), metrics }
    }

    fn plan_and_commit(&mut self, changes: Changes) -> Result<Outcome, CommitError> {
        let steps = self.plan.steps(changes);
        self.log_planned();
        let steps = match steps {
            Some(steps) => steps,
            None => self.plan.steps_from(self.table.read(self.plan.desired())?),
        };
        let outcome = self.table.commit(&steps)?;
        self.plan.settle();
        Ok(outcome)
    }

    /// Commits changes to a table without base chains, and creates that first. Returns whether it could: a table that exists
    /// serves until the first sync.
    fn plan_and_preload(&mut self, take: &mut dyn FnMut() -> Changes) -> Result<bool, CommitError> {
        if !self.plan.is_settled() && self.table.exists()? {
            return Ok(false);
        }
        let steps = match self.plan.preload(take()) {
            Some(steps) => Some(steps),
            None => self.plan.preload_from(self.table.read(self.plan.desired())?),
        };
        let Some(steps) = steps else { return Ok(false) };
        self.table.commit(&steps)?;
        self.plan.settle();
        Ok(true)
    }

    /// Logs what the changes mean to users, whether or not they can be committed.
    fn log_planned(&mut self) {
        let family = self.table.family();
        let lines = self.contentions.add(self.plan.take_contentions(), Instant::now());
        lines.into_iter().for_each(|line| log_contention(family, line));
        self.log_left_out();
    }

    /// Compares all service ports with endpoints left out: there are hardly ever any.
    fn log_left_out(&mut self) {
        let (family, now) = (self.table.family(), self.plan.left_out());
        if *now == self.left_out {
            return;
        }
        for (name, count) in now.iter().filter(|(name, _)| !self.left_out.contains_key(name)) {
            tracing::warn!(ipFamily = %family, servicePortName = %name, leftOut = count, "Service port has more endpoints than it can use: the others get no traffic");
        }
        for name in self.left_out.keys().filter(|name| !now.contains_key(name)) {
            tracing::info!(ipFamily = %family, servicePortName = %name, "Service port no longer has more endpoints than it can use");
        }
        self.metrics.endpoints_left_out.set([ip_family(family)], count(now.values().sum::<usize>()));
        self.left_out.clone_from(now);
    }
}

impl Backend for Nftables {
    fn sync(&mut self, changes: Changes) -> Result<Outcome, SyncError> {
        let started = Instant::now();
        let family = self.table.family();
        let was_settled = self.plan.is_settled();
        let outcome = self.plan_and_commit(changes).map_err(|error| {
            if was_settled {
                log_refusal(family, &error);
            }
            SyncError::new(retry(&error, was_settled), error)
        })?;
        log_commit(family, outcome, started);
        Ok(outcome)
    }

    fn preload(&mut self, take: &mut dyn FnMut() -> Changes) -> bool {
        let (family, started) = (self.table.family(), Instant::now());
        let is_possible = self.plan_and_preload(take).unwrap_or_else(|error| {
            tracing::info!(ipFamily = %family, err = %error, "Failed to load Services before the lists have ended, loading all of them afterwards");
            false
        });
        if is_possible {
            let elapsed = Duration::from(started.elapsed());
            tracing::trace!(v = 4, ipFamily = %family, %elapsed, "Loaded Services before the lists have ended");
        }
        is_possible
    }

    fn sync_failed(&mut self) {
        let family = ip_family(self.table.family());
        self.metrics.sync_proxy_rules_nftables_sync_failures.increment([family]);
    }

    fn set_node_addresses(&mut self, _all: &[IpAddr], node_port_ips: &[IpAddr]) -> bool {
        self.plan.set_node_port_ips(node_port_ips.to_vec())
    }

    fn suspect_drift(&mut self) {
        self.plan.suspect_drift();
    }

    fn drift_listener(&mut self) -> Option<DriftListener> {
        table_drift_listener(&self.table)
    }

    fn counter_owners(&self) -> CounterOwners {
        self.plan.desired().clone().into()
    }

    fn slots(&self, name: &ServicePortName) -> SlotAssignment<'_> {
        self.plan.slots(name)
    }

    fn is_unused(&mut self, destination: Destination) -> bool {
        let frontend = self.plan.counted_from_start(destination);
        frontend.is_some_and(|frontend| self.table.count(frontend).is_ok_and(|count| count == Some(0)))
    }

    fn on_timer(&mut self, now: Instant) -> AfterTimer {
        let family = self.table.family();
        self.contentions.due_lines(now).into_iter().for_each(|line| log_contention(family, line));
        self.contentions.due().map_or(AfterTimer::Nothing, AfterTimer::Again)
    }

    fn contended(&self) -> Contended {
        Contended::FirstOnly
    }

    fn desired(&self) -> DesiredState {
        DesiredState::Nftables(Box::new(self.plan.desired().clone().into()))
    }

    fn mode(&self) -> &'static str {
        "nftables"
    }

    fn title(&self) -> &'static str {
        "NFTables"
    }
}

/// Most likely the kernel does not hold what the last sync committed.
pub(super) fn log_refusal(family: Family, error: &impl fmt::Display) {
    tracing::warn!(ipFamily = %family, err = %error, "Kernel refused a change, reading its state back");
}

pub(super) fn log_commit(family: Family, outcome: Outcome, started: Instant) {
    let elapsed = Duration::from(started.elapsed());
    let Outcome { is_full, added, deleted, .. } = outcome;
    tracing::debug!(v = 2, ipFamily = %family, %elapsed, fullSync = is_full, added, deleted, "SyncProxyRules complete");
}

/// `None` while the table is owned: the kernel lets no other process change it.
pub(super) fn table_drift_listener(table: &KernelTable) -> Option<DriftListener> {
    if table.is_owned() {
        return None;
    }
    let (family, port) = (table.family(), table.port());
    Some(Box::new(move |notify| {
        if let Err(error) = nftables::on_foreign_change(family, port, notify) {
            tracing::error!(ipFamily = %family, err = %error, "Failed to listen for changes to our table");
        }
    }))
}

/// When to retry after an error. `was_settled` says that the sync assumed a state of the kernel.
pub(super) fn retry(error: &CommitError, was_settled: bool) -> Retry {
    match error {
        _ if was_settled => Retry::Stale,
        _ if !nftables::is_transient(error) => Retry::Later,
        CommitError::Refused { .. } => Retry::Busy,
        CommitError::Stale | CommitError::Socket(_) | CommitError::TooLarge { .. } => Retry::Stale,
    }
}

pub(super) fn log_contention(family: Family, line: LogLine) {
    let (contention, unlogged) = match line {
        LogLine::Change(contention, unlogged) => (contention, unlogged),
        LogLine::Further(changes) => {
            tracing::warn!(ipFamily = %family, changes, "Further Services started or stopped claiming the same addresses and ports");
            return;
        }
    };
    let Contention { change, winner, others, frontends } = contention;
    let winner = winner.map_or_else(|| "none".to_owned(), |winner| winner.to_string());
    let others: Vec<String> = others.iter().map(ToString::to_string).collect();
    let others = others.join(", ");
    let named: Vec<String> = frontends.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let (count, named) = (frontends.len(), named.join(", "));
    match change {
        ContentionChange::Began => {
            tracing::warn!(ipFamily = %family, winner, others, frontends = count, first = named, unlogged, "Several Services claim the same address and port: a cluster IP takes precedence, then the Service created first");
        }
        ContentionChange::WinnerChanged => {
            tracing::warn!(ipFamily = %family, winner, others, frontends = count, first = named, unlogged, "An address and port that several Services claim is now served by another one");
        }
        ContentionChange::Ended => {
            tracing::info!(ipFamily = %family, winner, others, frontends = count, first = named, unlogged, "Services no longer claim the same address and port");
        }
    }
}
