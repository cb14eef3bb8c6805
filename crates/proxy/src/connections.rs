//! Counts new connections: reads the kernel's counters, and caches them for a time.
//!
//! ```text
//!   family worker ── CounterOwners ──┐
//!   kernel ── counters ──────────────┴─▶ ConnectionCounter ─▶ metrics
//!                                                         └▶ ConnectionsPage ── HTTP ──▶ kube-proxy top
//! ```

mod page;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernel::nftables::{self, Connections};
use model::address::Family;

use crate::family::{Families, FamilyHandle};

pub use page::{ConnectionsPage, EndpointConnections, FrontendConnections, ServicePortConnections};

/// A count is reused for this many times as long as it took, however many callers there are: counting takes at most a twentieth of
/// one core. The time in which the kernel lists a set grows with the square of its size.
const REUSE_FACTOR: u32 = 20;

/// Counts in the caller's thread: a worker only returns the owners of the counters, and its syncs are not delayed.
#[derive(Debug)]
pub struct ConnectionCounter {
    families: Families,
    created: Instant,
    last: Mutex<Option<Arc<ConnectionCount>>>,
}

/// The counters of all families at one time.
#[derive(Debug)]
pub struct ConnectionCount {
    /// Since the counter was created.
    pub at: Duration,
    pub families: BTreeMap<Family, io::Result<Vec<Connections>>>,
    /// When the next call counts again.
    next: Instant,
}

/// The counters of one family, and how long the kernel took to list them.
type Counted = (io::Result<Vec<Connections>>, Duration);

impl ConnectionCounter {
    pub fn new(families: Families) -> Self {
        Self { families, created: Instant::now(), last: Mutex::default() }
    }

    pub fn count(&self) -> Arc<ConnectionCount> {
        self.count_by(count)
    }

    /// A caller that arrives while another one counts waits for that count.
    fn count_by(&self, count: impl Fn(&FamilyHandle) -> Counted) -> Arc<ConnectionCount> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = last.as_ref().filter(|count| Instant::now() < count.next) {
            return count.clone();
        }
        let at = self.created.elapsed();
        let mut took = Duration::ZERO;
        let mut families = BTreeMap::new();
        for (family, worker) in &self.families {
            let (counted, time) = count(worker);
            families.insert(*family, counted);
            took += time;
        }
        let count = Arc::new(ConnectionCount { at, families, next: Instant::now() + took * REUSE_FACTOR });
        *last = Some(count.clone());
        count
    }
}

impl ConnectionCount {
    pub fn of(&self, family: Family) -> io::Result<&[Connections]> {
        match self.families.get(&family) {
            Some(Ok(connections)) => Ok(connections),
            Some(Err(error)) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(&[]),
        }
    }

    /// The time until a call counts again.
    pub fn good_for(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }
}

fn count(worker: &FamilyHandle) -> Counted {
    let owners = match worker.counter_owners() {
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

    fn connection_counter() -> ConnectionCounter {
        ConnectionCounter::new([(Family::V4, FamilyHandle::of_ended_worker(Family::V4))].into())
    }

    #[test]
    fn a_count_is_reused_for_twenty_times_as_long_as_it_took() {
        let connection_counter = connection_counter();
        let (counts, took) = (Cell::new(0), Cell::new(Duration::from_millis(5)));
        let count = || {
            connection_counter.count_by(|_| {
                counts.set(counts.get() + 1);
                (Ok(Vec::new()), took.get())
            })
        };
        let first = count();
        let valid = first.good_for();
        assert!(valid > Duration::from_millis(50) && valid <= Duration::from_millis(100), "{valid:?}");
        std::thread::sleep(valid);
        took.set(Duration::from_secs(60));
        let second = count();
        assert!(second.at >= first.at + valid, "{:?} after {:?}", second.at, first.at);
        assert_eq!(count().at, second.at, "the same one again");
        assert_eq!(counts.get(), 2);
    }

    #[test]
    fn a_failed_query_of_a_family_is_not_reused() {
        let connection_counter = connection_counter();
        let count = connection_counter.count();
        assert_eq!(count.of(Family::V4).unwrap_err().to_string(), "the worker of IPv4 has ended");
        assert_eq!(count.of(Family::V6).unwrap(), [], "which is not served");
        assert_eq!(count.good_for(), Duration::ZERO);
    }
}
