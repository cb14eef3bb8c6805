//! The inbox of a family worker. No sender ever waits for the worker, which may be busy for minutes: everything that is sent is
//! kept in bounded space, where newer values replace older ones.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::drift::Drift;
use model::backlog::Backlog;

use super::Start;
use super::worker::Worker;

/// Queries that wait for an answer; further ones are refused.
const MAX_QUERIES: usize = 64;

/// Changes by foreign writers that are kept; further ones are repaired together with these.
const MAX_DRIFT: usize = 1_000;

/// Everything that a family worker has not taken yet.
#[derive(Default)]
pub struct InboxContents {
    pub backlog: Backlog,
    pub start: Option<Box<Start>>,
    /// All addresses of the node, if they changed.
    pub node_addresses: Option<Arc<[IpAddr]>>,
    pub drift: Vec<Drift>,
    /// Whether the rules of other modes have been removed.
    pub other_modes_removed: bool,
    pub queries: Vec<WorkerQuery>,
}

/// Called with the worker between two syncs; sends the answer to the caller that waits for it.
pub type WorkerQuery = Box<dyn FnOnce(&Worker) + Send>;

/// Why a query was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Full,
    Closed,
}

/// The worker's end. Dropping it closes the inbox.
#[derive(Debug)]
pub struct Inbox(Arc<Channel>);

/// The senders' end.
#[derive(Clone, Debug)]
pub struct InboxSender(Arc<Channel>);

#[derive(Debug, Default)]
struct Channel {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    contents: InboxContents,
    is_closed: bool,
}

pub fn inbox() -> (InboxSender, Inbox) {
    let channel = Arc::new(Channel::default());
    (InboxSender(channel.clone()), Inbox(channel))
}

impl Inbox {
    /// Waits until the inbox is not empty, or until `timeout` has passed, and takes its contents.
    pub fn take(&self, timeout: Duration) -> InboxContents {
        let state = self.0.lock();
        let waited = self.0.arrived.wait_timeout_while(state, timeout, |state| state.contents.is_empty());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.contents)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        state.contents = InboxContents::default();
    }
}

impl InboxSender {
    /// Changes the contents and wakes the worker.
    pub fn put(&self, put: impl FnOnce(&mut InboxContents)) {
        let mut state = self.0.lock();
        if !state.is_closed {
            put(&mut state.contents);
            self.0.arrived.notify_one();
        }
    }

    pub fn put_drift(&self, drift: Drift) {
        self.put(|contents| {
            if contents.drift.len() < MAX_DRIFT {
                contents.drift.push(drift);
            }
        });
    }

    pub fn put_query(&self, query: WorkerQuery) -> Result<(), Refusal> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(Refusal::Closed);
        }
        if state.contents.queries.len() >= MAX_QUERIES {
            return Err(Refusal::Full);
        }
        state.contents.queries.push(query);
        self.0.arrived.notify_one();
        Ok(())
    }
}

impl Channel {
    /// Both ends hold the lock only for a moment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InboxContents {
    fn is_empty(&self) -> bool {
        let Self { backlog, start, node_addresses, drift, other_modes_removed, queries } = self;
        backlog.is_empty()
            && start.is_none()
            && node_addresses.is_none()
            && drift.is_empty()
            && !other_modes_removed
            && queries.is_empty()
    }
}

impl fmt::Debug for InboxContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxContents").field("events", &self.backlog.len()).finish_non_exhaustive()
    }
}
