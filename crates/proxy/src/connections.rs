//! New connections, as the kernel counts them, and added up over time.
//!
//! ```text
//!   family worker ── Owners ──┐
//!   kernel ── counters ───────┴─▶ Census ─▶ metrics
//!                                        └▶ Page ── HTTP ──▶ kube-proxy top
//! ```

mod page;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernel::nftables::{self, Connections};
use model::address::Family;

use crate::family::{Families, FamilyHandle};

pub use page::{Endpoint, Frontend, Page, ServicePort};

/// A count is reused for this many times the time it took, however many callers there are: counting takes a twentieth of one core
/// at most. To list a set takes the kernel time with the square of its size.
const REUSE_FACTOR: u32 = 20;

/// Counts in the caller's thread: a worker is only asked whose connections there are, and its syncs don't wait.
#[derive(Debug)]
pub struct Census {
    families: Families,
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

/// What one family has, and how long the kernel took to list it.
type Counted = (io::Result<Vec<Connections>>, Duration);

impl Census {
    pub fn new(families: Families) -> Self {
        Self { families, began: Instant::now(), last: Mutex::default() }
    }

    pub fn count(&self) -> Arc<Count> {
        self.count_by(count)
    }

    /// A caller that comes while another one counts waits for that count.
    fn count_by(&self, count: impl Fn(&FamilyHandle) -> Counted) -> Arc<Count> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = last.as_ref().filter(|count| Instant::now() < count.next) {
            return count.clone();
        }
        let at = self.began.elapsed();
        let mut took = Duration::ZERO;
        let mut families = BTreeMap::new();
        for (family, worker) in &self.families {
            let (counted, time) = count(worker);
            families.insert(*family, counted);
            took += time;
        }
        let count = Arc::new(Count { at, families, next: Instant::now() + took * REUSE_FACTOR });
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

fn count(worker: &FamilyHandle) -> Counted {
    let owners = match worker.owners() {
        Ok(owners) => owners,
        Err(error) => return (Err(io::Error::other(error)), Duration::ZERO),
    };
    let started = Instant::now();
    let counted = nftables::connections(worker.family(), &owners);
    (counted, started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;

    fn census() -> Census {
        Census::new([(Family::V4, FamilyHandle::of_ended_worker(Family::V4))].into())
    }

    #[test]
    fn a_count_is_reused_for_twenty_times_as_long_as_it_took() {
        let census = census();
        let (counts, took) = (Cell::new(0), Cell::new(Duration::from_millis(5)));
        let count = || {
            census.count_by(|_| {
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
    fn a_family_without_an_answer_is_asked_again_at_once() {
        let census = census();
        let count = census.count();
        assert_eq!(count.of(Family::V4).unwrap_err().to_string(), "the worker of IPv4 has ended");
        assert_eq!(count.of(Family::V6).unwrap(), [], "which is not served");
        assert_eq!(count.good_for(), Duration::ZERO);
    }
}
