//! A slow look at whether the kernel still holds what it should, should something have changed it that nobody heard of:
//! one rule of the legacy iptables, say, or an error of ours.
//!
//! ```text
//!   ask the family what it wants ─▶ compare one part of it ─▶ rest two hundred times as long as that took ─▶ the next part
//! ```

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use kernel::difference::{Difference, Inspection, Part};
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

/// Looks for as long as the process lives, a part every `interval` at most.
pub fn spawn(family: Family, line: SyncSender<Message>, interval: Duration) -> anyhow::Result<()> {
    let auditor = Auditor { family, line };
    threads::spawn(format!("audit-{family}"), move || auditor.run(interval))
}

struct Auditor {
    family: Family,
    line: SyncSender<Message>,
}

impl Auditor {
    fn run(self, interval: Duration) {
        let mut parts: Vec<Part> = Vec::new();
        let mut took = Duration::ZERO;
        loop {
            sleep(interval.max(took * REST));
            match self.look(&mut parts) {
                Ok(time) => took = time,
                Err(error) => {
                    tracing::debug!(v = 2, ipFamily = %self.family, err = format!("{error:#}"), "Failed to compare the kernel with what it should hold");
                }
            }
        }
    }

    /// At the last of these parts; when there are none left, they are all looked at again. Returns how long that takes.
    fn look(&self, parts: &mut Vec<Part>) -> anyhow::Result<Duration> {
        let mut inspection = self.inspection()?;
        if parts.is_empty() {
            *parts = inspection.parts();
        }
        let Some(part) = parts.pop() else { return Ok(Duration::ZERO) };
        let started = Instant::now();
        let first = inspection.compare(part)?;
        let took = started.elapsed();
        if !first.is_empty() {
            sleep(MOMENT);
            let mut wrong = self.inspection()?.compare(part)?;
            wrong.retain(|difference| first.contains(difference));
            self.tell(part, &wrong)?;
        }
        Ok(took)
    }

    fn inspection(&self) -> anyhow::Result<Inspection> {
        let (answer, wanted) = sync_channel(1);
        self.line.send(Message::Compare(answer)).map_err(|_| anyhow!("the family has ended"))?;
        Ok(wanted.recv_timeout(PATIENCE).context("there was no pass yet")?.open()?)
    }

    fn tell(&self, part: Part, wrong: &[Difference]) -> anyhow::Result<()> {
        let Some(first) = wrong.first() else { return Ok(()) };
        let (kind, object) = (first.kind, &first.object);
        tracing::warn!(ipFamily = %self.family, %part, differences = wrong.len(), first = format!("{kind}: {object}"), "The kernel does not hold what it should, writing it again");
        let told = self.line.send(Message::Drifted(Drift::Heard(None)));
        told.map_err(|_| anyhow!("the family has ended"))
    }
}
