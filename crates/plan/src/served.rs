//! What is served, in nouns: what each frontend does, and for which service port. The common language in which the
//! kernel is compared with what it should hold, in every mode.
//!
//! ```text
//!   desired elements or rules ─▶ Served ─┐
//!                                        ├─▶ changes, by service port
//!   actual elements or rules ──▶ Served ─┘
//! ```
//!
//! Both sides are read by the same code, so that what one mode leaves out or rounds is no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::names::{Port, Protocol, ServicePortName};

use crate::difference::Difference;
use crate::nftables::claims::Precedence;
use crate::nftables::elements::FrontendKey;

mod changes;
mod contests;
mod elements;
mod owners;
mod saved_rules;

pub use changes::{Fact, ServedChange};
pub use contests::Contest;
use owners::Owners;

/// The kernel compared with what it should hold.
#[derive(Debug)]
pub struct KernelComparison {
    /// How many objects there should be.
    pub objects: usize,
    pub differences: Vec<Difference>,
    pub desired: Served,
    pub actual: Served,
}

/// What the kernel serves, or should serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    pub frontends: BTreeMap<FrontendKey, ServedFrontend>,
    /// Endpoints that may connect to themselves by way of a service. Only the nftables mode says it of each.
    pub hairpins: BTreeSet<(Protocol, ServedEndpoint)>,
    /// By the id under which the nftables mode keeps the clients of a service port: one of its frontends.
    pub affinity_ids: BTreeMap<u32, FrontendKey>,
    /// By the name of a chain of iptables.
    pub chains: BTreeMap<String, ServicePortName>,
}

/// Those of one service port.
type Frontends<'a> = BTreeMap<FrontendKey, &'a ServedFrontend>;

/// An endpoint that connections go to.
pub type ServedEndpoint = (IpAddr, Port);

/// What one frontend does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedFrontend {
    /// The service ports that claim the frontend; the first one has it. Empty where the kernel does not say.
    pub claims: Vec<ServicePortName>,
    /// Why the first one has it, if others claim it.
    pub precedence: Option<Precedence>,
    /// Whether connections are forwarded to the endpoints.
    pub forwards: bool,
    /// Where connections go; those from outside, if `inside` says where the others go.
    pub endpoints: BTreeSet<ServedEndpoint>,
    /// Where connections of pods and of this node go, if endpoints see the addresses of outside clients.
    pub inside: Option<BTreeSet<ServedEndpoint>>,
    /// What happens to connections that go to no endpoint.
    pub refusal: Option<RefusalReason>,
    /// Seconds of session affinity.
    pub affinity: Option<u32>,
    /// The source ranges that may use it, if not all may.
    pub sources: Option<BTreeSet<String>>,
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

    /// Every service port that has or claims a frontend, or has chains.
    fn names(&self) -> BTreeSet<&ServicePortName> {
        let claims = self.frontends.values().flat_map(|service| &service.claims);
        claims.chain(self.chains.values()).collect()
    }

    /// The frontends that each service port has, and those of which it is not known.
    fn by_owner(&self) -> BTreeMap<Option<&ServicePortName>, Frontends<'_>> {
        let mut owners: BTreeMap<_, Frontends<'_>> = BTreeMap::new();
        for (frontend, service) in &self.frontends {
            owners.entry(service.claims.first()).or_default().insert(*frontend, service);
        }
        owners
    }
}

impl ServedFrontend {
    /// Every endpoint that connections from anywhere go to.
    pub fn all_endpoints(&self) -> impl Iterator<Item = ServedEndpoint> {
        self.endpoints.iter().chain(self.inside.iter().flatten()).copied()
    }
}

#[cfg(test)]
mod tests;
