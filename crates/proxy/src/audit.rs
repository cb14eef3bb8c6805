//! Compares the kernel with the desired state in the background, in case it has changed without the proxy being notified: a
//! single rule of legacy iptables, for example, or a bug of ours.
//!
//! ```text
//!   get the desired state from the worker ─▶ compare one part ─▶ sleep two hundred times as long as that took ─▶ the next part
//! ```

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kernel::drift::Drift;
use kernel::inspection::{Inspection, Part};
use plan::difference::{Difference, persistent};

use crate::family::FamilyHandle;
use crate::threads;

/// The sleep after a comparison is this many times as long as the comparison: at most half a percent of one core.
const SLEEP_FACTOR: u32 = 200;
/// A sync may be running while the kernel is read. After this time it has most likely ended.
const RECHECK_DELAY: Duration = Duration::from_secs(1);
/// A part that repairs do not change is skipped for growing numbers of rounds, up to two to this power.
const MAX_DOUBLINGS: u32 = 10;

/// Compares for as long as the process lives, at most one part per `interval`.
pub fn spawn(worker: FamilyHandle, interval: Duration) -> anyhow::Result<()> {
    let family = worker.family();
    let auditor = Auditor { worker, round: Round::default(), differing: HashMap::new() };
    threads::spawn(format!("audit-{family}"), move || auditor.run(interval))
}

struct Auditor {
    worker: FamilyHandle,
    round: Round,
    /// Parts that differed when they were last compared.
    differing: HashMap<Part, Differing>,
}

/// Decides which part is compared next: all of them in turn, and one that could not be read a second time.
#[derive(Debug, Default)]
struct Round {
    left: Vec<Part>,
    failed: Option<Part>,
    /// Whether the last returned part had failed before.
    is_retry: bool,
}

impl Round {
    /// Starts again when all parts have been returned.
    fn next(&mut self, all: impl FnOnce() -> Vec<Part>) -> Option<Part> {
        let failed = self.failed.take();
        self.is_retry = failed.is_some();
        if failed.is_none() && self.left.is_empty() {
            self.left = all();
        }
        failed.or_else(|| self.left.pop())
    }

    /// The last returned part could not be read. A part that fails twice in a row waits for the next round, so that it
    /// does not keep the others from being compared.
    fn fail(&mut self, part: Part) {
        self.failed = Some(part).filter(|_| !self.is_retry);
    }
}

/// A part that differs from the desired state.
#[derive(Debug, Default)]
struct Differing {
    /// The first difference.
    first: String,
    repairs: u32,
    /// Rounds to skip.
    skip: u32,
}

impl Auditor {
    fn run(mut self, interval: Duration) {
        let mut took = Duration::ZERO;
        loop {
            sleep(interval.max(took * SLEEP_FACTOR));
            match self.compare_next() {
                Ok(time) => took = time,
                Err(error) => {
                    tracing::debug!(v = 2, ipFamily = %self.worker.family(), err = format!("{error:#}"), "Failed to compare the kernel with the desired state");
                }
            }
        }
    }

    /// Compares one part, and returns how long that took.
    fn compare_next(&mut self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let inspection = self.inspection()?;
        let Some(part) = self.round.next(|| inspection.parts()) else { return Ok(Duration::ZERO) };
        self.compare(part, inspection, started).inspect_err(|_| self.round.fail(part))
    }

    fn compare(
        &mut self,
        part: Part,
        mut inspection: Inspection,
        started: Instant,
    ) -> anyhow::Result<Duration> {
        if let Some(differing) = self.differing.get_mut(&part).filter(|it| it.skip > 0) {
            differing.skip -= 1;
            return Ok(started.elapsed());
        }
        let first = inspection.compare(part)?;
        let took = started.elapsed();
        if first.is_empty() {
            self.differing.remove(&part);
            return Ok(took);
        }
        sleep(RECHECK_DELAY);
        let second = self.inspection()?.compare(part)?;
        self.report(part, &persistent(&first, second));
        Ok(took)
    }

    fn inspection(&self) -> anyhow::Result<Inspection> {
        Ok(self.worker.desired()?.open()?)
    }

    fn report(&mut self, part: Part, found: &[Difference]) {
        let Some(first) = found.first() else { return };
        let first = first.to_string();
        let differing = self.differing.entry(part).or_default();
        if differing.first == first {
            // The comparison itself may be wrong about this part: do not rewrite it forever.
            differing.repairs = (differing.repairs + 1).min(MAX_DOUBLINGS);
            differing.skip = 1 << differing.repairs;
        } else {
            *differing = Differing { first: first.clone(), ..Differing::default() };
        }
        let (differences, skipped) = (found.len(), differing.skip);
        tracing::warn!(ipFamily = %self.worker.family(), %part, differences, first, roundsToSkip = skipped, "The kernel does not hold what it should, writing it again");
        self.worker.drifted(Drift::Detected(None));
    }
}

#[cfg(test)]
mod tests {
    use plan::iptables::chains::Table;

    use super::*;

    #[test]
    fn a_part_that_could_not_be_read_is_read_once_more_before_the_others() {
        let [a, b] = [Part::Table(Table::Filter), Part::Table(Table::Nat)];
        let mut round = Round::default();
        let next = |round: &mut Round| round.next(|| vec![b, a]).unwrap();
        assert_eq!(next(&mut round), a);
        round.fail(a);
        assert_eq!(next(&mut round), a);
        round.fail(a);
        assert_eq!(next(&mut round), b, "a part that fails twice does not delay the others");
        round.fail(b);
        assert_eq!([next(&mut round), next(&mut round), next(&mut round)], [b, a, b]);
    }
}
