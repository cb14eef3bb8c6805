//! A slow look at whether the kernel still holds what it should, should something have changed it that nobody heard of:
//! one rule of the legacy iptables, say, or an error of ours.
//!
//! ```text
//!   ask the family what it wants ─▶ compare one part of it ─▶ rest two hundred times as long as that took ─▶ the next part
//! ```

use std::collections::HashMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use kernel::difference::{Difference, Inspection, Part, persistent};
use kernel::stranger::Drift;
use model::address::Family;

use crate::family::Message;
use crate::threads;

/// So much longer than a look takes the rest after it: half a percent of one core at most.
const REST: u32 = 200;
/// A pass may be under way when we look. By then it has come to its end.
const MOMENT: Duration = Duration::from_secs(1);
/// The busiest family hears us within that.
const PATIENCE: Duration = Duration::from_secs(60);
/// After so many repairs in vain, a part is left alone for ever longer times, up to two to that power rounds.
const MOST_DOUBLINGS: u32 = 10;

/// Looks for as long as the process lives, a part every `interval` at most.
pub fn spawn(family: Family, line: SyncSender<Message>, interval: Duration) -> anyhow::Result<()> {
    let auditor = Auditor { family, line, parts: Vec::new(), stubborn: HashMap::new() };
    threads::spawn(format!("audit-{family}"), move || auditor.run(interval))
}

struct Auditor {
    family: Family,
    line: SyncSender<Message>,
    /// Those that are still to be looked at in this round.
    parts: Vec<Part>,
    /// Parts that were different at the last look.
    stubborn: HashMap<Part, Stubborn>,
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
                    tracing::debug!(v = 2, ipFamily = %self.family, err = format!("{error:#}"), "Failed to compare the kernel with what it should hold");
                }
            }
        }
    }

    /// At one part, and returns how long that takes. When all have been looked at, it begins again.
    fn look(&mut self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let mut inspection = self.inspection()?;
        if self.parts.is_empty() {
            self.parts = inspection.parts();
        }
        let Some(part) = self.parts.pop() else { return Ok(Duration::ZERO) };
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
        self.tell(part, &persistent(&first, second))?;
        Ok(took)
    }

    fn inspection(&self) -> anyhow::Result<Inspection> {
        let (answer, wanted) = sync_channel(1);
        self.line.send(Message::Compare(answer)).map_err(|_| anyhow!("the family has ended"))?;
        Ok(wanted.recv_timeout(PATIENCE).context("there was no pass yet")?.open()?)
    }

    fn tell(&mut self, part: Part, wrong: &[Difference]) -> anyhow::Result<()> {
        let Some(found) = wrong.first() else { return Ok(()) };
        let first = format!("{}: {}", found.kind, found.object);
        let stubborn = self.stubborn.entry(part).or_default();
        if stubborn.first == first {
            // We may read it otherwise than it is written: better not to write it for ever.
            stubborn.repairs = (stubborn.repairs + 1).min(MOST_DOUBLINGS);
            stubborn.skip = 1 << stubborn.repairs;
        } else {
            *stubborn = Stubborn { first: first.clone(), ..Stubborn::default() };
        }
        let (differences, rest) = (wrong.len(), stubborn.skip);
        tracing::warn!(ipFamily = %self.family, %part, differences, first, roundsToRest = rest, "The kernel does not hold what it should, writing it again");
        let told = self.line.send(Message::Drifted(Drift::Heard(None)));
        told.map_err(|_| anyhow!("the family has ended"))
    }
}
