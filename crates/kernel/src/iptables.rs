//! Reads and changes the iptables rules of one IP family by running the iptables commands.
//!
//! ```text
//!   prepare ─▶ chains, counters ─▶ plan ─▶ Attempt ─▶ restore ─▶ Outcome
//! ```
//!
//! The caller decides what to write and when to retry. Commands run in the network namespace of the calling thread.

mod cleanup;
mod compare;
mod error;
mod exec;
#[cfg(test)]
mod fake;
mod jumps;
mod locks;
mod monitor;
mod runner;
mod version;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use model::address::Family;
use netlink::accounting;
use plan::difference::Difference;
use plan::iptables::chains::saved_chains;
use plan::iptables::desired::DesiredRules;
use plan::iptables::plan::{Attempt, RestoreLimits, Scope};
use plan::iptables::program::{Abilities, Counters, INVALID_DROPPED, LOCALHOST_NODE_PORTS, RuleSettings};

use crate::outcome::Outcome;
use crate::sysctl::Sysctls;
pub use cleanup::{remove, remove_through};
pub use compare::{RulesInspection, RulesSnapshot, TABLES, present};
pub use error::{Error, Errors};
pub use exec::{Exec, Finished, Programs};
pub use monitor::Watch;
pub use runner::{Before, Runner};
pub use version::Variant;

/// Access to the iptables rules of one family.
#[derive(Debug)]
pub struct Rules {
    runner: Arc<Runner>,
    counters: Option<accounting::AccountingSocket>,
    tcp_liberal: bool,
}

/// The state in which a full sync finds the kernel, once the jumps to our chains exist.
#[derive(Debug)]
pub struct Prepared {
    /// The nat table. `None` if it could not be read.
    saved: Option<String>,
    pub counters: Counters,
}

impl Prepared {
    /// The chains of the nat table. `None` if it could not be read.
    pub fn chains(&self) -> Option<Vec<&str>> {
        self.saved.as_deref().map(|saved| saved_chains(saved).collect())
    }
}

impl Rules {
    /// Detects what the installed iptables and the kernel support, and changes nothing.
    pub fn open(family: Family) -> Result<Self, Error> {
        Self::through(Arc::new(Programs::default()), family)
    }

    /// The same with commands run by `exec`.
    pub fn through(exec: Arc<dyn Exec>, family: Family) -> Result<Self, Error> {
        let runner = Runner::open(exec, family)?;
        runner.check_presence()?;
        let random_fully = runner.has_random_fully();
        tracing::debug!(v = 2, ipFamily = %family, variant = ?runner.variant(), random_fully, "Using iptables");
        let counters = accounting::AccountingSocket::open()
            .inspect_err(|error| {
                tracing::info!(ipFamily = %family, err = %error, "Packet counters are not supported, doing without");
            })
            .ok();
        let liberal = Sysctls::default().read("net/netfilter/nf_conntrack_tcp_be_liberal");
        let tcp_liberal = liberal.is_ok_and(|value| value != 0);
        if tcp_liberal {
            tracing::info!(ipFamily = %family, "nf_conntrack_tcp_be_liberal set, not installing DROP rules for INVALID packets");
        }
        Ok(Self { runner: Arc::new(runner), counters, tcp_liberal })
    }

    pub fn family(&self) -> Family {
        self.runner.family()
    }

    pub fn variant(&self) -> Variant {
        self.runner.variant()
    }

    /// The sizes of restores that suit this variant of the commands.
    pub fn limits(&self) -> RestoreLimits {
        match self.runner.variant() {
            Variant::Legacy => RestoreLimits::LEGACY,
            Variant::Nft => RestoreLimits::NFT,
        }
    }

    /// What rules may use. Which counters exist is known only after [`Rules::prepare`].
    pub fn abilities(&self) -> Abilities {
        Abilities {
            random_fully: self.runner.has_random_fully(),
            tcp_liberal: self.tcp_liberal,
            counters: Counters::default(),
        }
    }

    /// Starts to watch for foreign writers. Call it before the first sync, so that no change is missed.
    pub fn watch(&self, sync_period: Duration) -> Watch {
        Watch::new(self.runner.clone(), sync_period)
    }

    /// A snapshot that other threads may compare with the tables.
    pub fn snapshot(&self, rules: DesiredRules) -> RulesSnapshot {
        RulesSnapshot { runner: self.runner.clone(), rules, is_exact: true }
    }

    /// A difference between the tables and the desired state, if there is one.
    pub fn first_difference(&self, desired: DesiredRules) -> io::Result<Option<Difference>> {
        RulesInspection::new(self.snapshot(desired)).first_difference()
    }

    /// Creates what a full sync depends on: the jumps to our chains and, if `with_counters`, packet counters.
    pub fn prepare(&mut self, with_counters: bool) -> Result<Prepared, Error> {
        let saved = jumps::ensure(&self.runner)?;
        let counters = if with_counters { self.ensure_counters() } else { Counters::default() };
        Ok(Prepared { saved, counters })
    }

    /// Runs the restores in order, and stops at the first that fails.
    pub fn restore(&self, attempt: &Attempt<'_>) -> Result<Outcome, Error> {
        for restore in attempt.restores() {
            self.runner.restore_all(&restore.pieces().collect::<Vec<&str>>())?;
        }
        let counts = attempt.counts();
        Ok(Outcome {
            is_full: attempt.scope() == Scope::Full,
            has_drifted: attempt.has_drifted(),
            writes: attempt.restores().len(),
            added: counts.filter_written + counts.nat_written,
            deleted: 0,
        })
    }

    /// Creates the counters that are missing, and returns those that exist then.
    fn ensure_counters(&mut self) -> Counters {
        let family = self.family();
        if self.counters.is_none() {
            self.counters = accounting::AccountingSocket::open().ok();
        }
        let Some(socket) = &mut self.counters else { return Counters::default() };
        let mut ensure = |name: &str| {
            socket
                .ensure(name)
                .inspect_err(|error| {
                    tracing::warn!(ipFamily = %family, counter = name, err = %error, "Failed to ensure packet counter");
                })
                .is_ok()
        };
        Counters {
            invalid_dropped: ensure(INVALID_DROPPED),
            localhost_node_ports: ensure(LOCALHOST_NODE_PORTS),
        }
    }
}

/// Sets the sysctls that these rules need.
pub fn set_up(settings: &RuleSettings, sysctls: &Sysctls) -> io::Result<()> {
    const NAME: &str = "net/ipv4/conf/all/route_localnet";
    if !settings.serves_localhost() {
        return Ok(());
    }
    let set = sysctls.ensure(NAME, 1).map_err(|error| {
        let what = format!(
            "cannot set {NAME} to 1, which node ports at localhost need: {error}; \
             run as root, set it beforehand or set iptables.localhostNodePorts to false"
        );
        io::Error::new(error.kind(), what)
    })?;
    if set {
        tracing::info!(
            "Setting route_localnet=1 to allow node-ports on localhost; to change this either disable iptables.localhostNodePorts (--iptables-localhost-nodeports) or set nodePortAddresses (--nodeport-addresses) to filter loopback addresses"
        );
    }
    Ok(())
}

/// Packets that the kernel has counted since the counters were created. `None` for a counter that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedPackets {
    pub invalid_dropped: Option<u64>,
    pub localhost_node_ports: Option<u64>,
}

/// Reads the packet counters. An error if the kernel does not support them.
pub fn counted_packets() -> io::Result<CountedPackets> {
    let mut socket = accounting::AccountingSocket::open()?;
    let mut packets = |name| Ok::<_, io::Error>(socket.get(name)?.map(|counter| counter.packets));
    Ok(CountedPackets {
        invalid_dropped: packets(INVALID_DROPPED)?,
        localhost_node_ports: packets(LOCALHOST_NODE_PORTS)?,
    })
}
