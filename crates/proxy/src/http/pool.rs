//! The connections of all ports: how many there may be, and which one is closed to make room for another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::AbortHandle;

/// More than honest clients hold: kubelet, Prometheus, and a few probes of load balancers at each health-check node port.
const MAX_CONNECTIONS: usize = 512;
const MIN_CONNECTIONS: usize = 8;

/// The maximum number of connections: a quarter of the files that the process may open.
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
    /// In the order in which they were accepted.
    open: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    task: AbortHandle,
    activity: Arc<Activity>,
}

/// Since when a connection has been idle.
#[derive(Debug)]
pub struct Activity {
    began: Instant,
    /// In microseconds since `began`; [`BUSY`] while the client waits for a response.
    idle_since: AtomicU64,
}

/// Later than any time, so that busy connections are closed last.
const BUSY: u64 = u64::MAX;

impl Pool {
    pub fn new(limit: usize) -> Self {
        Self { limit, began: Instant::now(), open: Mutex::default() }
    }

    /// The activity of a new connection.
    pub fn activity(&self) -> Arc<Activity> {
        let activity = Activity { began: self.began, idle_since: AtomicU64::default() };
        activity.mark_idle();
        Arc::new(activity)
    }

    /// Closes a connection if the limit is reached, and returns whether it did.
    pub fn make_room(&self) -> bool {
        let mut open = self.open();
        open.retain(|connection| !connection.task.is_finished());
        open.len() >= self.limit && close_longest_idle(&mut open)
    }

    /// Closes the connection that has been idle longest, if there is any.
    pub fn close_longest_idle(&self) {
        let mut open = self.open();
        open.retain(|connection| !connection.task.is_finished());
        close_longest_idle(&mut open);
    }

    pub fn add(&self, task: AbortHandle, activity: Arc<Activity>) {
        self.open().push(Connection { task, activity });
    }

    fn open(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// If all are busy, closes the one that was accepted first.
fn close_longest_idle(open: &mut Vec<Connection>) -> bool {
    let idle_since = |connection: &Connection| connection.activity.idle_since.load(Ordering::Relaxed);
    let longest = open.iter().enumerate().min_by_key(|(_, connection)| idle_since(connection));
    let Some((at, _)) = longest else { return false };
    open.remove(at).task.abort();
    true
}

impl Activity {
    /// The connection is busy until the returned value is dropped.
    pub fn mark_busy(&self) -> Busy<'_> {
        self.idle_since.store(BUSY, Ordering::Relaxed);
        Busy(self)
    }

    fn mark_idle(&self) {
        let now = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(BUSY);
        self.idle_since.store(now, Ordering::Relaxed);
    }
}

/// Keeps a connection marked as busy.
#[derive(Debug)]
#[must_use]
pub struct Busy<'a>(&'a Activity);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.mark_idle();
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
    async fn the_longest_idle_connection_is_closed_first_and_busy_ones_last() {
        let pool = Pool::new(3);
        let mut accepted = Vec::new();
        for idle_since in [30, 10, 20] {
            assert!(!pool.make_room());
            let (task, activity) = (tokio::spawn(pending::<()>()), pool.activity());
            activity.idle_since.store(idle_since, Ordering::Relaxed);
            pool.add(task.abort_handle(), activity.clone());
            accepted.push((task, activity));
        }
        let open = || accepted.iter().map(|(task, _)| !task.is_finished()).collect::<Vec<_>>();
        let busy = accepted[1].1.mark_busy();
        assert!(pool.make_room());
        yield_now().await;
        assert_eq!(open(), [true, true, false], "the second is busy");
        assert!(!pool.make_room(), "there is room now");
        pool.close_longest_idle();
        yield_now().await;
        assert_eq!(open(), [false, true, false]);
        drop(busy);
        pool.close_longest_idle();
        yield_now().await;
        assert_eq!(open(), [false; 3]);
        pool.close_longest_idle();
    }
}
