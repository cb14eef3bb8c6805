//! Hears of what others do to our rules: a firewall that is restarted flushes them, and nobody asks us.
//!
//! The kernel tells of every change that is made through nf_tables. Of the others nobody tells: there we keep chains that
//! nobody needs, and when they are gone, so is the rest.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netlink::nftables::{Event, Monitor, Object};
use plan::iptables::chains::{CANARY, Jump, is_ours};

use super::jumps;
use super::runner::Runner;
use super::version::Variant;
use crate::drift::{Drift, ForeignWriter};
use crate::wire_family;

/// The first is small, and so are the costs of asking for it.
const TABLES: [&str; 3] = ["mangle", "nat", "filter"];
/// How long a stranger may take to be done with all tables.
const UNREST: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
/// Between two commands of a script that flushes one table after the other. Not to wait for the next one would only mean
/// to write once more; to wait too long, that nobody serves.
const NEXT_COMMAND: Duration = Duration::from_millis(10);

/// Keeps watch in a thread of its own.
#[derive(Debug)]
pub struct Watch {
    runner: Arc<Runner>,
    period: Duration,
    /// Nothing where the kernel does not tell.
    monitor: Option<Monitor>,
}

impl Watch {
    /// Hears from now on, whenever it is run.
    pub(super) fn new(runner: Arc<Runner>, period: Duration) -> Self {
        let mut monitor = None;
        if runner.variant() == Variant::Nft {
            monitor = Monitor::open()
                .inspect_err(|error| {
                    tracing::warn!(ipFamily = %runner.family(), err = %error, "Failed to listen for changes of iptables rules, looking for them instead");
                })
                .ok();
        }
        Self { runner, period, monitor }
    }

    /// Whether every change is told of, be it as small as one rule.
    pub fn reports_every_change(&self) -> bool {
        self.monitor.is_some()
    }

    /// Calls `tell` whenever somebody has changed or flushed our rules, for as long as it returns true.
    pub fn run(mut self, mut tell: impl FnMut(Drift) -> bool) {
        if let Some(monitor) = self.monitor.take() {
            let Err(error) = self.listen(monitor, &mut tell) else { return };
            tracing::warn!(ipFamily = %self.runner.family(), err = %error, "Failed to listen for changes of iptables rules, looking for them instead");
        }
        self.poll(tell);
    }

    fn poll(&self, mut tell: impl FnMut(Drift) -> bool) {
        loop {
            self.set_out_canaries();
            sleep(self.period);
            while self.is_there(TABLES[0]) {
                sleep(self.period);
            }
            self.wait_until_all_are_gone();
            tracing::debug!(v = 2, ipFamily = %self.runner.family(), "Reloading after iptables flush");
            if !tell(Drift::Detected(None)) {
                return;
            }
        }
    }

    fn set_out_canaries(&self) {
        while let Err(error) =
            TABLES.iter().try_for_each(|table| self.runner.ensure_chain(table, CANARY).map(drop))
        {
            tracing::warn!(ipFamily = %self.runner.family(), err = %error, "Could not set up iptables canary");
            sleep(self.period);
        }
    }

    /// Whether the table's canary lives. If nobody can tell, it does.
    fn is_there(&self, table: &str) -> bool {
        self.runner.chain_exists(table, CANARY).unwrap_or_else(|error| {
            tracing::debug!(v = 2, ipFamily = %self.runner.family(), table, err = %error, "Could not check for iptables canary");
            true
        })
    }

    /// Tables are flushed one by one. To write them while that goes on would be in vain.
    fn wait_until_all_are_gone(&self) {
        let deadline = Instant::now() + UNREST;
        for table in &TABLES[1..] {
            while self.is_there(table) {
                if Instant::now() > deadline {
                    tracing::warn!(ipFamily = %self.runner.family(), table, "Inconsistent iptables state detected");
                    return;
                }
                sleep(PAUSE);
            }
        }
    }

    fn listen(&self, mut monitor: Monitor, tell: &mut impl FnMut(Drift) -> bool) -> io::Result<()> {
        loop {
            self.set_out_canaries();
            let mut seen = Seen::default();
            while seen.is_nothing() {
                monitor.receive_within(Duration::from_secs(3_600), |event| self.see(&event, &mut seen))?;
            }
            // Nobody flushes all tables in one transaction.
            let deadline = Instant::now() + UNREST;
            while Instant::now() < deadline
                && monitor.receive_within(NEXT_COMMAND, |event| self.see(&event, &mut seen))?
            {}
            if self.do_harm(&seen) {
                tracing::debug!(v = 2, ipFamily = %self.runner.family(), "Reloading after a change of iptables rules by others");
                if !tell(Drift::Detected(seen.by)) {
                    return Ok(());
                }
            }
        }
    }

    fn see(&self, event: &Event<'_>, seen: &mut Seen) {
        let ours = wire_family(self.runner.family());
        let is_foreign = |table: &str, port: &u32| TABLES.contains(&table) && !self.runner.has_run(*port);
        match event {
            Event::Added { family, table, chain, port, .. } => {
                seen.ours |= *family == ours && chain.is_some_and(is_ours) && is_foreign(table, port);
            }
            Event::Deleted { object, family, table, chain, port }
                if *family == ours && is_foreign(table, port) =>
            {
                match chain {
                    Some(chain) if is_ours(chain) => seen.ours = true,
                    Some(chain) if *object == Object::Rule && leads_to_us(table, chain) => {
                        seen.emptied.insert(((*table).to_owned(), (*chain).to_owned()));
                    }
                    Some(_) => {}
                    None => seen.ours |= *object == Object::Table,
                }
            }
            Event::Lost => seen.lost = true,
            Event::Committed { generation, port } => {
                if !seen.is_nothing() && seen.by.is_none() && !self.runner.has_run(*port) {
                    seen.by = Some(generation.clone().into());
                }
            }
            Event::Deleted { .. } => {}
        }
    }

    /// Rules of others come and go in the kernel's chains all the time, and what we write ourselves may be more than
    /// the socket holds: neither is a reason to write it all again if what we have there still stands.
    fn do_harm(&self, seen: &Seen) -> bool {
        // A chain that can't be printed, for somebody put into it what has no words, is asked for each of them.
        let has_jumps = |table: &str, chain: &str| match self.runner.list(table, chain) {
            Ok(listed) if jumps::are_in(table, chain, &listed) => true,
            Ok(_) => jumps::are_there(&self.runner, table, chain),
            Err(error) => error.is_resource_problem() || jumps::are_there(&self.runner, table, chain),
        };
        let mut chains = seen.emptied.clone();
        if seen.lost {
            chains.extend(Jump::ALL.map(|jump| (jump.table.name().to_owned(), jump.from.to_owned())));
        }
        seen.ours
            || seen.lost && TABLES.iter().any(|table| !self.is_there(table))
            || chains.iter().any(|(table, chain)| !has_jumps(table, chain))
    }
}

/// Only there can a rule be lost that is ours; other chains come and go with their owners.
fn leads_to_us(table: &str, chain: &str) -> bool {
    Jump::ALL.iter().any(|jump| jump.table.name() == table && jump.from == chain)
}

/// What strangers did.
#[derive(Debug, Default)]
struct Seen {
    /// They touched a chain of ours, or all of a table.
    ours: bool,
    /// Chains of the kernel's with jumps to ours that lost a rule, with their tables.
    emptied: BTreeSet<(String, String)>,
    /// Nobody knows what else.
    lost: bool,
    /// Whoever was the first.
    by: Option<ForeignWriter>,
}

impl Seen {
    fn is_nothing(&self) -> bool {
        !self.ours && !self.lost && self.emptied.is_empty()
    }
}
