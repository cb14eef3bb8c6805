//! One IP family: a worker thread that applies events and syncs the kernel to them, and the handle by which other threads talk
//! to it.
//!
//! ```text
//!   source ─┐                                    ┌─▶ Backend ─▶ rules
//!   drift  ─┼─▶ FamilyHandle ─▶ Inbox ─▶ Worker ─┼─▶ FlowFollower ─▶ scanner thread
//!   HTTP   ─┘    never waits                     └─▶ Reports: health, metrics, log
//! ```
//!
//! A family whose sync takes minutes holds up neither the other family nor any sender: the inbox takes everything, and keeps of
//! each object only the newest event.

mod drift;
mod handle;
mod inbox;
mod report;
mod syncing;
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

use crate::backend::Backend;
use crate::flows::FlowFollower;
use crate::health::node::NodeHealth;
use crate::health::service::ServiceHealth;
use crate::metrics::Metrics;
use crate::rate_limit::Pause;
use crate::threads;

pub use handle::{ANSWER_TIMEOUT, FamilyHandle, NoAnswer};

/// The worker of each family that is served.
pub type Families = BTreeMap<Family, FamilyHandle>;

/// Starts the worker of a family. It applies events from now on, and syncs once there was a [`start`](FamilyHandle::start).
pub fn spawn(here: Here, metrics: Arc<Metrics>) -> anyhow::Result<FamilyHandle> {
    let family = here.family;
    let (outbox, inbox) = inbox::inbox();
    let handle = FamilyHandle::new(family, outbox);
    let worker = worker::Worker::new(here, metrics, handle.clone());
    threads::spawn(format!("sync-{family}"), move || worker.run(&inbox))?;
    Ok(handle)
}

/// What syncs need to know about the node. None of it changes afterwards.
pub struct Start {
    pub node_ip: IpAddr,
    pub backend: Box<dyn Backend>,
    pub flows: FlowFollower,
    pub node_port_addresses: NodePortAddresses,
    pub tracing: explain::Settings,
    pub pause: Pause,
    /// After a failure.
    pub sync_period: Duration,
    pub health: Arc<NodeHealth>,
    pub service_health: ServiceHealth,
    pub take_over: TakeOver,
}

/// What to do once our rules are in the kernel, and not before: until then the rules of other modes serve. Runs on a thread of its
/// own.
pub type TakeOver = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start").field("backend", &self.backend).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
