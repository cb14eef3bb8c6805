//! The iptables mode: writes the same chains and rules as upstream.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::inspection::DesiredState;
use kernel::iptables::{Error, Rules};
use kernel::outcome::Outcome;
use model::cluster::Changes;
use plan::flows::Contended;
use plan::iptables::plan::{IptablesPlan, RuleCounts, Scope};
use plan::iptables::program::RuleSettings;
use settings::duration::Duration as GoDuration;

use super::{Backend, DriftListener, SyncError};
use crate::metrics::{Metrics, count, ip_family};
use crate::rate_limit::Retry;

#[derive(Debug)]
pub struct Iptables {
    pub plan: IptablesPlan,
    pub rules: Rules,
    /// The numbers of rules in the last attempt.
    pub counts: RuleCounts,
    /// As last set.
    node_port_ips: Vec<IpAddr>,
    sync_period: Duration,
    metrics: Arc<Metrics>,
}

impl Iptables {
    pub fn new(rules: Rules, settings: RuleSettings, sync_period: Duration, metrics: Arc<Metrics>) -> Self {
        // Present from the start, so that an alert sees the first failure.
        let family = [ip_family(rules.family())];
        metrics.sync_proxy_rules_iptables_restore_failures.add(family, 0.0);
        metrics.sync_proxy_rules_iptables_partial_restore_failures.add(family, 0.0);
        let plan = IptablesPlan::new(settings, rules.limits(), sync_period);
        Self { plan, rules, counts: RuleCounts::default(), node_port_ips: Vec::new(), sync_period, metrics }
    }

    /// Checks whether a foreign writer has changed what the last sync wrote.
    fn check_for_drift(&mut self) {
        let family = self.rules.family();
        let difference = self.rules.first_difference(self.plan.desired());
        match &difference {
            Ok(None) => {
                tracing::debug!(v = 2, ipFamily = %family, "Another process wrote iptables rules, ours are unchanged");
            }
            Ok(Some(first)) => {
                tracing::debug!(v = 2, ipFamily = %family, %first, "The iptables rules differ from the desired ones");
            }
            Err(error) => {
                tracing::debug!(v = 2, ipFamily = %family, err = %error, "Failed to compare the iptables rules, writing them all again");
            }
        }
        self.plan.compared(!matches!(difference, Ok(None)));
    }

    /// Writes everything, or what changed since the last sync.
    fn plan_and_commit(&mut self, now: Instant) -> Result<Outcome, SyncError> {
        let later = |error: Error| SyncError::new(Retry::Later, error);
        let prepared;
        let attempt = match self.plan.scope(now) {
            Scope::Partial => self.plan.partial(now),
            Scope::Full => {
                prepared = self.rules.prepare(self.plan.uses_counters()).map_err(later)?;
                self.plan.use_counters(prepared.counters);
                self.plan.full(now, prepared.chains().as_deref())
            }
        };
        let (scope, family) = (attempt.scope(), self.rules.family());
        self.counts = attempt.counts();
        count_rules(&self.metrics, ip_family(family), self.counts);
        let error = match self.rules.restore(&attempt) {
            Ok(outcome) => {
                attempt.settle();
                return Ok(outcome);
            }
            Err(error) => error,
        };
        count_failure(&self.metrics, ip_family(family), scope);
        // Other input does not help if another process holds the lock, or if the command is missing.
        if !error.is_refusal() || !attempt.refused(error.names_counters()) {
            return Err(later(error));
        }
        match scope {
            Scope::Partial => {
                tracing::warn!(ipFamily = %family, err = %error, "Partial sync failed, writing all rules again");
            }
            Scope::Full => {
                tracing::warn!(ipFamily = %family, err = %error, "Full sync failed, trying without packet counters");
            }
        }
        Err(SyncError::new(Retry::Stale, error))
    }
}

/// Counts the rules of an attempt, even if it fails.
fn count_rules(metrics: &Metrics, family: &'static str, counts: RuleCounts) {
    let RuleCounts { filter, nat, filter_written, nat_written } = counts;
    for (table, total, last) in [("filter", filter, filter_written), ("nat", nat, nat_written)] {
        metrics.sync_proxy_rules_iptables_total.set([family, table], count(total));
        metrics.sync_proxy_rules_iptables_last.set([family, table], count(last));
    }
}

fn count_failure(metrics: &Metrics, family: &'static str, scope: Scope) {
    metrics.sync_proxy_rules_iptables_restore_failures.increment([family]);
    match scope {
        Scope::Partial => metrics.sync_proxy_rules_iptables_partial_restore_failures.increment([family]),
        Scope::Full => {}
    }
}

impl Backend for Iptables {
    fn sync(&mut self, changes: Changes) -> Result<Outcome, SyncError> {
        let started = Instant::now();
        // Before the changes are accepted: the kernel does not hold them yet.
        if self.plan.needs_comparison(started) {
            self.check_for_drift();
        }
        self.plan.accept(changes);
        let outcome = self.plan_and_commit(Instant::now())?;
        let (family, elapsed) = (self.rules.family(), GoDuration::from(started.elapsed()));
        let Outcome { is_full, writes, .. } = outcome;
        let (filter, nat) = (self.counts.filter_written, self.counts.nat_written);
        tracing::debug!(v = 2, ipFamily = %family, %elapsed, fullSync = is_full, restores = writes, numFilterRules = filter, numNATRules = nat, "SyncProxyRules complete");
        Ok(outcome)
    }

    fn set_node_addresses(&mut self, _all: &[IpAddr], node_port_ips: &[IpAddr]) -> bool {
        if !self.plan.depends_on_node_port_ips() || self.node_port_ips == node_port_ips {
            return false;
        }
        self.node_port_ips = node_port_ips.to_vec();
        let unserved = self.plan.set_node_port_ips(node_port_ips);
        if !unserved.is_empty() {
            let family = self.rules.family();
            tracing::error!(ipFamily = %family, ips = ?unserved, "--nodeport-addresses includes localhost but localhost NodePorts are not supported");
        }
        true
    }

    fn suspect_drift(&mut self) {
        self.plan.suspect_drift();
    }

    fn drift_listener(&mut self) -> Option<DriftListener> {
        let watch = self.rules.watch(self.sync_period);
        if !watch.reports_every_change() {
            self.plan.write_whole_chains();
        }
        Some(Box::new(move |notify| watch.run(notify)))
    }

    fn contended(&self) -> Contended {
        Contended::All
    }

    fn desired(&self) -> DesiredState {
        DesiredState::Iptables(Box::new(self.rules.snapshot(self.plan.desired())))
    }

    fn mode(&self) -> &'static str {
        "iptables"
    }

    fn title(&self) -> &'static str {
        "Iptables"
    }
}
