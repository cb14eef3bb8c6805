//! What each frontend does, and for which service port: a form common to all modes, in which the actual state is compared
//! with the desired one.
//!
//! ```text
//!   desired elements, servers or rules ─▶ Served ─┐
//!                                                 ├─▶ changes, by service port
//!   actual elements, servers or rules ──▶ Served ─┘
//! ```
//!
//! The same code reads both sides, so that what a mode leaves out or rounds makes no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::hashing::ClientHash;
use model::names::{Port, Protocol, ServicePortName};

use crate::difference::Difference;
use crate::nftables::claims::Precedence;
use crate::nftables::elements::FrontendKey;

mod changes;
mod contests;
mod elements;
mod owners;
mod saved_rules;
mod servers;

pub use changes::{Fact, ServedChange};
pub use contests::Contest;
use owners::Owners;

/// The actual state compared with the desired one.
#[derive(Debug)]
pub struct KernelComparison {
    /// The number of desired objects.
    pub objects: usize,
    pub differences: Vec<Difference>,
    pub desired: Served,
    pub actual: Served,
}

/// What the kernel serves, or should serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    pub frontends: BTreeMap<FrontendKey, ServedFrontend>,
    /// Endpoints that can connect to themselves through a Service. The iptables mode has no elements for them.
    pub hairpins: BTreeSet<(Protocol, ServedEndpoint)>,
    /// For each endpoint list in the nftables mode: a frontend that uses it.
    pub lists: BTreeMap<u32, FrontendKey>,
    /// The service port of each chain of the iptables mode.
    pub chains: BTreeMap<String, ServicePortName>,
}

/// The frontends of one service port.
type Frontends<'a> = BTreeMap<FrontendKey, &'a ServedFrontend>;

/// An endpoint that connections go to.
pub type ServedEndpoint = (IpAddr, Port);

/// The endpoint in each slot of an endpoint list, sorted.
type ServedSlots = Arc<[(u32, ServedEndpoint)]>;

/// What one frontend does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedFrontend {
    /// The service ports that claim the frontend; the first one gets it. Empty if the kernel has no names.
    pub claims: Vec<ServicePortName>,
    /// Why the first one gets it, if others claim it.
    pub precedence: Option<Precedence>,
    /// Whether connections are forwarded to the endpoints.
    pub forwards: bool,
    /// The endpoints of all connections, or of those from outside if there is `inside`.
    pub endpoints: BTreeSet<ServedEndpoint>,
    /// How many of 1,000 connections each of `endpoints` gets. Empty if all get the same share.
    pub shares: BTreeMap<ServedEndpoint, u32>,
    /// How clients are hashed to endpoints.
    pub hash: Option<ServedHash>,
    /// The endpoints of connections from pods and from this node, if endpoints see the addresses of outside clients. Empty in
    /// the ipvs mode, in which they are the same.
    pub inside: Option<BTreeSet<ServedEndpoint>>,
    /// Why connections are refused that go to no endpoint.
    pub refusal: Option<RefusalReason>,
    /// Seconds of session affinity.
    pub affinity: Option<u32>,
    /// The source ranges that may use it; `None` if all sources may.
    pub sources: Option<BTreeSet<String>>,
}

/// How clients are hashed to endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedHash {
    pub of: ClientHash,
    /// The endpoint in each slot. Empty in the ipvs mode.
    pub slots: ServedSlots,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalReason {
    NoEndpoints,
    NoLocalEndpoints,
}

impl KernelComparison {
    /// Each difference with the service port that the object belongs to.
    pub fn with_owners(&self) -> impl Iterator<Item = (&Difference, Option<ServicePortName>)> {
        let owners = Owners::new(&self.desired, &self.actual);
        self.differences.iter().map(move |difference| (difference, owners.of(&difference.object)))
    }
}

impl Served {
    pub fn owner(&self, frontend: &FrontendKey) -> Option<&ServicePortName> {
        self.frontends.get(frontend)?.claims.first()
    }

    /// Every service port that claims a frontend, or has chains.
    fn names(&self) -> BTreeSet<&ServicePortName> {
        let claims = self.frontends.values().flat_map(|service| &service.claims);
        claims.chain(self.chains.values()).collect()
    }

    /// The frontends that each service port gets; under `None` those of an unknown service port.
    fn by_owner(&self) -> BTreeMap<Option<&ServicePortName>, Frontends<'_>> {
        let mut owners: BTreeMap<_, Frontends<'_>> = BTreeMap::new();
        for (frontend, service) in &self.frontends {
            owners.entry(service.claims.first()).or_default().insert(*frontend, service);
        }
        owners
    }
}

/// The shares of 1,000 connections, given numbers in proportion to them. Empty if they differ by no more than rounding.
fn shares(parts: &BTreeMap<ServedEndpoint, f64>) -> BTreeMap<ServedEndpoint, u32> {
    let (sum, mean) = (parts.values().sum::<f64>(), parts.values().sum::<f64>() / parts.len() as f64);
    if parts.values().all(|part| (part / mean - 1.0).abs() < 0.001) {
        return BTreeMap::new();
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1,000")]
    let of_thousand = |part: f64| (1000.0 * part / sum).round() as u32;
    parts.iter().map(|(endpoint, part)| (*endpoint, of_thousand(*part))).collect()
}

impl ServedFrontend {
    /// How many of 1,000 connections an endpoint gets.
    fn share(&self, endpoint: &ServedEndpoint) -> f64 {
        let equal = || (1000.0 / self.endpoints.len() as f64).round();
        self.shares.get(endpoint).map_or_else(equal, |share| f64::from(*share))
    }

    /// The endpoints of connections from anywhere.
    pub fn all_endpoints(&self) -> impl Iterator<Item = ServedEndpoint> {
        self.endpoints.iter().chain(self.inside.iter().flatten()).copied()
    }
}

#[cfg(test)]
mod tests;
