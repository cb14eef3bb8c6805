//! New connections, as the kernel counts them: asked for, told to who asks, and added up over time.
//!
//! ```text
//!   family ── Owners ──┐
//!   kernel ── counters ┴─▶ Census ─▶ metrics
//!                                 └▶ Page ── HTTP ──▶ kube-proxy top
//! ```

mod page;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernel::nftables::{self, Connections, Owners};
use model::address::Family;

use crate::family::Message;
use crate::source::Lines;

pub use page::{Endpoint, Frontend, Page, ServicePort};

/// So much longer than counting takes the last count is good enough, whoever asks and however often: a twentieth of one
/// core at most. To list a set takes the kernel time with the square of its size.
const REST: u32 = 20;

/// For a family to come to its inbox.
const PATIENCE: Duration = Duration::from_secs(10);

/// Counts in the thread of who asks: a family is only asked whose connections there are, and its passes don't wait.
#[derive(Debug)]
pub struct Census {
    lines: Lines,
    began: Instant,
    last: Mutex<Option<Arc<Count>>>,
}

/// What there was in all families at one moment.
#[derive(Debug)]
pub struct Count {
    /// Since the census began.
    pub at: Duration,
    pub families: BTreeMap<Family, io::Result<Vec<Connections>>>,
    /// When there will be another.
    next: Instant,
}

/// What one family has, and how long the kernel took to tell.
type Counted = (io::Result<Vec<Connections>>, Duration);

impl Census {
    pub fn new(lines: Lines) -> Self {
        Self { lines, began: Instant::now(), last: Mutex::default() }
    }

    pub fn count(&self) -> Arc<Count> {
        self.count_by(count)
    }

    /// Whoever comes while somebody counts waits for that count.
    fn count_by(&self, count: impl Fn(Family, &SyncSender<Message>) -> Counted) -> Arc<Count> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = last.as_ref().filter(|count| Instant::now() < count.next) {
            return count.clone();
        }
        let at = self.began.elapsed();
        let mut took = Duration::ZERO;
        let mut families = BTreeMap::new();
        for (family, line) in &self.lines {
            let (counted, time) = count(*family, line);
            families.insert(*family, counted);
            took += time;
        }
        let count = Arc::new(Count { at, families, next: Instant::now() + took * REST });
        *last = Some(count.clone());
        count
    }
}

impl Count {
    pub fn of(&self, family: Family) -> io::Result<&[Connections]> {
        match self.families.get(&family) {
            Some(Ok(connections)) => Ok(connections),
            Some(Err(error)) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(&[]),
        }
    }

    /// Until there will be another.
    pub fn good_for(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }
}

fn count(family: Family, line: &SyncSender<Message>) -> Counted {
    let owners = match owners(line) {
        Ok(owners) => owners,
        Err(error) => return (Err(error), Duration::ZERO),
    };
    let started = Instant::now();
    let counted = nftables::connections(family, &owners);
    (counted, started.elapsed())
}

fn owners(line: &SyncSender<Message>) -> io::Result<Owners> {
    let (answer, owners) = sync_channel(1);
    let busy = |_| io::Error::new(io::ErrorKind::ResourceBusy, "too busy to answer, ask again in a moment");
    line.try_send(Message::Owners(answer)).map_err(busy)?;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}"));
    owners.recv_timeout(PATIENCE).map_err(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;

    fn census() -> Census {
        let (line, _) = sync_channel(1);
        Census::new([(Family::V4, line)].into())
    }

    #[test]
    fn the_last_count_is_told_for_twenty_times_as_long_as_it_took() {
        let census = census();
        let (counts, took) = (Cell::new(0), Cell::new(Duration::from_millis(5)));
        let count = || {
            census.count_by(|_, _| {
                counts.set(counts.get() + 1);
                (Ok(Vec::new()), took.get())
            })
        };
        let first = count();
        let rest = first.good_for();
        assert!(rest > Duration::from_millis(50) && rest <= Duration::from_millis(100), "{rest:?}");
        std::thread::sleep(rest);
        took.set(Duration::from_secs(60));
        let second = count();
        assert!(second.at >= first.at + rest, "{:?} after {:?}", second.at, first.at);
        assert_eq!(count().at, second.at, "the same one again");
        assert_eq!(counts.get(), 2);
    }

    #[test]
    fn a_family_that_cannot_be_asked_can_be_asked_again_at_once() {
        let census = census();
        let count = census.count();
        assert_eq!(count.of(Family::V4).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(count.of(Family::V6).unwrap(), [], "which nobody serves");
        assert_eq!(count.good_for(), Duration::ZERO);
    }
}
