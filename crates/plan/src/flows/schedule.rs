//! When to scan the conntrack table. A scan makes the kernel walk all of it, so its processor time is limited.
//!
//! ```text
//!   rechecks ─▶ scan at once ─▶ scan once more if packets may have been in flight ─▶ done
//!                  └▶ rest: 19 times what a scan cost; what is added meanwhile shares the next one
//! ```

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::stale::filters;
use super::{Destination, FlowFilter, FlowVerdict, Rechecks, Serving, TrackedFlow};

/// No packet takes longer within a node. One that had met the rules from before a commit may make a stale entry until then.
pub const IN_FLIGHT: Duration = Duration::from_secs(1);

/// Rest per processor time spent: 19 parts of 20, so that scans have 5 % of a core.
const REST_FACTOR: u32 = 19;

/// Doubled with each failure in a row.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// After this time of failures rechecks are dropped, so that they don't pile up.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(3_600);

/// What waits to be scanned for.
#[derive(Debug, Default)]
pub struct Schedule {
    fresh: Option<Batch>,
    /// Scanned for once, but too soon to be sure.
    again: Vec<Batch>,
    /// No scan before that.
    rested: Option<Instant>,
    failures: u32,
}

/// Rechecks that are scanned for together.
#[derive(Debug)]
struct Batch {
    rechecks: Rechecks,
    /// When the rules for the first of them were committed, and for the last.
    since: Instant,
    committed: Instant,
}

/// What to do now.
#[derive(Debug)]
pub enum Action {
    Scan(Scan),
    /// Until then; without a time, until there is something to recheck.
    Wait(Option<Instant>),
}

/// One scan, to be handed back when it is done.
#[derive(Debug)]
pub struct Scan {
    begun: Instant,
    batches: Vec<Batch>,
}

impl Schedule {
    /// Adds what to recheck, by rules that were committed at that time.
    pub fn add(&mut self, committed: Instant, rechecks: Rechecks) {
        if rechecks.is_empty() {
            return;
        }
        for (destination, serving) in rechecks.servings() {
            self.update(destination, serving);
        }
        join(&mut self.fresh, Batch { rechecks, since: committed, committed });
    }

    /// A destination is, or is about to be, served by these.
    pub fn update(&mut self, destination: Destination, serving: &Serving) {
        for batch in self.fresh.iter_mut().chain(&mut self.again) {
            batch.rechecks.update(destination, serving);
        }
    }

    /// When the rules were committed for the oldest recheck that no scan has begun for.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.fresh.as_ref().map(|batch| batch.since)
    }

    pub fn next(&mut self, now: Instant) -> Action {
        let again = self.again.iter().map(Batch::is_final_at).min();
        let Some(due) = self.fresh.as_ref().map(|batch| batch.since).into_iter().chain(again).min() else {
            return Action::Wait(None);
        };
        let due = self.rested.map_or(due, |rested| rested.max(due));
        if now < due {
            return Action::Wait(Some(due));
        }
        let is_due = |batch: &mut Batch| batch.is_final_at() <= now;
        let batches = self.fresh.take().into_iter().chain(self.again.extract_if(.., is_due)).collect();
        Action::Scan(Scan { begun: now, batches })
    }

    /// A scan ended and cost that much processor time. One that failed is tried again, until its rechecks are [`GIVE_UP_AFTER`] old:
    /// a kernel without ctnetlink never lists anything. Returns how many destinations are given up.
    pub fn done(&mut self, scan: Scan, now: Instant, processor_time: Duration, is_ok: bool) -> usize {
        let mut given_up = 0;
        let mut rest = processor_time * REST_FACTOR;
        if is_ok {
            self.failures = 0;
            self.again.extend(scan.batches.into_iter().filter(|batch| scan.begun < batch.is_final_at()));
        } else {
            rest = rest.max(FIRST_RETRY.saturating_mul(1 << self.failures.min(6)).min(LONGEST_RETRY));
            self.failures += 1;
            for batch in scan.batches {
                if now < batch.since + GIVE_UP_AFTER {
                    join(&mut self.fresh, batch);
                } else {
                    given_up += batch.rechecks.of.len();
                }
            }
        }
        self.rested = Some(now + rest);
        given_up
    }
}

impl Batch {
    /// A scan that begins then finds everything.
    fn is_final_at(&self) -> Instant {
        self.committed + IN_FLIGHT
    }
}

/// All batches agree on who serves a destination, whichever is joined to which.
fn join(to: &mut Option<Batch>, batch: Batch) {
    match to {
        Some(held) => {
            held.since = held.since.min(batch.since);
            held.committed = held.committed.max(batch.committed);
            held.rechecks.join(batch.rechecks);
        }
        None => *to = Some(batch),
    }
}

impl Scan {
    pub fn filters(&self) -> Vec<FlowFilter> {
        filters(self.batches.iter().flat_map(|batch| batch.rechecks.of.keys()))
    }

    /// `node_ips` are the addresses of this node at which node ports are served.
    pub fn judge(&self, flow: &TrackedFlow, node_ips: &HashSet<IpAddr>) -> FlowVerdict {
        let rechecks = || self.batches.iter().map(|batch| &batch.rechecks);
        let by_address = rechecks().find_map(|rechecks| rechecks.at_address(flow));
        let found = by_address.or_else(|| rechecks().find_map(|all| all.at_node_port(flow, node_ips)));
        found.map_or(FlowVerdict::NotConcerned, |(destination, recheck)| recheck.judge(destination, flow))
    }

    /// A destination is, or is about to be, served by these: known before anything is deleted.
    pub fn update(&mut self, destination: Destination, serving: &Serving) {
        self.batches.iter_mut().for_each(|batch| batch.rechecks.update(destination, serving));
    }
}

#[cfg(test)]
mod tests;
