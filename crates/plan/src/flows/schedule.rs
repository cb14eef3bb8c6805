//! When to scan the conntrack table. A scan makes the kernel walk all of it, so its processor time is limited.
//!
//! ```text
//!   rechecks ─▶ scan immediately ─▶ scan again if packets may have been in flight ─▶ done
//!                  └▶ pause: 19 times the scan's processor time; the next scan handles all rechecks added meanwhile
//! ```

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::stale::filters;
use super::{Destination, FlowFilter, FlowVerdict, Rechecks, Serving, TrackedFlow};

/// The maximum time that a packet spends in this node. A packet that passed the old rules may create a stale entry for this
/// long after a commit.
pub const IN_FLIGHT: Duration = Duration::from_secs(1);

/// Pause per processor time used, which limits scans to 5 % of a core.
const PAUSE_FACTOR: u32 = 19;

/// Doubled with each consecutive failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Rechecks that failed for this long are dropped, which limits how many accumulate.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(3_600);

/// The rechecks that wait for a scan.
#[derive(Debug, Default)]
pub struct Schedule {
    fresh: Option<Batch>,
    /// Scanned once, while packets that passed the old rules may have been in flight.
    again: Vec<Batch>,
    /// The end of the pause; no scan starts earlier.
    paused_until: Option<Instant>,
    failures: u32,
}

/// Rechecks that share a scan.
#[derive(Debug)]
struct Batch {
    rechecks: Rechecks,
    /// When the rules were committed for the first of them, and for the last.
    since: Instant,
    committed: Instant,
}

/// What to do now.
#[derive(Debug)]
pub enum Action {
    Scan(Scan),
    /// Until this time; without a time, until there is something to recheck.
    Wait(Option<Instant>),
}

/// One scan. The caller passes it to [`Schedule::done`] when it ends.
#[derive(Debug)]
pub struct Scan {
    begun: Instant,
    batches: Vec<Batch>,
}

impl Schedule {
    /// Adds rechecks for rules that were committed at this time.
    pub fn add(&mut self, committed: Instant, rechecks: Rechecks) {
        if rechecks.is_empty() {
            return;
        }
        for (destination, serving) in rechecks.servings() {
            self.update(destination, serving);
        }
        join(&mut self.fresh, Batch { rechecks, since: committed, committed });
    }

    /// These endpoints serve a destination now, or after the next sync.
    pub fn update(&mut self, destination: Destination, serving: &Serving) {
        for batch in self.fresh.iter_mut().chain(&mut self.again) {
            batch.rechecks.update(destination, serving);
        }
    }

    /// The commit time of the oldest recheck for which no scan has started.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.fresh.as_ref().map(|batch| batch.since)
    }

    pub fn next(&mut self, now: Instant) -> Action {
        let again = self.again.iter().map(Batch::is_final_at).min();
        let Some(due) = self.fresh.as_ref().map(|batch| batch.since).into_iter().chain(again).min() else {
            return Action::Wait(None);
        };
        let due = self.paused_until.map_or(due, |until| until.max(due));
        if now < due {
            return Action::Wait(Some(due));
        }
        let is_due = |batch: &mut Batch| batch.is_final_at() <= now;
        let batches = self.fresh.take().into_iter().chain(self.again.extract_if(.., is_due)).collect();
        Action::Scan(Scan { begun: now, batches })
    }

    /// A scan ended and used this processor time. A failed scan is retried until its rechecks are older than
    /// [`GIVE_UP_AFTER`]: a kernel without ctnetlink never lists anything. Returns the number of destinations that are dropped.
    pub fn done(&mut self, scan: Scan, now: Instant, processor_time: Duration, is_ok: bool) -> usize {
        let mut dropped = 0;
        let mut pause = processor_time * PAUSE_FACTOR;
        if is_ok {
            self.failures = 0;
            self.again.extend(scan.batches.into_iter().filter(|batch| scan.begun < batch.is_final_at()));
        } else {
            pause = pause.max(FIRST_RETRY.saturating_mul(1 << self.failures.min(6)).min(LONGEST_RETRY));
            self.failures += 1;
            for batch in scan.batches {
                if now < batch.since + GIVE_UP_AFTER {
                    join(&mut self.fresh, batch);
                } else {
                    dropped += batch.rechecks.of.len();
                }
            }
        }
        self.paused_until = Some(now + pause);
        dropped
    }
}

impl Batch {
    /// A scan that starts at this time or later finds every stale flow.
    fn is_final_at(&self) -> Instant {
        self.committed + IN_FLIGHT
    }
}

/// Which batch is joined to which does not matter: all of them have the same endpoints for a destination.
fn join(to: &mut Option<Batch>, batch: Batch) {
    match to {
        Some(known) => {
            known.since = known.since.min(batch.since);
            known.committed = known.committed.max(batch.committed);
            known.rechecks.join(batch.rechecks);
        }
        None => *to = Some(batch),
    }
}

impl Scan {
    pub fn filters(&self) -> Vec<FlowFilter> {
        filters(self.batches.iter().flat_map(|batch| batch.rechecks.of.keys()))
    }

    /// `node_ips` are the addresses of this node that serve node ports.
    pub fn judge(&self, flow: &TrackedFlow, node_ips: &HashSet<IpAddr>) -> FlowVerdict {
        let rechecks = || self.batches.iter().map(|batch| &batch.rechecks);
        let by_address = rechecks().find_map(|rechecks| rechecks.at_address(flow));
        let found = by_address.or_else(|| rechecks().find_map(|all| all.at_node_port(flow, node_ips)));
        found.map_or(FlowVerdict::NotConcerned, |(destination, recheck)| recheck.judge(destination, flow))
    }

    /// These endpoints serve a destination now, or after the next sync. The caller passes this before it deletes flows.
    pub fn update(&mut self, destination: Destination, serving: &Serving) {
        self.batches.iter_mut().for_each(|batch| batch.rechecks.update(destination, serving));
    }
}

#[cfg(test)]
mod tests;
