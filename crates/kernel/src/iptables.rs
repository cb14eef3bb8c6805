//! The iptables rules of one IP family: written in full at start, then chain by chain.
//!
//! ```text
//!   changes ─▶ Plan ─▶ changed chains ─▶ iptables-restore            while we know what the kernel holds
//!              save ─▶ jumps, all chains ─▶ iptables-restore          at start, after an error, after a foreign change that differs
//! ```
//!
//! Commands run in the network namespace of the thread that calls.

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
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::address::Family;
use model::names::ServicePortName;
use model::routing::Routing;
use netlink::accounting;
use plan::iptables::chains::saved_chains;
use plan::iptables::plan::{Attempt, Manner, Plan, RuleCounts, Scope};
use plan::iptables::program::{Abilities, Counters, INVALID_DROPPED, LOCALHOST_NODE_PORTS, Settings};

use crate::sysctl::Sysctls;
pub use cleanup::{remove, remove_through};
pub use compare::{Inspection, RulesSnapshot, TABLES, present};
pub use error::{Error, Errors};
pub use exec::{Exec, Finished, Programs};
pub use monitor::Watch;
pub use runner::{Before, Runner};
pub use version::Variant;

/// The iptables of one family that works on this machine.
#[derive(Debug)]
pub struct Access {
    runner: Arc<Runner>,
    counters: Option<accounting::Connection>,
    tcp_liberal: bool,
}

impl Access {
    /// Finds out what the installed iptables and the kernel can do, and changes nothing.
    pub fn open(family: Family) -> Result<Self, Error> {
        Self::through(Arc::new(Programs::default()), family)
    }

    /// The same with commands that somebody else runs.
    pub fn through(exec: Arc<dyn Exec>, family: Family) -> Result<Self, Error> {
        let runner = Runner::open(exec, family)?;
        runner.check_presence()?;
        let random_fully = runner.has_random_fully();
        tracing::debug!(v = 2, ipFamily = %family, variant = ?runner.variant(), random_fully, "Using iptables");
        let counters = accounting::Connection::open()
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

    pub fn variant(&self) -> Variant {
        self.runner.variant()
    }

    /// What rules may make use of. Whether counters can be had shows when they are made.
    pub fn abilities(&self) -> Abilities {
        Abilities {
            random_fully: self.runner.has_random_fully(),
            tcp_liberal: self.tcp_liberal,
            counters: Counters::default(),
        }
    }
}

/// Makes the machine fit for these rules, once. Changes no rule.
pub fn set_up(settings: &Settings, sysctls: &Sysctls) -> io::Result<()> {
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

/// What differs since the last pass, and what counts anew in each.
#[derive(Debug, Default)]
pub struct Change {
    pub routings: Vec<(ServicePortName, Option<Arc<Routing>>)>,
    /// Of all service ports, usable or not: whether the cluster is large.
    pub endpoints: usize,
    /// The node's addresses at which node ports are asked for, loopback included; none if they are as before.
    pub node_port_ips: Option<Vec<IpAddr>>,
}

/// What a pass did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Whether everything was written rather than what changed.
    pub full: bool,
    /// Whether that was because the tables did not hold what they should have held before.
    pub drifted: bool,
    /// Runs of `iptables-restore`; none if there was nothing to do.
    pub restores: usize,
    pub counts: RuleCounts,
    /// Addresses at which node ports were asked for and cannot be served; told when addresses are.
    pub unserved: Vec<IpAddr>,
}

/// What did not work since the start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    pub restores: u64,
    /// Those of them in passes that wrote only what had changed.
    pub partial_restores: u64,
}

/// The kernel's rules of one family, and what we want in them.
#[derive(Debug)]
pub struct Rules {
    runner: Arc<Runner>,
    counters: Option<accounting::Connection>,
    /// The commands or the kernel lack the match that feeds counters.
    lacks_counters: bool,
    plan: Plan,
    sync_period: Duration,
    /// The tables may differ from what we wrote: the next sync compares.
    is_doubtful: bool,
    /// They do, and have not been repaired.
    has_drifted: bool,
    counts: RuleCounts,
    failures: Failures,
}

impl Rules {
    /// Rules that follow these settings; the kernel hears nothing of them before the first pass.
    pub fn new(access: Access, settings: Settings, sync_period: Duration) -> Self {
        let Access { runner, counters, .. } = access;
        let manner = match runner.variant() {
            Variant::Legacy => Manner::LEGACY,
            Variant::Nft => Manner::NFT,
        };
        Self {
            runner,
            counters,
            lacks_counters: false,
            plan: Plan::new(settings, manner, sync_period),
            sync_period,
            is_doubtful: false,
            has_drifted: false,
            counts: RuleCounts::default(),
            failures: Failures::default(),
        }
    }

    pub fn family(&self) -> Family {
        self.runner.family()
    }

    /// Hears of what others do to the rules. To be asked for before the first pass, so that nothing is missed.
    pub fn watch(&mut self) -> Watch {
        let watch = Watch::new(self.runner.clone(), self.sync_period);
        if !watch.hears_everything() {
            self.plan.write_whole_chains();
        }
        watch
    }

    /// What the tables should hold, for others to compare with what they do.
    pub fn desired(&self) -> RulesSnapshot {
        RulesSnapshot { runner: self.runner.clone(), rules: self.plan.desired(), is_exact: true }
    }

    /// The tables may differ from what we wrote: the next sync compares, and writes everything if they do. A foreign
    /// writer may well have written the same: to write it again would only make that one do so, too.
    pub fn distrust(&mut self) {
        self.is_doubtful = true;
    }

    /// The next sync writes everything, whatever the tables hold.
    pub fn require_full(&mut self) {
        self.plan.require_full();
    }

    /// How many rules the last pass wanted, whether it succeeded or not.
    pub fn counts(&self) -> RuleCounts {
        self.counts
    }

    pub fn failures(&self) -> Failures {
        self.failures
    }

    /// One pass: makes the kernel hold what is wanted after this change, which is remembered in any case.
    pub fn sync(&mut self, change: Change) -> Result<Outcome, Error> {
        // Before the change: what it adds is not there yet.
        if std::mem::take(&mut self.is_doubtful) {
            self.look_for_drift();
        }
        for (name, routing) in change.routings {
            self.plan.replace(name, routing);
        }
        let unserved = change.node_port_ips.map(|ips| self.plan.move_to(&ips)).unwrap_or_default();
        let now = Instant::now();
        let partial = match self.plan.scope(now) {
            Scope::Full => None,
            Scope::Partial => self.write_changes(now, change.endpoints)?,
        };
        let full = partial.is_none();
        let restores = match partial {
            Some(restores) => restores,
            None => self.write_all(now, change.endpoints)?,
        };
        let drifted = full && std::mem::take(&mut self.has_drifted);
        Ok(Outcome { full, drifted, restores, counts: self.counts, unserved })
    }

    /// Compares the tables with what we wrote, unless everything is to be written anyway.
    fn look_for_drift(&mut self) {
        if self.plan.scope(Instant::now()) == Scope::Full {
            return;
        }
        let family = self.family();
        match Inspection::new(self.desired()).first_difference() {
            Ok(None) => {
                tracing::debug!(v = 2, ipFamily = %family, "Another process wrote iptables rules, and they are as they should be");
                return;
            }
            Ok(Some(first)) => {
                tracing::debug!(v = 2, ipFamily = %family, %first, "The iptables rules are not as they should be");
            }
            Err(error) => {
                tracing::debug!(v = 2, ipFamily = %family, err = %error, "Failed to compare the iptables rules, writing them all again");
            }
        }
        self.has_drifted = true;
        self.plan.require_full();
    }

    /// `None` if it turned out that the kernel does not hold what we thought.
    fn write_changes(&mut self, now: Instant, endpoints: usize) -> Result<Option<usize>, Error> {
        let attempt = self.plan.partial(now, endpoints);
        self.counts = attempt.counts();
        match send(&self.runner, attempt) {
            Ok(restores) => Ok(Some(restores)),
            Err(error) => {
                self.failures.restores += 1;
                self.failures.partial_restores += 1;
                // To write more would not help against somebody who holds the lock, or a command that is not there.
                let Error::Failed { .. } = error else { return Err(error) };
                if error.is_contention() {
                    return Err(error);
                }
                tracing::warn!(ipFamily = %self.family(), err = %error, "Partial sync failed, writing all rules again");
                Ok(None)
            }
        }
    }

    fn write_all(&mut self, now: Instant, endpoints: usize) -> Result<usize, Error> {
        let saved = jumps::ensure(&self.runner)?;
        let counters = self.ensure_counters();
        match self.restore_all(now, endpoints, saved.as_deref(), counters) {
            // A kernel may keep counters and yet lack the match that feeds them.
            Err(error) if counters != Counters::default() && !error.is_contention() => {
                tracing::warn!(ipFamily = %self.family(), err = %error, "Full sync failed, trying without packet counters");
                let restored = self.restore_all(now, endpoints, saved.as_deref(), Counters::default());
                // Only the next full sync can tell whether it was for something else that would have passed anyway.
                let is_for_good = matches!(&error, Error::Failed { said, .. } if said.contains("nfacct"));
                self.lacks_counters = is_for_good && restored.is_ok();
                restored
            }
            result => result,
        }
    }

    fn restore_all(
        &mut self,
        now: Instant,
        endpoints: usize,
        saved: Option<&str>,
        counters: Counters,
    ) -> Result<usize, Error> {
        let settings = self.plan.settings();
        let abilities = Abilities { counters, ..settings.abilities };
        self.plan.change_settings(Settings { abilities, ..settings.clone() });
        let found: Option<Vec<&str>> = saved.map(|saved| saved_chains(saved).collect());
        let attempt = self.plan.full(now, endpoints, found.as_deref());
        self.counts = attempt.counts();
        send(&self.runner, attempt).inspect_err(|_| self.failures.restores += 1)
    }

    /// Those that the kernel has now; without a counter its rule is written without it.
    fn ensure_counters(&mut self) -> Counters {
        let family = self.family();
        if self.counters.is_none() {
            self.counters = accounting::Connection::open().ok();
        }
        let Some(connection) = self.counters.as_mut().filter(|_| !self.lacks_counters) else {
            return Counters::default();
        };
        let mut ensure = |name: &str| {
            connection
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

/// Runs one restore after the other; what comes after one that failed is not sent.
fn send(runner: &Runner, attempt: Attempt<'_>) -> Result<usize, Error> {
    for restore in attempt.restores() {
        runner.restore_all(&restore.pieces().collect::<Vec<&str>>())?;
    }
    let restores = attempt.restores().len();
    attempt.settle();
    Ok(restores)
}

/// What the kernel has counted since the counters were made; none for a counter that nobody made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedPackets {
    pub invalid_dropped: Option<u64>,
    pub localhost_node_ports: Option<u64>,
}

/// Reads the packet counters. An error if the kernel has no such thing.
pub fn counted_packets() -> io::Result<CountedPackets> {
    let mut connection = accounting::Connection::open()?;
    let mut packets = |name| Ok::<_, io::Error>(connection.get(name)?.map(|counter| counter.packets));
    Ok(CountedPackets {
        invalid_dropped: packets(INVALID_DROPPED)?,
        localhost_node_ports: packets(LOCALHOST_NODE_PORTS)?,
    })
}
