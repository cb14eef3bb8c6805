//! How other threads reach a family worker: they send events without ever blocking, and queries with a timeout.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use kernel::drift::Drift;
use kernel::inspection::DesiredState;
use kernel::nftables::CounterOwners;
use model::address::Family;
use model::event::Event;
use plan::explain::Explanation;
use thiserror::Error;

use super::Start;
use super::inbox::{InboxSender, Refusal};
use super::worker::Worker;
use crate::debug_api::packet_query::PacketQuery;

/// How long a caller waits for the answer to a query. A worker answers between two syncs.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends events and queries to the worker of one family.
#[derive(Clone, Debug)]
pub struct FamilyHandle {
    family: Family,
    sender: InboxSender,
}

/// Why a query has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    #[error("{0} has too many queries waiting, try again in a moment")]
    Busy(Family),
    #[error("{0} did not answer within {ANSWER_TIMEOUT:?}: a sync may be under way")]
    TimedOut(Family),
    #[error("{0} has not begun to write rules")]
    NotSynced(Family),
    #[error("the worker of {0} has ended")]
    Ended(Family),
}

impl FamilyHandle {
    pub(super) fn new(family: Family, sender: InboxSender) -> Self {
        Self { family, sender }
    }

    /// A handle whose worker has ended.
    #[cfg(test)]
    pub fn of_ended_worker(family: Family) -> Self {
        Self::new(family, super::inbox::inbox().0)
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// An object of the cluster changed.
    pub fn apply(&self, event: Arc<Event>) {
        self.sender.put(|contents| contents.backlog.push(event));
    }

    /// Everything about the node is known: syncs may begin.
    pub fn start(&self, start: Start) {
        self.sender.put(|contents| contents.start = Some(Box::new(start)));
    }

    /// These are all addresses of the node now.
    pub fn node_addresses_changed(&self, addresses: Arc<[IpAddr]>) {
        self.sender.put(|contents| contents.node_addresses = Some(addresses));
    }

    /// The kernel may no longer hold what the worker wrote.
    pub fn drifted(&self, drift: Drift) {
        self.sender.put_drift(drift);
    }

    /// The rules of other modes have been removed.
    pub fn other_modes_removed(&self) {
        self.sender.put(|contents| contents.other_modes_removed = true);
    }

    /// What would happen to a packet.
    pub fn explain(&self, query: PacketQuery) -> anyhow::Result<Explanation> {
        let explained = self.query(move |worker| worker.explain(&query))?;
        explained.map_err(anyhow::Error::msg)
    }

    /// The desired state, for the caller to compare with the actual one.
    pub fn desired(&self) -> Result<DesiredState, QueryError> {
        self.query(Worker::desired)?.ok_or(QueryError::NotSynced(self.family))
    }

    /// The service ports and endpoints whose new connections the kernel counts.
    pub fn counter_owners(&self) -> Result<CounterOwners, QueryError> {
        self.query(Worker::counter_owners)
    }

    /// Sends a query and waits for its answer.
    fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Worker) -> T + Send + 'static,
    ) -> Result<T, QueryError> {
        let (answer, answered) = sync_channel(1);
        let query = move |worker: &Worker| {
            // The caller may have stopped waiting.
            let _ = answer.send(query(worker));
        };
        self.sender.put_query(Box::new(query)).map_err(|refusal| match refusal {
            Refusal::Full => QueryError::Busy(self.family),
            Refusal::Closed => QueryError::Ended(self.family),
        })?;
        answered.recv_timeout(ANSWER_TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Timeout => QueryError::TimedOut(self.family),
            RecvTimeoutError::Disconnected => QueryError::Ended(self.family),
        })
    }
}
