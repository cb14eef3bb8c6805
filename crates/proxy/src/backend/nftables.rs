//! The nftables mode: elements of our own table.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kernel::inspection::DesiredState;
use kernel::nftables::{self, Outcome, Owners, Table};
use model::address::Family;
use model::names::ServicePortName;
use plan::flows::{Contended, Destination};
use plan::nftables::claims::{Contention, ContentionChange};
use plan::nftables::elements::Seats;
use plan::nftables::slots::MOST;
use settings::duration::Duration;

use super::{Backend, Change, Pass, Watch};
use crate::contention::{Contentions, Line};
use crate::metrics::{Metrics, count, ip_family};

#[derive(Debug)]
pub struct Nftables {
    table: Table,
    contentions: Contentions,
    /// Endpoints that have no slot, by service port, as was logged.
    left_out: BTreeMap<ServicePortName, usize>,
    metrics: Arc<Metrics>,
}

/// Frontends that a line names; the rest is only counted.
const NAMED: usize = 3;

impl Nftables {
    pub fn new(table: Table, metrics: Arc<Metrics>) -> Self {
        // There from the start, so that an alert sees the first failure. Nothing is left to clean up after a sync here,
        // but dashboards ask for it.
        let family = [ip_family(table.family())];
        metrics.sync_proxy_rules_nftables_sync_failures.add(family, 0.0);
        metrics.sync_proxy_rules_nftables_cleanup_failures.add(family, 0.0);
        metrics.endpoints_left_out.set(family, 0.0);
        Self { table, contentions: Contentions::default(), left_out: BTreeMap::new(), metrics }
    }

    /// Few service ports have so many endpoints, mostly none.
    fn tell_left_out(&mut self) {
        let (family, now) = (self.table.family(), self.table.left_out());
        if *now == self.left_out {
            return;
        }
        for (name, count) in now.iter().filter(|(name, _)| !self.left_out.contains_key(name)) {
            tracing::warn!(ipFamily = %family, servicePortName = %name, leftOut = count, most = MOST, "Service port has more endpoints than it can use: the rest get no traffic");
        }
        for name in self.left_out.keys().filter(|name| !now.contains_key(name)) {
            tracing::info!(ipFamily = %family, servicePortName = %name, "Service port no longer has more endpoints than it can use");
        }
        self.metrics.endpoints_left_out.set([ip_family(family)], count(now.values().sum::<usize>()));
        self.left_out.clone_from(now);
    }
}

impl Backend for Nftables {
    fn sync(&mut self, change: Change) -> anyhow::Result<Pass> {
        let started = Instant::now();
        let Change { routings, service_cidrs, node_port_ips, .. } = change;
        let changes = !routings.is_empty() || service_cidrs.is_some() || node_port_ips.is_some();
        // Loopback can't serve them in this mode.
        let node_port_ips = node_port_ips.map(|ips| ips.into_iter().filter(|ip| !ip.is_loopback()).collect());
        let family = self.table.family();
        let synced = self.table.sync(nftables::Change { routings, service_cidrs, node_port_ips });
        if synced.is_err() {
            self.metrics.sync_proxy_rules_nftables_sync_failures.increment([ip_family(family)]);
        }
        let contentions = self.contentions.add(self.table.take_contentions(), Instant::now());
        contentions.into_iter().for_each(|line| log_contention(family, line));
        self.tell_left_out();
        let Outcome { added, deleted, full, wrote } = synced?;
        let elapsed = Duration::from(started.elapsed());
        tracing::debug!(v = 2, ipFamily = %family, %elapsed, fullSync = full, added, deleted, "SyncProxyRules complete");
        Ok(Pass { full, mended: wrote && !changes })
    }

    fn distrust(&mut self) {
        self.table.distrust();
    }

    fn watch(&mut self) -> Option<Watch> {
        // A table of our own nobody else can change.
        if self.table.is_owned() {
            return None;
        }
        let (family, port) = (self.table.family(), self.table.port());
        Some(Box::new(move |tell| {
            if let Err(error) = nftables::on_foreign_change(family, port, tell) {
                tracing::error!(ipFamily = %family, err = %error, "Failed to listen for changes to our table");
            }
        }))
    }

    fn owners(&self) -> Owners {
        self.table.owners()
    }

    fn seats(&self, name: &ServicePortName) -> Seats<'_> {
        self.table.seats(name)
    }

    fn is_unused(&mut self, destination: Destination) -> bool {
        self.table.is_unused(destination).unwrap_or(false)
    }

    fn report(&mut self, now: Instant) -> Option<Instant> {
        let family = self.table.family();
        self.contentions.due_lines(now).into_iter().for_each(|line| log_contention(family, line));
        self.contentions.due()
    }

    fn contended(&self) -> Contended {
        Contended::FirstOnly
    }

    fn desired(&self) -> DesiredState {
        DesiredState::Nftables(Box::new(self.table.desired()))
    }

    fn mode(&self) -> &'static str {
        "nftables"
    }

    fn title(&self) -> &'static str {
        "NFTables"
    }
}

fn log_contention(family: Family, line: Line) {
    let (contention, unlogged) = match line {
        Line::Change(contention, unlogged) => (contention, unlogged),
        Line::Further(changes) => {
            tracing::warn!(ipFamily = %family, changes, "Further Services began or ceased to claim the same addresses and ports");
            return;
        }
    };
    let Contention { change, winner, others, frontends } = contention;
    let winner = winner.map_or_else(|| "none".to_owned(), |winner| winner.to_string());
    let others: Vec<String> = others.iter().map(ToString::to_string).collect();
    let others = others.join(", ");
    let named: Vec<String> = frontends.iter().take(NAMED).map(ToString::to_string).collect();
    let (count, named) = (frontends.len(), named.join(", "));
    match change {
        ContentionChange::Began => {
            tracing::warn!(ipFamily = %family, winner, others, frontends = count, first = named, unlogged, "Several Services claim the same address and port: a cluster IP takes precedence, then the Service created first");
        }
        ContentionChange::WinnerChanged => {
            tracing::warn!(ipFamily = %family, winner, others, frontends = count, first = named, unlogged, "An address and port that several Services claim goes to another one");
        }
        ContentionChange::Ended => {
            tracing::info!(ipFamily = %family, winner, others, frontends = count, first = named, unlogged, "Services no longer claim the same address and port");
        }
    }
}
