//! Decides when drift is repaired and what is logged about it. Never sleeps, and never reads the clock: callers
//! pass the time.
//!
//! The first repairs are immediate: a firewall that restarts flushes our rules a few times and is done. Against a program that
//! keeps changing them, such as another proxy with another configuration, immediate repairs would keep both busy forever, so
//! further repairs wait for growing delays, until the rules have been left alone for a while.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use kernel::drift::ForeignWriter;

/// Consecutive repairs that are immediate.
const IMMEDIATE_REPAIRS: u32 = 5;
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Repairs are consecutive if less time than this is between them, or less than four times the delay: a foreign writer that
/// delays its own repairs as we do comes back later, too.
const QUIET_PERIOD: Duration = Duration::from_secs(10);

/// The repairs of one family.
#[derive(Debug, Default)]
pub struct Repairs {
    /// When drift was detected that no sync has checked yet, and the foreign writers as far as they are known.
    waiting: Option<(Instant, Writers)>,
    /// The foreign writers of the drift that the next sync checks.
    in_progress: Option<Writers>,
    /// When the last repair was made.
    last: Option<Instant>,
    /// The number of consecutive repairs so far.
    consecutive: u32,
}

/// Processes that changed our rules. A script may start one for every change it makes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Writers {
    named: BTreeSet<ForeignWriter>,
    /// The number of changes by other processes.
    further: usize,
}

/// Foreign writers that a log line names.
const MAX_NAMED: usize = 8;

impl Extend<ForeignWriter> for Writers {
    fn extend<T: IntoIterator<Item = ForeignWriter>>(&mut self, writers: T) {
        for writer in writers {
            if self.named.len() < MAX_NAMED || self.named.contains(&writer) {
                self.named.insert(writer);
            } else {
                self.further += 1;
            }
        }
    }
}

impl fmt::Display for Writers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.named.iter().map(ToString::to_string).collect();
        match (&names[..], self.further) {
            ([], _) => f.write_str("unknown"),
            (names, 0) => f.write_str(&names.join(", ")),
            (names, further) => write!(f, "{} and {further} more changes by others", names.join(", ")),
        }
    }
}

/// What to log about a repair.
#[derive(Debug, PartialEq, Eq)]
pub enum Repaired {
    Once(Writers),
    /// The first of several consecutive repairs that had to wait; the next one waits this long.
    Slowed(Writers, Duration),
    /// The slowdown has been logged already.
    Again,
}

impl Repairs {
    /// A foreign writer may have changed our rules.
    pub fn detected(&mut self, by: Option<ForeignWriter>, now: Instant) {
        let is_quiet = self.last.is_some_and(|last| now >= last + QUIET_PERIOD.max(4 * self.delay()));
        if is_quiet {
            self.consecutive = 0;
        }
        let (_, writers) = self.waiting.get_or_insert_with(|| (now, Writers::default()));
        writers.extend(by);
    }

    /// When the detected drift is to be checked; `None` if no drift was detected.
    pub fn due(&self) -> Option<Instant> {
        let (detected, _) = self.waiting.as_ref()?;
        Some(self.last.map_or(*detected, |last| last + self.delay()))
    }

    /// Whether the next sync has to check for drift.
    pub fn begin(&mut self, now: Instant) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due && let Some((_, writers)) = self.waiting.take() {
            let in_progress = self.in_progress.get_or_insert_default();
            in_progress.further += writers.further;
            in_progress.extend(writers.named);
        }
        is_due
    }

    /// Whether the current sync checks for drift. It may find none.
    pub fn is_in_progress(&self) -> bool {
        self.in_progress.is_some()
    }

    /// A sync succeeded. `has_repaired` says that the kernel did not hold what it should.
    pub fn synced(&mut self, has_repaired: bool, now: Instant) -> Option<Repaired> {
        let writers = self.in_progress.take().filter(|_| has_repaired)?;
        self.last = Some(now);
        self.consecutive += 1;
        Some(match self.consecutive {
            ..=IMMEDIATE_REPAIRS => Repaired::Once(writers),
            count if count == IMMEDIATE_REPAIRS + 1 => Repaired::Slowed(writers, self.delay()),
            _ => Repaired::Again,
        })
    }

    /// The delay from the last repair to the next.
    fn delay(&self) -> Duration {
        match self.consecutive.checked_sub(IMMEDIATE_REPAIRS) {
            None => Duration::ZERO,
            Some(doublings) => MIN_DELAY.saturating_mul(1 << doublings.min(10)).min(MAX_DELAY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn writer(pid: u32) -> ForeignWriter {
        ForeignWriter { process: "kube-proxy".into(), pid }
    }

    fn writers(pids: impl IntoIterator<Item = u32>) -> Writers {
        let mut writers = Writers::default();
        writers.extend(pids.into_iter().map(writer));
        writers
    }

    /// Detects drift at this time and repairs it once that is due. Returns when, and what is logged.
    fn repair(repairs: &mut Repairs, at: Instant) -> (Instant, Option<Repaired>) {
        repairs.detected(Some(writer(1)), at);
        let due = repairs.due().unwrap().max(at);
        assert!(due == at || !repairs.begin(due - SECOND / 1_000), "not before it is due");
        assert!(repairs.begin(due) && repairs.due().is_none());
        (due, repairs.synced(true, due))
    }

    #[test]
    fn repairs_against_a_persistent_writer_slow_down_and_are_logged_a_few_times() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let (mut now, mut delays, mut lines) = (start, Vec::new(), Vec::new());
        for _ in 0..15 {
            let (due, logged) = repair(&mut repairs, now);
            delays.push((due - now).as_secs());
            lines.extend(logged.filter(|logged| *logged != Repaired::Again));
            now = due;
        }
        assert_eq!(delays, [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        let by = || writers([1]);
        let mut want: Vec<_> = (0..IMMEDIATE_REPAIRS).map(|_| Repaired::Once(by())).collect();
        want.push(Repaired::Slowed(by(), 2 * SECOND));
        assert_eq!(lines, want);

        let quiet = now + 4 * MAX_DELAY;
        assert_eq!(repair(&mut repairs, quiet), (quiet, Some(Repaired::Once(by()))), "immediate again");
    }

    #[test]
    fn two_proxies_that_repair_each_other_stay_slow() {
        let start = Instant::now();
        let mut both = [Repairs::default(), Repairs::default()];
        let (mut now, mut count) = (start, 0);
        while now < start + 3_600 * SECOND {
            // The repair of the one is the drift of the other.
            for repairs in &mut both {
                now = repair(repairs, now).0;
                count += 1;
            }
        }
        assert!(count < 2 * (IMMEDIATE_REPAIRS + 6 + 60), "{count} repairs in an hour");
    }

    #[test]
    fn rules_that_are_flushed_now_and_then_are_repaired_immediately_each_time() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        for flush in 0..100 {
            let at = start + QUIET_PERIOD * flush;
            let (due, logged) = repair(&mut repairs, at);
            assert_eq!((due, logged), (at, Some(Repaired::Once(writers([1])))));
        }
    }

    #[test]
    fn a_foreign_change_that_makes_no_difference_is_no_repair() {
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        for _ in 0..100 {
            repairs.detected(None, now);
            assert!(repairs.begin(now) && repairs.is_in_progress());
            assert_eq!(repairs.synced(false, now), None);
        }
        assert_eq!(
            repairs.synced(true, now),
            None,
            "what a sync writes for other reasons is no repair either"
        );
        repairs.detected(Some(writer(1)), now);
        repairs.detected(Some(writer(2)), now);
        assert!(repairs.begin(now));
        assert_eq!(repairs.synced(true, now), Some(Repaired::Once(writers([1, 2]))));
    }

    #[test]
    fn any_number_of_writers_fits_into_a_short_line() {
        assert_eq!(writers([]).to_string(), "unknown");
        assert_eq!(writers([1, 2, 1]).to_string(), "kube-proxy (1), kube-proxy (2)");
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        for pid in (1..=500).chain([3]) {
            repairs.detected(Some(writer(pid)), now);
        }
        assert!(repairs.begin(now));
        // The sync failed, and there were more changes before the next one.
        (501..=1_000).for_each(|pid| repairs.detected(Some(writer(pid)), now));
        assert!(repairs.begin(now));
        let Some(Repaired::Once(by)) = repairs.synced(true, now) else { panic!("repaired") };
        assert_eq!(by.named, writers(1..=8).named);
        let line = by.to_string();
        assert!(line.ends_with("kube-proxy (7), kube-proxy (8) and 992 more changes by others"), "{line}");
    }
}
