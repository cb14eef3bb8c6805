//! Slowly compares the kernel with what it should hold, should something have changed it without the proxy being notified: one
//! rule of the legacy iptables, for example, or an error of ours.
//!
//! ```text
//!   ask the worker what is desired ─▶ compare one part of it ─▶ rest two hundred times as long as that took ─▶ the next part
//! ```

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kernel::drift::Drift;
use kernel::inspection::{Inspection, Part};
use plan::difference::{Difference, persistent};

use crate::family::FamilyHandle;
use crate::threads;

/// So much longer than a look takes the rest after it: half a percent of one core at most.
const REST: u32 = 200;
/// A sync may be under way when the kernel is read. By then it has ended.
const MOMENT: Duration = Duration::from_secs(1);
/// After so many repairs in vain, a part is left alone for ever longer times, up to two to that power rounds.
const MOST_DOUBLINGS: u32 = 10;

/// Looks for as long as the process lives, a part every `interval` at most.
pub fn spawn(worker: FamilyHandle, interval: Duration) -> anyhow::Result<()> {
    let family = worker.family();
    let auditor = Auditor { worker, round: Round::default(), stubborn: HashMap::new() };
    threads::spawn(format!("audit-{family}"), move || auditor.run(interval))
}

struct Auditor {
    worker: FamilyHandle,
    round: Round,
    /// Parts that were different at the last look.
    stubborn: HashMap<Part, Stubborn>,
}

/// Which part is read next: all of them, one after the other, and one that could not be read once more.
#[derive(Debug, Default)]
struct Round {
    left: Vec<Part>,
    failed: Option<Part>,
    /// Whether the part that was given last had failed before.
    is_retry: bool,
}

impl Round {
    /// When all parts have been given, it begins again.
    fn next(&mut self, all: impl FnOnce() -> Vec<Part>) -> Option<Part> {
        let failed = self.failed.take();
        self.is_retry = failed.is_some();
        if failed.is_none() && self.left.is_empty() {
            self.left = all();
        }
        failed.or_else(|| self.left.pop())
    }

    /// The part that was given last could not be read. One that fails twice in a row waits for the next round, so that it
    /// does not keep the others from being read.
    fn fail(&mut self, part: Part) {
        self.failed = Some(part).filter(|_| !self.is_retry);
    }
}

/// A part that does not become what it should.
#[derive(Debug, Default)]
struct Stubborn {
    /// What was different.
    first: String,
    repairs: u32,
    /// Rounds to leave out.
    skip: u32,
}

impl Auditor {
    fn run(mut self, interval: Duration) {
        let mut took = Duration::ZERO;
        loop {
            sleep(interval.max(took * REST));
            match self.look() {
                Ok(time) => took = time,
                Err(error) => {
                    tracing::debug!(v = 2, ipFamily = %self.worker.family(), err = format!("{error:#}"), "Failed to compare the kernel with what it should hold");
                }
            }
        }
    }

    /// At one part, and returns how long that takes.
    fn look(&mut self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let inspection = self.inspection()?;
        let Some(part) = self.round.next(|| inspection.parts()) else { return Ok(Duration::ZERO) };
        self.look_at(part, inspection, started).inspect_err(|_| self.round.fail(part))
    }

    fn look_at(
        &mut self,
        part: Part,
        mut inspection: Inspection,
        started: Instant,
    ) -> anyhow::Result<Duration> {
        if let Some(stubborn) = self.stubborn.get_mut(&part).filter(|it| it.skip > 0) {
            stubborn.skip -= 1;
            return Ok(started.elapsed());
        }
        let first = inspection.compare(part)?;
        let took = started.elapsed();
        if first.is_empty() {
            self.stubborn.remove(&part);
            return Ok(took);
        }
        sleep(MOMENT);
        let second = self.inspection()?.compare(part)?;
        self.report(part, &persistent(&first, second));
        Ok(took)
    }

    fn inspection(&self) -> anyhow::Result<Inspection> {
        Ok(self.worker.desired()?.open()?)
    }

    fn report(&mut self, part: Part, wrong: &[Difference]) {
        let Some(found) = wrong.first() else { return };
        let first = found.to_string();
        let stubborn = self.stubborn.entry(part).or_default();
        if stubborn.first == first {
            // We may read it otherwise than it is written: better not to write it for ever.
            stubborn.repairs = (stubborn.repairs + 1).min(MOST_DOUBLINGS);
            stubborn.skip = 1 << stubborn.repairs;
        } else {
            *stubborn = Stubborn { first: first.clone(), ..Stubborn::default() };
        }
        let (differences, rest) = (wrong.len(), stubborn.skip);
        tracing::warn!(ipFamily = %self.worker.family(), %part, differences, first, roundsToRest = rest, "The kernel does not hold what it should, writing it again");
        self.worker.drifted(Drift::Detected(None));
    }
}

#[cfg(test)]
mod tests {
    use plan::iptables::chains::IptablesTable;

    use super::*;

    #[test]
    fn a_part_that_could_not_be_read_is_read_once_more_before_the_others() {
        let [a, b] = [Part::Table(IptablesTable::Filter), Part::Table(IptablesTable::Nat)];
        let mut round = Round::default();
        let next = |round: &mut Round| round.next(|| vec![b, a]).unwrap();
        assert_eq!(next(&mut round), a);
        round.fail(a);
        assert_eq!(next(&mut round), a);
        round.fail(a);
        assert_eq!(next(&mut round), b, "what fails twice does not hold up the others");
        round.fail(b);
        assert_eq!([next(&mut round), next(&mut round), next(&mut round)], [b, a, b]);
    }
}
