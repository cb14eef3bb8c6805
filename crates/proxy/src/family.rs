//! The whole line for one IP family: hears events, and makes passes that bring the kernel to what they ask for.
//!
//! ```text
//!   Event ─▶ Cluster ─▶ changes ─▶ Table ─▶ kernel
//! ```
//!
//! Each family has a thread of its own that owns everything on the line, so nothing on it needs a lock, and one that
//! fails does not hold up the other.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kernel::nftables::{Change, CommitError, Outcome, Table};
use model::address::Family;
use model::cluster::{Changes, Cluster, Here};
use model::event::Event;
use model::local::NodePortAddresses;

use crate::duration::Duration as GoDuration;
use crate::pace::Pace;

/// Events heard in one go before looking whether a pass is due: a storm must not put it off for ever.
const AT_ONCE: usize = 10_000;

/// How far a source may be ahead of the model before it has to wait: enough to be read in one go.
const QUEUE: usize = AT_ONCE;

/// What a family is told.
#[derive(Debug)]
pub enum Message {
    Event(Arc<Event>),
    /// Everything about the node is known: passes may begin.
    Start(Box<Start>),
    /// Somebody else changed our table.
    Drifted,
    /// The node has other addresses than before.
    Moved,
}

/// What passes need to know about the node. None of it changes afterwards.
#[derive(Debug)]
pub struct Start {
    pub node_ip: IpAddr,
    pub table: Table,
    pub node_port_addresses: NodePortAddresses,
    pub periods: Periods,
}

#[derive(Clone, Copy, Debug)]
pub struct Periods {
    pub min_sync: Duration,
    pub sync: Duration,
}

/// One family's line.
#[derive(Debug)]
pub struct Line {
    family: Family,
    cluster: Cluster,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    table: Table,
    node_port_addresses: NodePortAddresses,
    /// Not yet looked at since the node's addresses changed.
    moved: bool,
    /// How to hear of strangers that change the table, until somebody listens for them.
    listen: Option<SyncSender<Message>>,
    pace: Pace,
    periods: Periods,
}

impl Line {
    /// Starts the family's thread, and returns how to talk to it.
    pub fn spawn(here: Here) -> std::io::Result<SyncSender<Message>> {
        let (sender, inbox) = sync_channel(QUEUE);
        let family = here.family;
        let kick = sender.clone();
        let line = Self { family, cluster: Cluster::new(here), running: None };
        let run = move || {
            // A half-alive proxy is worse than a dead one: whoever started us will start us again.
            if catch_unwind(AssertUnwindSafe(|| line.run(&inbox, &kick))).is_err() {
                std::process::exit(2);
            }
        };
        std::thread::Builder::new().name(format!("sync-{family}")).spawn(run)?;
        Ok(sender)
    }

    fn run(mut self, inbox: &Receiver<Message>, kick: &SyncSender<Message>) {
        loop {
            let wait =
                self.running.as_ref().map_or(Duration::MAX, |running| running.pace.wait(Instant::now()));
            let first = match inbox.recv_timeout(wait.min(Duration::from_secs(3_600))) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            for message in first.into_iter().chain(inbox.try_iter().take(AT_ONCE)) {
                self.hear(message, kick);
            }
            self.pass_if_due();
        }
    }

    fn hear(&mut self, message: Message, kick: &SyncSender<Message>) {
        match message {
            Message::Event(event) => {
                for note in self.cluster.apply(&event) {
                    let (field, value) = note.detail.unwrap_or_default();
                    tracing::error!(ipFamily = %self.family, object = note.object, field, value, "{}", note.message);
                }
                if self.cluster.has_changes() {
                    self.ask();
                }
            }
            Message::Start(start) => self.start(*start, kick),
            Message::Drifted => {
                if let Some(running) = &mut self.running {
                    running.table.distrust();
                    running.pace.ask();
                }
            }
            Message::Moved => {
                if let Some(running) = &mut self.running {
                    running.moved = true;
                    running.pace.ask();
                }
            }
        }
    }
}

impl Line {
    fn ask(&mut self) {
        if let Some(running) = &mut self.running {
            running.pace.ask();
        }
    }

    fn start(&mut self, start: Start, kick: &SyncSender<Message>) {
        let Start { node_ip, table, node_port_addresses, periods } = start;
        self.cluster.move_to(node_ip);
        let Periods { min_sync, sync } = periods;
        tracing::debug!(
            v = 2,
            ipFamily = %self.family,
            minSyncPeriod = %GoDuration::from(min_sync),
            syncPeriod = %GoDuration::from(sync),
            maxSyncPeriod = %GoDuration::from(LONGEST_PAUSE),
            "NFTables sync params"
        );
        let mut pace = Pace::new(min_sync, sync, LONGEST_PAUSE, Instant::now());
        pace.ask();
        let listen = Some(kick.clone());
        self.running = Some(Running { table, node_port_addresses, moved: true, listen, pace, periods });
    }

    fn pass_if_due(&mut self) {
        let Some(running) = &mut self.running else { return };
        if !running.pace.wait(Instant::now()).is_zero() {
            return;
        }
        running.pace.started();
        if !self.cluster.is_complete() {
            let family = self.family;
            tracing::debug!(v = 2, ipFamily = %family, "Not syncing nftables until Services and Endpoints have been received from master");
            return;
        }
        let started = Instant::now();
        tracing::debug!(v = 2, ipFamily = %self.family, "Syncing nftables rules");
        let outcome = running.pass(self.cluster.take_changes());
        running.pace.ended(Instant::now(), outcome.is_ok());
        self.tell(&outcome, started.elapsed());
    }

    fn tell(&self, outcome: &Result<Outcome, CommitError>, elapsed: Duration) {
        let family = self.family;
        match outcome {
            Ok(Outcome { added, deleted, full, contested }) => {
                for (frontend, claims) in contested {
                    let claims: Vec<_> = claims.iter().map(ToString::to_string).collect();
                    let claims = claims.join(" ");
                    tracing::warn!(ipFamily = %family, %frontend, services = claims, "Several services ask for the same address and port, the first one gets it");
                }
                tracing::debug!(v = 2, ipFamily = %family, elapsed = %GoDuration::from(elapsed), fullSync = full, added, deleted, "SyncProxyRules complete");
            }
            Err(error) => {
                tracing::error!(ipFamily = %family, err = %chain(error), "nftables sync failed");
                let retry = self.running.as_ref().map(|running| running.periods.sync);
                tracing::info!(ipFamily = %family, retryingTime = %GoDuration::from(retry.unwrap_or_default()), "Sync failed");
            }
        }
    }
}

impl Running {
    fn pass(&mut self, changes: Changes) -> Result<Outcome, CommitError> {
        let node_port_ips = std::mem::take(&mut self.moved).then(|| self.node_port_ips());
        let Changes { routings, service_cidrs, .. } = changes;
        let outcome = self.table.sync(Change { routings, service_cidrs, node_port_ips })?;
        // Only now is it known whether the table could be made our own, and strangers kept out.
        if let Some(kick) = self.listen.take_if(|_| !self.table.is_owned()) {
            listen_for_strangers(self.table.family(), self.table.port(), kick);
        }
        Ok(outcome)
    }

    /// The node's addresses that serve node ports, but for loopback, which can't in this mode.
    fn node_port_ips(&self) -> Vec<IpAddr> {
        if self.node_port_addresses.match_all() {
            return Vec::new();
        }
        let all = kernel::interfaces::addresses().unwrap_or_else(|error| {
            tracing::error!(err = %error, "Failed to list the node's addresses, node ports will not answer");
            Vec::new()
        });
        self.node_port_addresses.among(&all).into_iter().filter(|ip| !ip.is_loopback()).collect()
    }
}

/// A quiet proxy looks once in a while whether all is well.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// Where the kernel lets anyone change our table, we want to hear of it.
fn listen_for_strangers(family: Family, our_port: u32, kick: SyncSender<Message>) {
    let name = format!("drift-{family}");
    let listen = move || {
        let listened =
            kernel::nftables::on_foreign_change(family, our_port, || kick.send(Message::Drifted).is_ok());
        if let Err(error) = listened {
            tracing::error!(ipFamily = %family, err = %error, "Failed to listen for changes to our table");
        }
    };
    if let Err(error) = std::thread::Builder::new().name(name).spawn(listen) {
        tracing::error!(ipFamily = %family, err = %error, "Failed to listen for changes to our table");
    }
}

/// The error and what led to it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
