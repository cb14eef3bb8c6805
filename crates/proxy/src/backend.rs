//! The modes: what brings one family's kernel to what the model asks for. All that a mode has to say, in logs and in
//! metrics, is said here; the line that calls it does not know which one it is.

mod iptables;
mod nftables;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use kernel::drift::Drift;
use kernel::inspection::DesiredState;
use kernel::nftables::Owners;
use model::names::ServicePortName;
use model::routing::Routing;
use plan::flows::{Contended, Destination};
use plan::nftables::elements::Seats;

pub use iptables::Iptables;
pub use nftables::Nftables;

/// One mode in one family.
pub trait Backend: fmt::Debug + Send {
    /// One pass. What it was told of it remembers, also if it fails.
    fn sync(&mut self, change: Change) -> anyhow::Result<Pass>;

    /// The kernel may hold something else than we think: the next pass compares, and writes what differs.
    fn distrust(&mut self);

    /// How to hear of strangers that change what we wrote. Asked for before the first pass, and after each one for as
    /// long as there is no need.
    fn watch(&mut self) -> Option<Watch>;

    /// Whose new connections the kernel counts in this mode.
    fn owners(&self) -> Owners {
        Owners::default()
    }

    /// Where the endpoints of a service port sit, in the mode that has slots for them.
    fn seats(&self, name: &ServicePortName) -> Seats<'_> {
        let _ = name;
        Seats::default()
    }

    /// Who serves a frontend that several service ports claim.
    fn contended(&self) -> Contended;

    /// Whether no packet for that UDP destination has met our rules since our first pass, for all the kernel has counted.
    fn is_unused(&mut self, destination: Destination) -> bool {
        let _ = destination;
        false
    }

    /// Logs what was held back and is due by now; returns when to call again, if there is a need.
    fn report(&mut self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }

    /// What the kernel should hold after all that was told so far, for others to compare with what it does.
    fn desired(&self) -> DesiredState;

    /// As logs call it.
    fn mode(&self) -> &'static str;

    /// As logs call it where a sentence begins with it.
    fn title(&self) -> &'static str;
}

/// What differs since the last pass.
#[derive(Debug, Default)]
pub struct Change {
    /// `None` for a service port that is gone.
    pub routings: Vec<(ServicePortName, Option<Arc<Routing>>)>,
    pub service_cidrs: Option<Vec<IpNet>>,
    /// Endpoints over all service ports, usable or not.
    pub endpoints: usize,
    /// The node's addresses that serve node ports, if they may be others.
    pub node_port_ips: Option<Vec<IpAddr>>,
}

/// What a pass was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// It looked at everything rather than at what changed.
    pub full: bool,
    /// It found that the kernel did not hold what it should have held before.
    pub mended: bool,
}

/// Calls back whenever a stranger interferes, for as long as it is answered true. Runs on a thread of its own.
pub type Watch = Box<dyn FnOnce(&mut dyn FnMut(Drift) -> bool) + Send>;
