//! One IP family: the worker thread, which applies events and syncs the kernel to them, and the handle through which other
//! threads send it events and queries.
//!
//! ```text
//!   source ─┐                                              ┌─▶ Backend ─▶ rules
//!   drift  ─┼─▶ FamilyHandle ─▶ Inbox ─▶ Worker ─▶ Syncer ─┼─▶ FlowFollower ─▶ scanner thread
//!   HTTP   ─┘    never blocks                              ├─▶ ServiceHealth: health-check node ports
//!                                                          └─▶ Reports: health, metrics, log
//! ```
//!
//! A family whose sync takes minutes delays neither the other family nor any sender: the inbox accepts everything, and keeps only
//! the newest event of each object.

mod drift;
mod handle;
mod inbox;
mod report;
mod syncer;
mod worker;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use model::address::Family;
use model::cluster::Here;
use model::local::NodePortAddresses;
use plan::explain;
use watch::recorder::Recorder;

use crate::backend::Backend;
use crate::flows::FlowFollower;
use crate::health::node::NodeHealth;
use crate::health::service::ServiceHealth;
use crate::metrics::Metrics;
use crate::rate_limit::MinInterval;
use crate::threads;

pub use handle::{ANSWER_TIMEOUT, FamilyHandle, QueryError};

/// The worker of each family that is served.
pub type Families = BTreeMap<Family, FamilyHandle>;

/// Starts the worker of a family. It applies events from now on, and syncs after [`start`](FamilyHandle::start).
pub fn spawn(here: Here, metrics: Arc<Metrics>, recorder: Recorder) -> anyhow::Result<FamilyHandle> {
    let family = here.family;
    let (sender, inbox) = inbox::inbox();
    let handle = FamilyHandle::new(family, sender);
    let worker = worker::Worker::new(here, metrics, recorder, handle.clone());
    threads::spawn(format!("sync-{family}"), move || worker.run(&inbox))?;
    Ok(handle)
}

/// What a worker needs before it can sync. None of it changes afterwards.
pub struct Start {
    pub node_ip: IpAddr,
    pub backend: Box<dyn Backend>,
    pub flows: FlowFollower,
    pub node_port_addresses: NodePortAddresses,
    pub explain_settings: explain::ExplainSettings,
    pub min_interval: MinInterval,
    /// From the end of a failed sync to its retry.
    pub sync_period: Duration,
    pub health: Arc<NodeHealth>,
    pub service_health: ServiceHealth,
    pub take_over: TakeOver,
}

/// Removes the rules of other modes. Must not run before our rules are in the kernel: until then those of other modes serve. Runs
/// on a thread of its own.
pub type TakeOver = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start").field("backend", &self.backend).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
