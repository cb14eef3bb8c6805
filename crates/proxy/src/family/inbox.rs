//! The inbox of a family worker. No sender ever waits for the worker, which may be busy for minutes: everything sent has a place
//! of bounded size, where newer news replace older ones.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::drift::Drift;
use model::backlog::Backlog;

use super::Start;
use super::worker::Worker;

/// Questions that wait for an answer; further ones are refused.
const MOST_QUESTIONS: usize = 64;

/// Changes of foreign writers that are noted; further ones are repaired with them.
const MOST_DRIFT: usize = 1_000;

/// Everything that a family worker has not taken yet.
#[derive(Default)]
pub struct Mail {
    pub backlog: Backlog,
    pub start: Option<Box<Start>>,
    /// All addresses of the node, if they changed.
    pub node_addresses: Option<Arc<[IpAddr]>>,
    pub drift: Vec<Drift>,
    /// The rules of other modes are gone.
    pub other_modes_removed: bool,
    pub questions: Vec<Question>,
}

/// Is called with the worker between two syncs, and sends the answer to the caller who waits for it.
pub type Question = Box<dyn FnOnce(&Worker) + Send>;

/// Why a question was not put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Full,
    Closed,
}

/// The worker's end. Dropping it closes the inbox.
#[derive(Debug)]
pub struct Inbox(Arc<Shared>);

/// The senders' end.
#[derive(Clone, Debug)]
pub struct Outbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    mail: Mail,
    is_closed: bool,
}

pub fn inbox() -> (Outbox, Inbox) {
    let shared = Arc::new(Shared::default());
    (Outbox(shared.clone()), Inbox(shared))
}

impl Inbox {
    /// Waits until there is mail, or for that long, and takes all of it.
    pub fn take(&self, wait: Duration) -> Mail {
        let state = self.0.lock();
        let waited = self.0.arrived.wait_timeout_while(state, wait, |state| state.mail.is_empty());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.mail)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        state.mail = Mail::default();
    }
}

impl Outbox {
    /// Puts something into the mail.
    pub fn put(&self, put: impl FnOnce(&mut Mail)) {
        let mut state = self.0.lock();
        if !state.is_closed {
            put(&mut state.mail);
            self.0.arrived.notify_one();
        }
    }

    pub fn put_drift(&self, drift: Drift) {
        self.put(|mail| {
            if mail.drift.len() < MOST_DRIFT {
                mail.drift.push(drift);
            }
        });
    }

    pub fn put_question(&self, question: Question) -> Result<(), Refusal> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(Refusal::Closed);
        }
        if state.mail.questions.len() >= MOST_QUESTIONS {
            return Err(Refusal::Full);
        }
        state.mail.questions.push(question);
        self.0.arrived.notify_one();
        Ok(())
    }
}

impl Shared {
    /// Held for a moment only, by either end.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mail {
    fn is_empty(&self) -> bool {
        let Self { backlog, start, node_addresses, drift, other_modes_removed, questions } = self;
        backlog.is_empty()
            && start.is_none()
            && node_addresses.is_none()
            && drift.is_empty()
            && !other_modes_removed
            && questions.is_empty()
    }
}

impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mail").field("events", &self.backlog.len()).finish_non_exhaustive()
    }
}
