//! Deletes the conntrack entries that a sync makes stale, on a thread of its own, for which no sync ever waits.
//!
//! ```text
//!   family worker                                       scanner
//!   before a sync:  who will serve ────────────▶ keeps a scan from deleting by what is outdated
//!   after it:       what to recheck ───────────▶ Schedule ─▶ lists flows, judges them, deletes the stale ones
//! ```
//!
//! What serves is sent before the rules change, and a scan reads what was sent between listing and deleting: whatever flow it
//! has listed that the new rules made, it knows these rules' endpoints, too. So it deletes no flow that is right by them.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use model::address::Family;
use model::names::{Protocol, ServicePortName};
use model::routing::{Frontend, Routing};
use netlink::conntrack::{self as wire, Connection};
pub use plan::flows::{Contended, Destination};
use plan::flows::{Flow, Flows, Next, Rechecks, Scan, Schedule, Serving, Verdict};
use rustix::time::{ClockId, clock_gettime};

use crate::wire_family;

/// The flows of one family, as its worker sees them. No call waits for anything.
#[derive(Debug)]
pub struct Conntrack {
    flows: Flows,
    requests: Sender<Request>,
}

#[derive(Debug)]
enum Request {
    /// Node ports answer at these addresses.
    NodeIps(HashSet<IpAddr>),
    /// These destinations are about to be served by others than before.
    Serving(Vec<(Destination, Serving)>),
    /// The second part only where an earlier scan saw flows.
    Recheck { committed: Instant, rechecks: Rechecks, if_used: Rechecks },
}

impl Conntrack {
    /// The scanner is to be run on a thread of its own.
    pub fn new(family: Family, contended: Contended) -> (Self, Scanner) {
        let (requests, inbox) = channel();
        let scanner = Scanner {
            family,
            inbox,
            node_ips: HashSet::new(),
            used: HashSet::new(),
            schedule: Schedule::default(),
            connection: None,
        };
        (Self { flows: Flows::new(contended), requests }, scanner)
    }

    /// Takes in what service ports do from the next sync on, `None` if they are gone. To be called before that sync.
    pub fn prepare(&mut self, routings: &[(ServicePortName, Option<Arc<Routing>>)]) {
        let udp = routings.iter().filter(|(name, _)| name.protocol == Protocol::Udp);
        let changed: HashSet<Destination> =
            udp.flat_map(|(name, routing)| self.flows.replace(name, routing.as_ref())).collect();
        if !changed.is_empty() {
            let serving = changed.into_iter().map(|to| (to, self.flows.serving(to))).collect();
            self.send(Request::Serving(serving));
        }
    }

    /// Clients may have sent to these before the rules of the next sync.
    pub fn gain(&mut self, frontends: impl IntoIterator<Item = (Protocol, Frontend)>) {
        frontends.into_iter().for_each(|(protocol, frontend)| self.flows.gain(protocol, frontend));
    }

    /// Rules of others, or none, may have applied to packets until the next sync; these are all frontends.
    pub fn recheck_everything(&mut self, frontends: impl IntoIterator<Item = (Protocol, Frontend)>) {
        self.flows.recheck_everything(frontends);
    }

    /// The kernel holds the rules for everything that was taken in: what they make stale is to be scanned for.
    ///
    /// `is_unused` tells of a UDP destination for which our rules have matched no packet, so far as they count.
    pub fn committed(&mut self, is_unused: impl FnMut(Destination) -> bool) {
        let (rechecks, if_used) = self.flows.take_rechecks(is_unused);
        if !rechecks.is_empty() || !if_used.is_empty() {
            self.send(Request::Recheck { committed: Instant::now(), rechecks, if_used });
        }
    }

    /// Node ports answer at these addresses now. Told and not asked for, since asking may have to wait for whatever is at work on
    /// any interface of the machine.
    pub fn move_to(&self, node_ips: impl IntoIterator<Item = IpAddr>) {
        self.send(Request::NodeIps(node_ips.into_iter().collect()));
    }

    fn send(&self, request: Request) {
        // Without a scanner nothing is scanned for: the process ends when one panics.
        let _ = self.requests.send(request);
    }
}

/// Scans the kernel's table.
#[derive(Debug)]
pub struct Scanner {
    family: Family,
    inbox: Receiver<Request>,
    node_ips: HashSet<IpAddr>,
    /// UDP destinations that a scan has seen flows to and left. Counters know nothing of flows older than they are.
    used: HashSet<Destination>,
    schedule: Schedule,
    /// Opened with the first scan: some kernels have no such table.
    connection: Option<Connection>,
}

/// What a scanner does.
#[derive(Debug)]
pub enum Report {
    /// When the rules were committed for the oldest recheck that has not been scanned for, if there is one.
    WaitingSince(Option<Instant>),
    Scanned {
        elapsed: Duration,
        processor_time: Duration,
        deleted: usize,
    },
    /// It is tried again later.
    Failed(io::Error),
}

impl Scanner {
    /// Scans until the worker is gone. Belongs to the network namespace of the thread that first does.
    pub fn run(mut self, mut report: impl FnMut(Report)) {
        loop {
            match self.schedule.next(Instant::now()) {
                Next::Scan(scan) => report(self.scan(scan)),
                Next::Wait(until) => match self.receive_until(until) {
                    Ok(request) => self.take_in(request, None),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                },
            }
            while let Ok(request) = self.inbox.try_recv() {
                self.take_in(request, None);
            }
            report(Report::WaitingSince(self.schedule.waiting_since()));
        }
    }

    fn receive_until(&self, until: Option<Instant>) -> Result<Request, RecvTimeoutError> {
        match until {
            Some(until) => self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())),
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// What becomes right by it is right also for a scan that has begun.
    fn take_in(&mut self, request: Request, mut scan: Option<&mut Scan>) {
        match request {
            Request::NodeIps(node_ips) => self.node_ips = node_ips,
            Request::Serving(all) => {
                for (destination, serving) in &all {
                    self.schedule.update(*destination, serving);
                    if let Some(scan) = &mut scan {
                        scan.update(*destination, serving);
                    }
                }
            }
            Request::Recheck { committed, mut rechecks, mut if_used } => {
                if_used.retain(|destination| self.used.contains(&destination));
                rechecks.join(if_used);
                let gone = rechecks.servings().filter(|(_, serving)| !serving.is_frontend());
                gone.for_each(|(destination, _)| _ = self.used.remove(&destination));
                self.schedule.add(committed, rechecks);
            }
        }
    }

    fn scan(&mut self, mut scan: Scan) -> Report {
        let (started, processor) = (Instant::now(), processor_time());
        let deleted = self.delete_stale(&mut scan);
        let processor_time = processor_time().saturating_sub(processor);
        self.schedule.done(scan, Instant::now(), processor_time, deleted.is_ok());
        match deleted {
            Ok(deleted) => Report::Scanned { elapsed: started.elapsed(), processor_time, deleted },
            Err(error) => Report::Failed(error),
        }
    }

    fn delete_stale(&mut self, scan: &mut Scan) -> io::Result<usize> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open()?,
        };
        let family = wire_family(self.family);
        let mut stale = Vec::new();
        for filter in scan.filters() {
            let protocol = filter.protocol;
            let filter = wire::Filter {
                protocol: number(protocol),
                destination: filter.destination,
                only_attempts: filter.only_attempts,
            };
            stale.extend(connection.flows(family, filter, |flow| {
                match scan.judge(&judged(protocol, flow), &self.node_ips) {
                    Verdict::Stale => true,
                    Verdict::Right(destination) => {
                        if protocol == Protocol::Udp {
                            self.used.insert(destination);
                        }
                        false
                    }
                    Verdict::Unconcerned => false,
                }
            })?);
        }
        while let Ok(request) = self.inbox.try_recv() {
            self.take_in(request, Some(scan));
        }
        stale.retain(|(flow, _)| match protocol(flow.original.protocol) {
            Some(protocol) => scan.judge(&judged(protocol, flow), &self.node_ips) == Verdict::Stale,
            None => false,
        });
        let (udp, attempts): (Vec<_>, Vec<_>) =
            stale.into_iter().partition(|(flow, _)| flow.original.protocol == number(Protocol::Udp));
        let deleted = connection.end(family, &udp)? + connection.end_unanswered(family, &attempts)?;
        // Not after an error: answers may still come.
        self.connection = Some(connection);
        Ok(deleted)
    }
}

fn judged(protocol: Protocol, flow: &wire::Flow) -> Flow {
    Flow {
        protocol,
        to: flow.original.destination,
        answered_by: flow.reply.source,
        has_reply: flow.has_reply,
    }
}

/// `IPPROTO_*`
fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

fn protocol(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| self::number(*protocol) == number)
}

/// What this thread has had.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = |number| u64::try_from(number).unwrap_or_default();
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

#[cfg(test)]
mod tests;
