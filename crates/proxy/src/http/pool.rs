//! The connections of all ports together: how many there may be, and which one goes when another comes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::AbortHandle;

/// More than honest clients hold: kubelet, Prometheus, and a few probes of load balancers at each health-check node port.
const MAX_CONNECTIONS: usize = 512;
const MIN_CONNECTIONS: usize = 8;

/// How many connections there may be in a process that may open so many files: a quarter of them.
pub fn limit(open_files: Option<u64>) -> usize {
    let share =
        open_files.map_or(MAX_CONNECTIONS, |files| usize::try_from(files / 4).unwrap_or(MAX_CONNECTIONS));
    share.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS)
}

/// Every connection that is open.
#[derive(Debug)]
pub struct Pool {
    limit: usize,
    began: Instant,
    /// In the order in which they came.
    open: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    task: AbortHandle,
    activity: Arc<Activity>,
}

/// Since when a connection waits for its client, in microseconds since the pool began; [`BUSY`] while a client waits for us.
#[derive(Debug)]
pub struct Activity {
    began: Instant,
    idle_since: AtomicU64,
}

/// Later than any time, so that connections at work are closed last.
const BUSY: u64 = u64::MAX;

impl Pool {
    pub fn new(limit: usize) -> Self {
        Self { limit, began: Instant::now(), open: Mutex::default() }
    }

    /// Of a connection that begins now.
    pub fn activity(&self) -> Arc<Activity> {
        let activity = Activity { began: self.began, idle_since: AtomicU64::default() };
        activity.rest();
        Arc::new(activity)
    }

    /// Closes a connection if there is no room for another one, and returns whether it did.
    pub fn make_room(&self) -> bool {
        let mut open = self.open();
        open.retain(|connection| !connection.task.is_finished());
        open.len() >= self.limit && close_longest_idle(&mut open)
    }

    /// Closes a connection, if there is one.
    pub fn close_longest_idle(&self) {
        let mut open = self.open();
        open.retain(|connection| !connection.task.is_finished());
        close_longest_idle(&mut open);
    }

    pub fn enter(&self, task: AbortHandle, activity: Arc<Activity>) {
        self.open().push(Connection { task, activity });
    }

    fn open(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of those at work, where all are, the one that came first.
fn close_longest_idle(open: &mut Vec<Connection>) -> bool {
    let idle_since = |connection: &Connection| connection.activity.idle_since.load(Ordering::Relaxed);
    let longest = open.iter().enumerate().min_by_key(|(_, connection)| idle_since(connection));
    let Some((at, _)) = longest else { return false };
    open.remove(at).task.abort();
    true
}

impl Activity {
    /// The connection is at work until what is returned is dropped.
    pub fn work(&self) -> Busy<'_> {
        self.idle_since.store(BUSY, Ordering::Relaxed);
        Busy(self)
    }

    fn rest(&self) {
        let now = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(BUSY);
        self.idle_since.store(now, Ordering::Relaxed);
    }
}

/// Keeps a connection from being idle.
#[derive(Debug)]
#[must_use]
pub struct Busy<'a>(&'a Activity);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.rest();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::yield_now;

    use super::*;

    #[test]
    fn a_quarter_of_all_files_may_be_connections() {
        for (files, want) in
            [(Some(16), 8), (Some(256), 64), (Some(1024), 256), (Some(1 << 20), 512), (None, 512)]
        {
            assert_eq!(limit(files), want, "{files:?}");
        }
    }

    #[tokio::test]
    async fn the_longest_idle_goes_first_and_those_at_work_last() {
        let pool = Pool::new(3);
        let mut came = Vec::new();
        for idle_since in [30, 10, 20] {
            assert!(!pool.make_room());
            let (task, activity) = (tokio::spawn(pending::<()>()), pool.activity());
            activity.idle_since.store(idle_since, Ordering::Relaxed);
            pool.enter(task.abort_handle(), activity.clone());
            came.push((task, activity));
        }
        let open = || came.iter().map(|(task, _)| !task.is_finished()).collect::<Vec<_>>();
        let work = came[1].1.work();
        assert!(pool.make_room());
        yield_now().await;
        assert_eq!(open(), [true, true, false], "the second is at work");
        assert!(!pool.make_room(), "there is room now");
        pool.close_longest_idle();
        yield_now().await;
        assert_eq!(open(), [false, true, false]);
        drop(work);
        pool.close_longest_idle();
        yield_now().await;
        assert_eq!(open(), [false; 3]);
        pool.close_longest_idle();
    }
}
