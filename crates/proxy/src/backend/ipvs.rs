//! The ipvs mode: writes virtual and real servers, the addresses of `kube-ipvs0`, and our own nftables table around them.

use std::net::IpAddr;
use std::time::Instant;

use kernel::inspection::DesiredState;
use kernel::ipvs::{self, KernelServers, ServersError, ServersSnapshot};
use kernel::nftables::{CommitError, CounterOwners, KernelTable};
use kernel::outcome::Outcome;
use model::cluster::Changes;
use plan::flows::Contended;
use plan::ipvs::changes::IpvsSteps;
use plan::ipvs::plan::IpvsPlan;
use plan::ipvs::termination::RealCounts;

use super::nftables::{log_commit, log_contention, log_refusal, table_drift_listener};
use super::{AfterTimer, Backend, DriftListener, SyncError};
use crate::contention::Contentions;
use crate::metrics::{Metrics, ip_family};
use crate::rate_limit::Retry;

#[derive(Debug)]
pub struct Ipvs {
    pub plan: IpvsPlan,
    pub table: KernelTable,
    pub servers: KernelServers,
    contentions: Contentions,
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum IpvsError {
    #[error(transparent)]
    Table(#[from] CommitError),
    #[error(transparent)]
    Servers(#[from] ServersError),
}

impl Ipvs {
    pub fn new(plan: IpvsPlan, table: KernelTable, servers: KernelServers, metrics: &Metrics) -> Self {
        // This implementation runs no iptables-restore, but dashboards expect the metric.
        metrics.sync_proxy_rules_iptables_restore_failures.add([ip_family(table.family())], 0.0);
        Self { plan, table, servers, contentions: Contentions::default() }
    }

    fn plan_and_commit(&mut self, changes: Changes) -> Result<Outcome, IpvsError> {
        let steps = match self.plan.steps(changes) {
            Some(steps) => steps,
            None => self.steps_from_kernel()?,
        };
        let IpvsSteps { before, table, after } = &steps;
        let before = self.servers.commit(before)?;
        let written = self.table.commit(table)?;
        let after = self.servers.commit(after)?;
        self.plan.settle();
        Ok(Outcome {
            writes: before.writes + written.writes + after.writes,
            added: before.added + written.added + after.added,
            deleted: before.deleted + written.deleted + after.deleted,
            ..written
        })
    }

    fn steps_from_kernel(&mut self) -> Result<IpvsSteps, IpvsError> {
        self.servers.ensure_interface().map_err(ServersError::from)?;
        let servers = self.servers.read().map_err(ServersError::from)?;
        let table = self.table.read(self.plan.desired())?;
        Ok(self.plan.steps_from(&servers, table))
    }

    /// Deletes real servers that left their service port, once their connections have ended.
    fn end_termination(&mut self, now: Instant) -> Result<(), ServersError> {
        let mut found = RealCounts::new();
        for at in self.plan.due(now) {
            found.insert(at, self.servers.real_servers(at)?);
        }
        let steps = self.plan.settle_termination(now, &found);
        self.servers.commit(&steps).map(drop)
    }
}

impl Backend for Ipvs {
    fn sync(&mut self, changes: Changes) -> Result<Outcome, SyncError> {
        let started = Instant::now();
        let family = self.table.family();
        let was_settled = self.plan.is_settled();
        let committed = self.plan_and_commit(changes);
        let lines = self.contentions.add(self.plan.take_contentions(), Instant::now());
        lines.into_iter().for_each(|line| log_contention(family, line));
        let outcome = committed.map_err(|error| {
            if was_settled {
                log_refusal(family, &error);
            }
            SyncError::new(retry(&error, was_settled), error)
        })?;
        log_commit(family, outcome, started);
        Ok(outcome)
    }

    fn set_node_addresses(&mut self, all: &[IpAddr], node_port_ips: &[IpAddr]) -> bool {
        self.plan.set_node_addresses(all, node_port_ips)
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

    fn on_timer(&mut self, now: Instant) -> AfterTimer {
        let family = self.table.family();
        self.contentions.due_lines(now).into_iter().for_each(|line| log_contention(family, line));
        if let Err(error) = self.end_termination(now) {
            tracing::warn!(ipFamily = %family, err = %error, "Failed to delete real servers without connections, reading the kernel's state back");
            self.plan.suspect_drift();
            return AfterTimer::Sync;
        }
        let next = self.contentions.due().into_iter().chain(self.plan.next_check(now)).min();
        next.map_or(AfterTimer::Nothing, AfterTimer::Again)
    }

    fn contended(&self) -> Contended {
        Contended::FirstOnly
    }

    fn desired(&self) -> DesiredState {
        let table = self.plan.desired().clone().into();
        let settings = self.plan.servers().settings.clone();
        DesiredState::Ipvs(Box::new(ServersSnapshot { table, settings }))
    }

    fn mode(&self) -> &'static str {
        "ipvs"
    }

    fn title(&self) -> &'static str {
        "IPVS"
    }
}

/// When to retry after an error. `was_settled` says that the sync assumed a state of the kernel.
fn retry(error: &IpvsError, was_settled: bool) -> Retry {
    match error {
        _ if was_settled => Retry::Stale,
        IpvsError::Table(error) => super::nftables::retry(error, was_settled),
        IpvsError::Servers(error) if ipvs::is_transient(error) => Retry::Stale,
        IpvsError::Servers(_) => Retry::Later,
    }
}
