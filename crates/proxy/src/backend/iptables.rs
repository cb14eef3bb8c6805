//! The iptables mode: the chains and rules of the reference.

use std::sync::Arc;
use std::time::Instant;

use kernel::inspection::DesiredState;
use kernel::iptables::{self, Failures, Outcome, Rules};
use plan::flows::Contended;
use plan::iptables::plan::RuleCounts;
use settings::duration::Duration;

use super::{Backend, Change, Pass, Watch};
use crate::metrics::{Metrics, count, ip_family};

#[derive(Debug)]
pub struct Iptables {
    rules: Rules,
    /// Those that the metrics know of.
    failures: Failures,
    metrics: Arc<Metrics>,
}

impl Iptables {
    pub fn new(rules: Rules, metrics: Arc<Metrics>) -> Self {
        Self { rules, failures: Failures::default(), metrics }
    }

    /// What was to be written counts also if it could not be.
    fn measure(&mut self) {
        let family = ip_family(self.rules.family());
        let RuleCounts { filter, nat, filter_written, nat_written } = self.rules.counts();
        for (table, total, last) in [("filter", filter, filter_written), ("nat", nat, nat_written)] {
            self.metrics.sync_proxy_rules_iptables_total.set([family, table], count(total));
            self.metrics.sync_proxy_rules_iptables_last.set([family, table], count(last));
        }
        let (now, before) = (self.rules.failures(), self.failures);
        let (restores, partial) =
            (now.restores - before.restores, now.partial_restores - before.partial_restores);
        self.metrics.sync_proxy_rules_iptables_restore_failures.add([family], count(restores));
        self.metrics.sync_proxy_rules_iptables_partial_restore_failures.add([family], count(partial));
        self.failures = now;
    }
}

impl Backend for Iptables {
    fn sync(&mut self, change: Change) -> anyhow::Result<Pass> {
        let started = Instant::now();
        let Change { routings, endpoints, node_port_ips, .. } = change;
        let synced = self.rules.sync(iptables::Change { routings, endpoints, node_port_ips });
        self.measure();
        let family = self.rules.family();
        let Outcome { full, drifted, restores, counts, unserved } = synced?;
        if !unserved.is_empty() {
            tracing::error!(ipFamily = %family, ips = ?unserved, "--nodeport-addresses includes localhost but localhost NodePorts are not supported");
        }
        let (filter, nat) = (counts.filter_written, counts.nat_written);
        let elapsed = Duration::from(started.elapsed());
        tracing::debug!(v = 2, ipFamily = %family, %elapsed, fullSync = full, restores, numFilterRules = filter, numNATRules = nat, "SyncProxyRules complete");
        Ok(Pass { full, mended: drifted })
    }

    fn distrust(&mut self) {
        self.rules.distrust();
    }

    fn watch(&mut self) -> Option<Watch> {
        let watch = self.rules.watch();
        Some(Box::new(move |tell| watch.run(tell)))
    }

    fn contended(&self) -> Contended {
        Contended::All
    }

    fn desired(&self) -> DesiredState {
        DesiredState::Iptables(Box::new(self.rules.desired()))
    }

    fn mode(&self) -> &'static str {
        "iptables"
    }

    fn title(&self) -> &'static str {
        "Iptables"
    }
}
