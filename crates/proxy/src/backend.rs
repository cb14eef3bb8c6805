//! The modes: what brings one family's kernel to what the model asks for. All that a mode logs and counts is done here; the
//! family worker does not know which one it is.

mod iptables;
mod nftables;

use std::fmt;
use std::net::IpAddr;
use std::time::Instant;

use kernel::drift::Drift;
use kernel::inspection::DesiredState;
use kernel::nftables::Owners;
use kernel::outcome::Outcome;
use model::cluster::Changes;
use model::names::ServicePortName;
use plan::flows::{Contended, Destination};
use plan::nftables::elements::Seats;

use crate::pace::Retry;

pub use iptables::Iptables;
pub use nftables::Nftables;

/// One mode in one family.
pub trait Backend: fmt::Debug + Send {
    /// One attempt to bring the kernel to the desired state: plans, commits, settles. The changes are part of the desired
    /// state from then on, also if it fails.
    fn sync(&mut self, changes: Changes) -> Result<Outcome, SyncError>;

    /// A sync has failed, and is not attempted again at once.
    fn failed(&mut self) {}

    /// The node's addresses that should serve node ports, for the next sync; not called where all do.
    fn move_to(&mut self, node_port_ips: Vec<IpAddr>);

    /// A foreign writer may have changed the rules: the next sync compares, and writes what differs.
    fn distrust(&mut self);

    /// How to be notified of foreign writers that change our rules. Asked for before the first sync, and after each one
    /// for as long as there is no need.
    fn watch(&mut self) -> Option<Watch>;

    /// Whose new connections the kernel counts in this mode.
    fn owners(&self) -> Owners {
        Owners::default()
    }

    /// Where the endpoints of a service port lie, in the mode that has slots for them.
    fn seats(&self, name: &ServicePortName) -> Seats<'_> {
        let _ = name;
        Seats::default()
    }

    /// Which service port serves a frontend that several claim.
    fn contended(&self) -> Contended;

    /// Whether no packet for that UDP destination has met our rules since our first sync, as far as the kernel has counted.
    fn is_unused(&mut self, destination: Destination) -> bool {
        let _ = destination;
        false
    }

    /// Logs what was held back and is due by now; returns when to call again, if there is a need.
    fn report(&mut self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }

    /// The desired state after all changes so far, to be compared with the kernel's.
    fn desired(&self) -> DesiredState;

    /// As logs call it.
    fn mode(&self) -> &'static str;

    /// As logs call it where a sentence begins with it.
    fn title(&self) -> &'static str;
}

/// Why an attempt failed, and what to do next.
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

/// Calls back whenever a foreign writer interferes, for as long as that returns true. Runs on a thread of its own.
pub type Watch = Box<dyn FnOnce(&mut dyn FnMut(Drift) -> bool) + Send>;
