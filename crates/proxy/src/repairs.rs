//! Decides when drift is repaired and what is logged about it. Never sleeps, never asks what time it is.
//!
//! The first repairs are made at once: a firewall that is restarted flushes our rules a few times and is done. Whatever
//! keeps changing them, another proxy with another configuration say, would be fought for ever at the price of both
//! processors, so further repairs wait for ever longer, until the rules are left alone for a while.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use kernel::drift::ForeignWriter;

/// Repairs in a row that are made at once.
const AT_ONCE: u32 = 5;
const SHORTEST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// Repairs are in a row if less time than this is between them, or less than four times the delay: a foreign writer that
/// delays its own repairs as we do comes back later, too.
const QUIET: Duration = Duration::from_secs(10);

/// The repairs of one family.
#[derive(Debug, Default)]
pub struct Repairs {
    /// When drift was noticed that no sync has looked at, and the foreign writers as far as they are known.
    waiting: Option<(Instant, Writers)>,
    /// The foreign writers of the drift that the next sync looks at.
    under_way: Option<Writers>,
    last: Option<Instant>,
    /// Repairs in a row up to now.
    in_a_row: u32,
}

/// Processes that changed our rules. A script may start one for every change it makes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Writers {
    named: BTreeSet<ForeignWriter>,
    /// Changes by others than those.
    further: usize,
}

/// Foreign writers that a line names.
const NAMED: usize = 8;

impl Extend<ForeignWriter> for Writers {
    fn extend<T: IntoIterator<Item = ForeignWriter>>(&mut self, writers: T) {
        for writer in writers {
            if self.named.len() < NAMED || self.named.contains(&writer) {
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
    /// It is the first one in a row that had to wait; the next one waits this long.
    Slowed(Writers, Duration),
    /// That was logged.
    Again,
}

impl Repairs {
    /// A foreign writer may have changed our rules.
    pub fn noticed(&mut self, by: Option<ForeignWriter>, now: Instant) {
        let is_quiet = self.last.is_some_and(|last| now >= last + QUIET.max(4 * self.delay()));
        if is_quiet {
            self.in_a_row = 0;
        }
        let (_, writers) = self.waiting.get_or_insert_with(|| (now, Writers::default()));
        writers.extend(by);
    }

    /// When the drift that was noticed is to be looked at; none if there is none.
    pub fn due(&self) -> Option<Instant> {
        let (noticed, _) = self.waiting.as_ref()?;
        Some(self.last.map_or(*noticed, |last| last + self.delay()))
    }

    /// Whether the next sync has to look at what was noticed.
    pub fn begin(&mut self, now: Instant) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due && let Some((_, writers)) = self.waiting.take() {
            let under_way = self.under_way.get_or_insert_default();
            under_way.further += writers.further;
            under_way.extend(writers.named);
        }
        is_due
    }

    /// Whether the sync looks at drift, which may be none.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// A sync succeeded, and may have found that the kernel did not hold what it should.
    pub fn synced(&mut self, has_repaired: bool, now: Instant) -> Option<Repaired> {
        let writers = self.under_way.take().filter(|_| has_repaired)?;
        self.last = Some(now);
        self.in_a_row += 1;
        Some(match self.in_a_row {
            ..=AT_ONCE => Repaired::Once(writers),
            row if row == AT_ONCE + 1 => Repaired::Slowed(writers, self.delay()),
            _ => Repaired::Again,
        })
    }

    /// From the last repair to the next.
    fn delay(&self) -> Duration {
        match self.in_a_row.checked_sub(AT_ONCE) {
            None => Duration::ZERO,
            Some(doublings) => SHORTEST_DELAY.saturating_mul(1 << doublings.min(10)).min(LONGEST_DELAY),
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

    /// Drift at that time, repaired as soon as that may be: when, and what is logged.
    fn repair(repairs: &mut Repairs, at: Instant) -> (Instant, Option<Repaired>) {
        repairs.noticed(Some(writer(1)), at);
        let due = repairs.due().unwrap().max(at);
        assert!(due == at || !repairs.begin(due - SECOND / 1_000), "not before it is due");
        assert!(repairs.begin(due) && repairs.due().is_none());
        (due, repairs.synced(true, due))
    }

    #[test]
    fn a_writer_that_never_gives_in_is_answered_ever_more_slowly_and_logged_a_few_times() {
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
        let mut want: Vec<_> = (0..AT_ONCE).map(|_| Repaired::Once(by())).collect();
        want.push(Repaired::Slowed(by(), 2 * SECOND));
        assert_eq!(lines, want);

        let quiet = now + 4 * LONGEST_DELAY;
        assert_eq!(repair(&mut repairs, quiet), (quiet, Some(Repaired::Once(by()))), "at once again");
    }

    #[test]
    fn two_that_are_slowed_alike_stay_slow() {
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
        assert!(count < 2 * (AT_ONCE + 6 + 60), "{count} repairs in an hour");
    }

    #[test]
    fn rules_that_are_flushed_now_and_then_are_repaired_at_once_each_time() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        for flush in 0..100 {
            let at = start + QUIET * flush;
            let (due, logged) = repair(&mut repairs, at);
            assert_eq!((due, logged), (at, Some(Repaired::Once(writers([1])))));
        }
    }

    #[test]
    fn what_does_no_harm_is_no_repair() {
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        for _ in 0..100 {
            repairs.noticed(None, now);
            assert!(repairs.begin(now) && repairs.is_under_way());
            assert_eq!(repairs.synced(false, now), None);
        }
        assert_eq!(repairs.synced(true, now), None, "what a sync writes for other reasons is none either");
        repairs.noticed(Some(writer(1)), now);
        repairs.noticed(Some(writer(2)), now);
        assert!(repairs.begin(now));
        assert_eq!(repairs.synced(true, now), Some(Repaired::Once(writers([1, 2]))));
    }

    #[test]
    fn any_number_of_writers_is_a_short_line() {
        assert_eq!(writers([]).to_string(), "unknown");
        assert_eq!(writers([1, 2, 1]).to_string(), "kube-proxy (1), kube-proxy (2)");
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        for pid in (1..=500).chain([3]) {
            repairs.noticed(Some(writer(pid)), now);
        }
        assert!(repairs.begin(now));
        // The sync failed, and there was more until the next one.
        (501..=1_000).for_each(|pid| repairs.noticed(Some(writer(pid)), now));
        assert!(repairs.begin(now));
        let Some(Repaired::Once(by)) = repairs.synced(true, now) else { panic!("repaired") };
        assert_eq!(by.named, writers(1..=8).named);
        let line = by.to_string();
        assert!(line.ends_with("kube-proxy (7), kube-proxy (8) and 992 more changes by others"), "{line}");
    }
}
