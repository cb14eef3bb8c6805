//! Deletes the conntrack entries that a sync makes stale, on a thread of its own that no sync waits for. [`plan::flows`] decides
//! what is stale and when to scan for it.
//!
//! ```text
//!   family worker: FlowFollower                         scanner thread: ScannerThread
//!   before a sync:  what will serve ─ ScanRequest ───▶ keeps a scan from deleting by outdated state
//!   after it:       what to recheck ─ ScanRequest ───▶ next(now) ─▶ list flows, receive requests, judge again, delete
//! ```

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use kernel::conntrack::{ConntrackTable, Listed};
use model::address::Family;
use model::cluster::Changes;
use model::names::Protocol;
use model::routing::Frontend;
use plan::flows::{Action, Contended, Destination, Flows, Scan, ScanRequest, Scanner};
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::{Metrics, count, ip_family};
use crate::threads;
use settings::duration::Duration as GoDuration;

/// The family worker's side: tracks what makes flows stale and sends requests to the scanner thread. No call blocks.
#[derive(Debug)]
pub struct FlowFollower {
    flows: Flows,
    requests: Sender<ScanRequest>,
    /// Whether the rules of other modes have been removed, so that all packets traverse our rules and our counters count them.
    is_exclusive: bool,
    /// Whether the kernel holds the rules for everything that `flows` knows.
    is_committed: bool,
}

impl FlowFollower {
    /// The caller has to run the scanner on a thread of its own.
    pub fn new(family: Family, contended: Contended) -> (Self, ScannerThread) {
        let (requests, inbox) = channel();
        let flows = Flows::new(contended);
        let follower = Self { flows, requests, is_exclusive: false, is_committed: false };
        (follower, ScannerThread { family, inbox, scanner: Scanner::default(), table: None })
    }

    /// Starts the scanner thread, which reports to the metrics and the log.
    pub fn spawn(family: Family, contended: Contended, metrics: Arc<Metrics>) -> anyhow::Result<Self> {
        let (follower, scanner) = Self::new(family, contended);
        // Present from the start, so that its absence is meaningful.
        metrics.conntrack_recheck_age.since([ip_family(family)], None);
        let mut failed_before = false;
        let report = move |report| log_and_count(family, &metrics, &mut failed_before, report);
        threads::spawn(format!("flows-{family}"), move || scanner.run(report))?;
        Ok(follower)
    }

    /// Applies what the next sync changes. Must be called before that sync.
    pub fn prepare(&mut self, changes: &Changes) {
        self.is_committed = false;
        if changes.touches_udp {
            let request = self.flows.prepare(&changes.routings);
            self.send(request);
        }
        for (protocol, frontend) in &changes.new_frontends {
            self.flows.gain(*protocol, *frontend);
        }
    }

    /// The kernel holds the rules for all changes so far: requests a recheck of the flows that they may make stale.
    ///
    /// `is_unused` returns whether our rules have matched no packet for a UDP destination, as far as the kernel counts.
    pub fn committed(&mut self, mut is_unused: impl FnMut(Destination) -> bool) {
        self.is_committed = true;
        let is_exclusive = self.is_exclusive;
        let request = self.flows.committed(Instant::now(), |to| is_exclusive && is_unused(to));
        self.send(request);
    }

    /// Until the next sync, packets may have been handled by other rules or by none. `frontends` are all frontends.
    pub fn recheck_everything(&mut self, frontends: impl IntoIterator<Item = (Protocol, Frontend)>) {
        self.flows.recheck_everything(frontends);
    }

    /// The rules of other modes have been removed. Until now they may have translated packets. `frontends` are all frontends.
    pub fn other_modes_removed(
        &mut self,
        frontends: impl IntoIterator<Item = (Protocol, Frontend)>,
        is_unused: impl FnMut(Destination) -> bool,
    ) {
        self.is_exclusive = true;
        self.recheck_everything(frontends);
        if self.is_committed {
            self.committed(is_unused);
        }
    }

    /// Node ports are served at these addresses now. The scanner does not list them itself: that may have to wait for the
    /// kernel's lock of all interfaces.
    pub fn node_ips_changed(&self, node_ips: impl IntoIterator<Item = IpAddr>) {
        self.send(Some(ScanRequest::NodeIps(node_ips.into_iter().collect())));
    }

    fn send(&self, request: Option<ScanRequest>) {
        if let Some(request) = request {
            // The scanner thread ends only with the process.
            let _ = self.requests.send(request);
        }
    }
}

/// Scans the conntrack table of one family.
#[derive(Debug)]
pub struct ScannerThread {
    family: Family,
    inbox: Receiver<ScanRequest>,
    scanner: Scanner,
    /// Opened by the first scan, and again by the scan after an error.
    table: Option<ConntrackTable>,
}

/// What a scanner thread did.
#[derive(Debug)]
pub enum ScanReport {
    /// When the rules of the oldest recheck were committed that no scan has begun for; `None` if no recheck waits.
    WaitingSince(Option<Instant>),
    Scanned {
        elapsed: Duration,
        processor_time: Duration,
        deleted: usize,
    },
    /// The scan is retried later, except for destinations that have failed for too long.
    Failed {
        error: io::Error,
        abandoned: usize,
    },
}

impl ScannerThread {
    /// Scans until the worker has ended, in the network namespace of the calling thread.
    pub fn run(mut self, mut report: impl FnMut(ScanReport)) {
        loop {
            match self.scanner.next(Instant::now()) {
                Action::Scan(scan) => report(self.scan(scan)),
                Action::Wait(until) => match self.receive_until(until) {
                    Ok(request) => self.scanner.receive(request),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                },
            }
            while let Ok(request) = self.inbox.try_recv() {
                self.scanner.receive(request);
            }
            report(ScanReport::WaitingSince(self.scanner.waiting_since()));
        }
    }

    fn receive_until(&self, until: Option<Instant>) -> Result<ScanRequest, RecvTimeoutError> {
        match until {
            Some(until) => self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())),
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn scan(&mut self, mut scan: Scan) -> ScanReport {
        let (started, processor) = (Instant::now(), processor_time());
        let deleted = self.list(&scan).and_then(|listed| self.delete(&mut scan, listed));
        let processor_time = processor_time().saturating_sub(processor);
        let abandoned = self.scanner.done(scan, Instant::now(), processor_time, deleted.is_ok());
        match deleted {
            Ok(deleted) => ScanReport::Scanned { elapsed: started.elapsed(), processor_time, deleted },
            Err(error) => ScanReport::Failed { error, abandoned },
        }
    }

    /// The first half of a scan: lists the flows that are stale by what is known when it begins.
    pub fn list(&mut self, scan: &Scan) -> io::Result<Vec<Listed>> {
        let mut table = match self.table.take() {
            Some(table) => table,
            None => ConntrackTable::open(self.family)?,
        };
        let mut stale = Vec::new();
        for filter in scan.filters() {
            stale.extend(table.list(filter, |flow| self.scanner.judge(scan, flow))?);
        }
        self.table = Some(table);
        Ok(stale)
    }

    /// The second half: deletes those that are still stale by what the worker has sent since.
    pub fn delete(&mut self, scan: &mut Scan, mut listed: Vec<Listed>) -> io::Result<usize> {
        while let Ok(request) = self.inbox.try_recv() {
            self.scanner.receive_during(request, scan);
        }
        listed.retain(|listed| self.scanner.judge(scan, &listed.flow));
        let Some(mut table) = self.table.take() else { return Ok(0) };
        let deleted = table.delete(listed)?;
        self.table = Some(table);
        Ok(deleted)
    }

    /// The scan that is due at `now`, after all requests so far.
    pub fn due(&mut self, now: Instant) -> Option<Scan> {
        while let Ok(request) = self.inbox.try_recv() {
            self.scanner.receive(request);
        }
        match self.scanner.next(now) {
            Action::Scan(scan) => Some(scan),
            Action::Wait(_) => None,
        }
    }
}

fn log_and_count(family: Family, metrics: &Metrics, failed_before: &mut bool, report: ScanReport) {
    let label = [ip_family(family)];
    match report {
        ScanReport::WaitingSince(since) => metrics.conntrack_recheck_age.since(label, since),
        ScanReport::Scanned { elapsed, deleted, .. } => {
            *failed_before = false;
            metrics.conntrack_reconciler_sync_duration.observe(label, elapsed.as_secs_f64());
            metrics.conntrack_reconciler_deleted_entries.add(label, count(deleted));
            let elapsed = GoDuration::from(elapsed);
            tracing::trace!(v = 4, ipFamily = %family, %elapsed, deletedEntries = deleted, "Finished reconciling conntrack entries");
        }
        ScanReport::Failed { error, abandoned } => {
            if std::mem::replace(failed_before, true) {
                tracing::debug!(v = 2, ipFamily = %family, err = %error, "Failed again to clean up stale conntrack entries");
            } else {
                tracing::error!(ipFamily = %family, err = %error, "Failed to clean up stale conntrack entries");
            }
            if abandoned > 0 {
                tracing::error!(ipFamily = %family, err = %error, destinations = abandoned, "Stale conntrack entries may remain: scans have failed for too long");
            }
        }
    }
}

/// The processor time that the calling thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = |number| u64::try_from(number).unwrap_or_default();
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}
