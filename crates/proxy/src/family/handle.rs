//! How other threads talk to a family worker: they send news without ever waiting, and ask questions with a timeout.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use kernel::drift::Drift;
use kernel::inspection::DesiredState;
use kernel::nftables::Owners;
use model::address::Family;
use model::event::Event;
use plan::explain::Explanation;
use thiserror::Error;

use super::Start;
use super::inbox::{Outbox, Refusal};
use super::worker::Worker;
use crate::debug_api::question::Question;

/// For an answer. A worker answers between two syncs.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Talks to the worker of one family.
#[derive(Clone, Debug)]
pub struct FamilyHandle {
    family: Family,
    outbox: Outbox,
}

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoAnswer {
    #[error("{0} is too busy to answer, ask again in a moment")]
    Busy(Family),
    #[error("{0} did not answer within {ANSWER_TIMEOUT:?}: a sync may be under way")]
    Late(Family),
    #[error("{0} has not begun to write rules")]
    NotSynced(Family),
    #[error("the worker of {0} has ended")]
    Ended(Family),
}

impl FamilyHandle {
    pub(super) fn new(family: Family, outbox: Outbox) -> Self {
        Self { family, outbox }
    }

    /// One whose worker has ended.
    #[cfg(test)]
    pub fn of_ended_worker(family: Family) -> Self {
        Self::new(family, super::inbox::inbox().0)
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// Something happened to the objects of the cluster.
    pub fn apply(&self, event: Arc<Event>) {
        self.outbox.put(|mail| mail.backlog.push(event));
    }

    /// Everything about the node is known: syncs may begin.
    pub fn start(&self, start: Start) {
        self.outbox.put(|mail| mail.start = Some(Box::new(start)));
    }

    /// These are all addresses of the node now.
    pub fn node_addresses_changed(&self, addresses: Arc<[IpAddr]>) {
        self.outbox.put(|mail| mail.node_addresses = Some(addresses));
    }

    /// The kernel may hold something else than the worker wrote.
    pub fn drifted(&self, drift: Drift) {
        self.outbox.put_drift(drift);
    }

    /// The rules of other modes are gone.
    pub fn other_modes_removed(&self) {
        self.outbox.put(|mail| mail.other_modes_removed = true);
    }

    /// What would happen to a packet.
    pub fn explain(&self, question: Question) -> anyhow::Result<Explanation> {
        let explained = self.ask(move |worker| worker.explain(&question))?;
        explained.map_err(anyhow::Error::msg)
    }

    /// What the kernel should hold, for the caller to compare with what it holds.
    pub fn desired(&self) -> Result<DesiredState, NoAnswer> {
        self.ask(Worker::desired)?.ok_or(NoAnswer::NotSynced(self.family))
    }

    /// Whose new connections the kernel counts.
    pub fn owners(&self) -> Result<Owners, NoAnswer> {
        self.ask(Worker::owners)
    }

    /// Sends a question and waits for its answer.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Worker) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let (answer, answered) = sync_channel(1);
        let question = move |worker: &Worker| {
            // The caller may have stopped waiting.
            let _ = answer.send(question(worker));
        };
        self.outbox.put_question(Box::new(question)).map_err(|refusal| match refusal {
            Refusal::Full => NoAnswer::Busy(self.family),
            Refusal::Closed => NoAnswer::Ended(self.family),
        })?;
        answered.recv_timeout(ANSWER_TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::Late(self.family),
            RecvTimeoutError::Disconnected => NoAnswer::Ended(self.family),
        })
    }
}
