//! Watches for foreign writers: a firewall that restarts, for example, flushes our rules.
//!
//! The kernel notifies of all changes that are made through nf_tables. For the legacy variant it does not. There we create a canary
//! chain in each table, as upstream does: if the canaries are gone, the tables were flushed.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netlink::nftables::{Monitor, Notification, NotifiedObject};
use plan::iptables::chains::{CANARY, Jump, is_ours};

use super::jumps;
use super::runner::Runner;
use super::version::Variant;
use crate::drift::{Drift, ForeignWriter};
use crate::wire_family;

/// The first one is polled. It is small, so that listing a chain of it is cheap.
const TABLES: [&str; 3] = ["mangle", "nat", "filter"];
/// How long a foreign writer may take to flush all tables.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time between two commands of a script that flushes the tables one by one. If it is too short, we repair twice; if
/// it is too long, Services stay without rules for longer.
const COMMAND_GAP: Duration = Duration::from_millis(10);

/// A watch for foreign writers, to be run by a thread of its own.
#[derive(Debug)]
pub struct Watch {
    runner: Arc<Runner>,
    period: Duration,
    /// `None` where the kernel does not notify.
    monitor: Option<Monitor>,
}

impl Watch {
    /// Receives notifications from now on, even if it runs later.
    pub(super) fn new(runner: Arc<Runner>, period: Duration) -> Self {
        let mut monitor = None;
        if runner.variant() == Variant::Nft {
            monitor = Monitor::open()
                .inspect_err(|error| {
                    tracing::warn!(ipFamily = %runner.family(), err = %error, "Failed to listen for changes of iptables rules, polling instead");
                })
                .ok();
        }
        Self { runner, period, monitor }
    }

    /// Whether changes of single rules are reported, rather than only flushes.
    pub fn reports_every_change(&self) -> bool {
        self.monitor.is_some()
    }

    /// Calls `notify` whenever a foreign writer has changed or flushed our rules, until it returns false.
    pub fn run(mut self, mut notify: impl FnMut(Drift) -> bool) {
        if let Some(monitor) = self.monitor.take() {
            let Err(error) = self.listen(monitor, &mut notify) else { return };
            tracing::warn!(ipFamily = %self.runner.family(), err = %error, "Failed to listen for changes of iptables rules, polling instead");
        }
        self.poll(notify);
    }

    fn poll(&self, mut notify: impl FnMut(Drift) -> bool) {
        loop {
            self.create_canaries();
            sleep(self.period);
            while self.has_canary(TABLES[0]) {
                sleep(self.period);
            }
            self.wait_until_all_canaries_are_gone();
            tracing::debug!(v = 2, ipFamily = %self.runner.family(), "Reloading after iptables flush");
            if !notify(Drift::Detected(None)) {
                return;
            }
        }
    }

    fn create_canaries(&self) {
        while let Err(error) =
            TABLES.iter().try_for_each(|table| self.runner.ensure_chain(table, CANARY).map(drop))
        {
            tracing::warn!(ipFamily = %self.runner.family(), err = %error, "Could not set up iptables canary");
            sleep(self.period);
        }
    }

    /// Whether the table has its canary. If that cannot be checked, it counts as present.
    fn has_canary(&self, table: &str) -> bool {
        self.runner.chain_exists(table, CANARY).unwrap_or_else(|error| {
            tracing::debug!(v = 2, ipFamily = %self.runner.family(), table, err = %error, "Could not check for iptables canary");
            true
        })
    }

    /// Waits until all tables have been flushed: what we write into a table before that is lost.
    fn wait_until_all_canaries_are_gone(&self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        for table in &TABLES[1..] {
            while self.has_canary(table) {
                if Instant::now() > deadline {
                    tracing::warn!(ipFamily = %self.runner.family(), table, "Inconsistent iptables state detected");
                    return;
                }
                sleep(POLL_INTERVAL);
            }
        }
    }

    fn listen(&self, mut monitor: Monitor, notify: &mut impl FnMut(Drift) -> bool) -> io::Result<()> {
        loop {
            self.create_canaries();
            let mut changes = ForeignChanges::default();
            while changes.is_empty() {
                monitor
                    .receive_within(Duration::from_secs(3_600), |event| self.record(&event, &mut changes))?;
            }
            // Flushing all tables takes several transactions: wait for the last one.
            let deadline = Instant::now() + FLUSH_TIMEOUT;
            while Instant::now() < deadline
                && monitor.receive_within(COMMAND_GAP, |event| self.record(&event, &mut changes))?
            {
            }
            if self.affect_our_rules(&changes) {
                tracing::debug!(v = 2, ipFamily = %self.runner.family(), "Reloading after a foreign change of iptables rules");
                if !notify(Drift::Detected(changes.writer)) {
                    return Ok(());
                }
            }
        }
    }

    fn record(&self, event: &Notification<'_>, changes: &mut ForeignChanges) {
        let ours = wire_family(self.runner.family());
        let is_foreign = |table: &str, port: &u32| TABLES.contains(&table) && !self.runner.has_run(*port);
        match event {
            Notification::Added { family, table, chain, port, .. } => {
                changes.ours |= *family == ours && chain.is_some_and(is_ours) && is_foreign(table, port);
            }
            Notification::Deleted { object, family, table, chain, port }
                if *family == ours && is_foreign(table, port) =>
            {
                match chain {
                    Some(chain) if is_ours(chain) => changes.ours = true,
                    Some(chain) if *object == NotifiedObject::Rule && has_our_jumps(table, chain) => {
                        changes.rule_deleted.insert(((*table).to_owned(), (*chain).to_owned()));
                    }
                    Some(_) => {}
                    None => changes.ours |= *object == NotifiedObject::Table,
                }
            }
            Notification::Lost => changes.lost_events = true,
            Notification::Committed { generation, port } => {
                if !changes.is_empty() && changes.writer.is_none() && !self.runner.has_run(*port) {
                    changes.writer = Some(generation.clone().into());
                }
            }
            Notification::Deleted { .. } => {}
        }
    }

    /// Other programs add and delete rules in the built-in chains all the time, and our own changes may overflow the socket: neither
    /// is drift as long as our jumps and canaries exist.
    fn affect_our_rules(&self, changes: &ForeignChanges) -> bool {
        // If `iptables` cannot print a chain, because of a rule that only `nft` knows, each jump is checked.
        let has_jumps = |table: &str, chain: &str| match self.runner.list(table, chain) {
            Ok(listed) if jumps::are_listed(table, chain, &listed) => true,
            Ok(_) => jumps::exist(&self.runner, table, chain),
            Err(error) => error.is_resource_problem() || jumps::exist(&self.runner, table, chain),
        };
        let mut chains = changes.rule_deleted.clone();
        if changes.lost_events {
            chains.extend(Jump::ALL.map(|jump| (jump.table.name().to_owned(), jump.from.to_owned())));
        }
        changes.ours
            || changes.lost_events && TABLES.iter().any(|table| !self.has_canary(table))
            || chains.iter().any(|(table, chain)| !has_jumps(table, chain))
    }
}

/// Whether the built-in chain has jumps to our chains.
fn has_our_jumps(table: &str, chain: &str) -> bool {
    Jump::ALL.iter().any(|jump| jump.table.name() == table && jump.from == chain)
}

/// What foreign writers changed.
#[derive(Debug, Default)]
struct ForeignChanges {
    /// One of our chains, or a whole table.
    ours: bool,
    /// Tables and built-in chains with jumps to ours from which a rule was deleted.
    rule_deleted: BTreeSet<(String, String)>,
    /// The socket overflowed, so that other changes are unknown.
    lost_events: bool,
    /// The first one.
    writer: Option<ForeignWriter>,
}

impl ForeignChanges {
    fn is_empty(&self) -> bool {
        !self.ours && !self.lost_events && self.rule_deleted.is_empty()
    }
}
