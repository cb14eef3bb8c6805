//! The modes: each brings the kernel to the desired state of one family. What depends on the mode is logged and counted here; the
//! family worker does not know which mode it runs.

mod iptables;
mod ipvs;
mod nftables;

use std::fmt;
use std::net::IpAddr;
use std::time::Instant;

use kernel::drift::Drift;
use kernel::inspection::DesiredState;
use kernel::nftables::CounterOwners;
use kernel::outcome::Outcome;
use model::cluster::Changes;
use model::names::ServicePortName;
use plan::flows::{Contended, Destination};
use plan::nftables::elements::SlotAssignment;

use crate::rate_limit::Retry;

pub use iptables::Iptables;
pub use ipvs::Ipvs;
pub use nftables::Nftables;

/// One mode in one family.
pub trait Backend: fmt::Debug + Send {
    /// Attempts once to bring the kernel to the desired state: plans, commits, settles. The changes are part of the desired
    /// state from then on, even if the attempt fails.
    fn sync(&mut self, changes: Changes) -> Result<Outcome, SyncError>;

    /// Loads changes before the first lists have ended, where packets do not meet them before the first sync. `take` returns
    /// them. Returns whether it may be called again.
    fn preload(&mut self, take: &mut dyn FnMut() -> Changes) -> bool {
        let _ = take;
        false
    }

    /// A sync has failed, and is not attempted again immediately.
    fn sync_failed(&mut self) {}

    /// Sets the node's addresses of the family, and those that serve node ports. Returns whether the rules depend on the change,
    /// so that a sync is needed.
    fn set_node_addresses(&mut self, all: &[IpAddr], node_port_ips: &[IpAddr]) -> bool;

    /// A foreign writer may have changed the rules: the next sync compares them with the desired state, and writes what
    /// differs.
    fn suspect_drift(&mut self);

    /// Listens for foreign writers that change our rules; `None` while the kernel lets no other process change them. Called before
    /// the first sync, and after each sync until it returns a listener.
    fn drift_listener(&mut self) -> Option<DriftListener>;

    /// The service ports and endpoints whose new connections the kernel counts in this mode.
    fn counter_owners(&self) -> CounterOwners {
        CounterOwners::default()
    }

    /// The slots of the endpoints of a service port, in the mode that has slots.
    fn slots(&self, name: &ServicePortName) -> SlotAssignment<'_> {
        let _ = name;
        SlotAssignment::default()
    }

    /// Which service port serves a frontend that several claim.
    fn contended(&self) -> Contended;

    /// Whether our rules have matched no packet for this UDP destination since our first sync, as far as the kernel counts.
    fn is_unused(&mut self, destination: Destination) -> bool {
        let _ = destination;
        false
    }

    /// Does what is due besides syncs, such as logging what was held back.
    fn on_timer(&mut self, now: Instant) -> AfterTimer {
        let _ = now;
        AfterTimer::Nothing
    }

    /// The desired state after all changes so far, to be compared with the actual one.
    fn desired(&self) -> DesiredState;

    /// The name in logs.
    fn mode(&self) -> &'static str;

    /// The name at the beginning of a log message.
    fn title(&self) -> &'static str;
}

/// What follows from [`Backend::on_timer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterTimer {
    Nothing,
    /// Something else will be due then.
    Again(Instant),
    /// The kernel is not in the assumed state.
    Sync,
}

/// Why an attempt failed, and when to retry.
#[derive(Debug)]
pub struct SyncError {
    pub retry: Retry,
    pub cause: anyhow::Error,
}

impl SyncError {
    fn new(retry: Retry, cause: impl Into<anyhow::Error>) -> Self {
        Self { retry, cause: cause.into() }
    }
}

/// Calls its argument whenever a foreign writer changes our rules, until that returns false. Runs on a thread of its own.
pub type DriftListener = Box<dyn FnOnce(&mut dyn FnMut(Drift) -> bool) + Send>;
