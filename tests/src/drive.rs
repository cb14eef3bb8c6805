//! One sync of one family as the proxy does it, without its log lines and metrics.
#![allow(dead_code, reason = "no test needs both modes")]

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernel::iptables::{self, Error, Rules, Watch};
use kernel::nftables::{self, CommitError, KernelTable, Owners};
use kernel::outcome::Outcome;
use model::cluster::Changes;
use plan::flows::Destination;
use plan::iptables::plan::{RuleCounts, Scope};
use plan::{iptables as iptables_plan, nftables as nftables_plan};

const SYNC_PERIOD: Duration = Duration::from_secs(30);

/// The nftables mode.
#[derive(Debug)]
pub struct NftablesSync {
    pub plan: nftables_plan::plan::NftablesPlan,
    pub table: KernelTable,
}

impl NftablesSync {
    pub fn open(settings: nftables_plan::program::ProgramSettings) -> Result<Self, CommitError> {
        Ok(Self::new(KernelTable::open(settings.family)?, settings))
    }

    pub fn new(table: KernelTable, settings: nftables_plan::program::ProgramSettings) -> Self {
        Self { plan: nftables_plan::plan::NftablesPlan::new(settings), table }
    }

    pub fn sync(&mut self, changes: Changes) -> Result<Outcome, CommitError> {
        let steps = match self.plan.steps(changes) {
            Some(steps) => steps,
            None => self.plan.steps_from(self.table.read(self.plan.desired())?),
        };
        let outcome = self.table.commit(&steps)?;
        self.plan.settle();
        Ok(outcome)
    }

    pub fn is_unused(&mut self, destination: Destination) -> io::Result<bool> {
        let Some(frontend) = self.plan.counted_from_start(destination) else { return Ok(false) };
        Ok(self.table.count(frontend)? == Some(0))
    }

    pub fn owners(&self) -> Owners {
        self.plan.desired().clone().into()
    }

    pub fn desired(&self) -> nftables::TableSnapshot {
        self.plan.desired().clone().into()
    }
}

/// The iptables mode.
#[derive(Debug)]
pub struct IptablesSync {
    pub plan: iptables_plan::plan::IptablesPlan,
    pub rules: Rules,
    /// The numbers of rules in the last attempt.
    pub counts: RuleCounts,
}

impl IptablesSync {
    pub fn new(rules: Rules, settings: iptables_plan::program::RuleSettings) -> Self {
        Self::with_period(rules, settings, SYNC_PERIOD)
    }

    pub fn with_period(
        rules: Rules,
        settings: iptables_plan::program::RuleSettings,
        sync_period: Duration,
    ) -> Self {
        let plan = iptables_plan::plan::IptablesPlan::new(settings, rules.limits(), sync_period);
        Self { plan, rules, counts: RuleCounts::default() }
    }

    /// Retries at once where the proxy does.
    pub fn sync(&mut self, changes: Changes) -> Result<Outcome, Error> {
        let now = Instant::now();
        if self.plan.needs_comparison(now) {
            let differs = !matches!(self.rules.first_difference(self.plan.desired()), Ok(None));
            self.plan.compared(differs);
        }
        self.plan.accept(changes);
        loop {
            match self.attempt(now) {
                Ok(outcome) => return Ok(outcome),
                Err((_, true)) => {}
                Err((error, false)) => return Err(error),
            }
        }
    }

    /// An error comes with whether to retry at once.
    fn attempt(&mut self, now: Instant) -> Result<Outcome, (Error, bool)> {
        let prepared;
        let attempt = match self.plan.scope(now) {
            Scope::Partial => self.plan.partial(now),
            Scope::Full => {
                prepared = self.rules.prepare(self.plan.uses_counters()).map_err(|error| (error, false))?;
                self.plan.use_counters(prepared.counters);
                self.plan.full(now, prepared.chains().as_deref())
            }
        };
        self.counts = attempt.counts();
        match self.rules.restore(&attempt) {
            Ok(outcome) => {
                attempt.settle();
                Ok(outcome)
            }
            Err(error) => {
                let retries = error.is_refusal() && attempt.refused(error.names_counters());
                Err((error, retries))
            }
        }
    }

    pub fn set_node_port_ips(&mut self, node_port_ips: &[IpAddr]) -> Vec<IpAddr> {
        self.plan.set_node_port_ips(node_port_ips)
    }

    pub fn suspect_drift(&mut self) {
        self.plan.suspect_drift();
    }

    pub fn require_full(&mut self) {
        self.plan.require_full();
    }

    pub fn watch(&mut self, sync_period: Duration) -> Watch {
        let watch = self.rules.watch(sync_period);
        if !watch.reports_every_change() {
            self.plan.write_whole_chains();
        }
        watch
    }

    pub fn desired(&self) -> iptables::RulesSnapshot {
        self.rules.snapshot(self.plan.desired())
    }
}
