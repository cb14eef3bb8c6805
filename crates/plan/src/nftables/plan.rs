//! The desired state of the table, and what is known of the kernel's.
//!
//! ```text
//!   changes ─▶ steps ──────────────────┬─▶ commit ─▶ settle       while the kernel's state is known
//!              read back ─▶ steps_from ┘      └────▶ the next sync reads back
//! ```
//!
//! Nothing is lost when a commit fails: what was asked for is part of the desired state already.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use model::cluster::Changes;
use model::names::{Port, Protocol, ServicePortName};

use crate::flows::Destination;
use crate::nftables::claims::Contention;
use crate::nftables::desired::DesiredTable;
use crate::nftables::elements::{Frontend, Seats};
use crate::nftables::program::Settings;
use crate::nftables::sets::Set;
use crate::nftables::steps::{Held, HeldTable, Steps};

/// The plan for the table of one family.
#[derive(Debug)]
pub struct Plan {
    desired: DesiredTable,
    actual: Actual,
    /// The node-port IPs are not those of the last steps.
    has_moved: bool,
    /// A read-back since the last [`Plan::settle`] found drift.
    has_drifted: bool,
    /// Whether frontends have counted all packets since the first commit, of which there may not have been one.
    counts_are_complete: Option<bool>,
    /// UDP frontends of which that is not so: they were deleted once, and count from zero when they come back.
    recounted: HashSet<Frontend>,
    /// What became of contended frontends since that was last taken.
    contentions: Vec<Contention>,
}

/// What is known of the kernel's table.
#[derive(Debug)]
enum Actual {
    /// It holds the desired state.
    Settled,
    /// A foreign writer may have changed it. Before that it held this, or the desired state if that is unchanged.
    Doubtful(Option<Box<DesiredTable>>),
    /// Nothing: no commit has succeeded, or the last one failed.
    Unknown,
}

impl Plan {
    pub fn new(settings: Settings) -> Self {
        Self {
            desired: DesiredTable::new(settings),
            actual: Actual::Unknown,
            has_moved: false,
            has_drifted: false,
            counts_are_complete: None,
            recounted: HashSet::new(),
            contentions: Vec::new(),
        }
    }

    /// What the table should hold after everything that was asked for so far.
    pub fn desired(&self) -> &DesiredTable {
        &self.desired
    }

    /// The node's addresses at which node ports are asked for, unless all of them serve those. Returns whether that
    /// changes anything.
    pub fn move_to(&mut self, node_port_ips: Vec<IpAddr>) -> bool {
        let before = matches!(self.actual, Actual::Doubtful(None)).then(|| self.desired.clone());
        let has_moved = self.desired.replace_node_port_ips(node_port_ips);
        if let Some(before) = before.filter(|_| has_moved) {
            self.actual = Actual::Doubtful(Some(before.into()));
        }
        self.has_moved |= has_moved;
        has_moved
    }

    /// A foreign writer may have changed the table: the next sync reads it back.
    pub fn distrust(&mut self) {
        if matches!(self.actual, Actual::Settled) {
            self.actual = Actual::Doubtful(None);
        }
    }

    /// Makes the changes part of the desired state and returns the steps that lead there; none if it is not known from
    /// where: read the kernel back and ask for [`Plan::steps_from`].
    pub fn steps(&mut self, changes: Changes) -> Option<Steps> {
        let Changes { routings, service_cidrs, .. } = changes;
        if matches!(self.actual, Actual::Doubtful(None)) && (!routings.is_empty() || service_cidrs.is_some())
        {
            self.actual = Actual::Doubtful(Some(self.desired.clone().into()));
        }
        let new_cidrs = service_cidrs.is_some_and(|cidrs| self.desired.replace_service_cidrs(cidrs));
        if !matches!(self.actual, Actual::Settled) {
            self.contentions.extend(self.desired.accept(routings));
            return None;
        }
        let (mut steps, contentions) = self.desired.replace(routings);
        self.contentions.extend(contentions);
        steps.service_cidrs = new_cidrs.then(|| self.desired.cidr_boundaries());
        let has_moved = std::mem::take(&mut self.has_moved);
        steps.node_port_ips = has_moved.then(|| self.desired.node_port_ips().iter().copied().collect());
        // From here on what is known of the kernel depends on how the commit goes.
        self.actual = Actual::Unknown;
        self.remember_recounted(&steps);
        Some(steps)
    }

    /// The steps that lead from what the kernel holds to the desired state.
    pub fn steps_from(&mut self, mut held: Held) -> Steps {
        if let HeldTable::Ours(content) = &mut held.table {
            content.elements.sort_unstable();
        }
        let mut steps = self.desired.steps_from(&held);
        self.has_drifted |= match &mut self.actual {
            Actual::Doubtful(None) => !steps.is_empty(),
            Actual::Doubtful(Some(before)) => !before.steps_from(&held).is_empty(),
            Actual::Settled | Actual::Unknown => false,
        };
        steps.has_drifted = self.has_drifted;
        self.has_moved = false;
        // A frontend that has to be added again counts from zero.
        if steps.add.iter().any(|element| matches!(element.set, Set::Frontends(_))) {
            self.counts_are_complete = self.counts_are_complete.and(Some(false));
        }
        self.remember_recounted(&steps);
        steps
    }

    /// The kernel has committed the last steps.
    pub fn settle(&mut self) {
        self.actual = Actual::Settled;
        self.has_drifted = false;
        self.counts_are_complete.get_or_insert(true);
    }

    /// Whether the next sync writes what changed, rather than what a read-back finds.
    pub fn is_settled(&self) -> bool {
        matches!(self.actual, Actual::Settled)
    }

    /// What became of contended frontends since the last call, also in syncs that failed.
    pub fn take_contentions(&mut self) -> Vec<Contention> {
        std::mem::take(&mut self.contentions)
    }

    /// Service ports with more endpoints than there are slots for, and how many of each have none.
    pub fn left_out(&self) -> &BTreeMap<ServicePortName, usize> {
        self.desired.left_out()
    }

    /// Where the endpoints of a service port lie.
    pub fn seats(&self, name: &ServicePortName) -> Seats<'_> {
        self.desired.seats(name)
    }

    /// The frontend of that UDP destination, if it has counted every packet since the first commit.
    pub fn counted_from_start(&self, destination: Destination) -> Option<Frontend> {
        let (ip, port) = match destination {
            Destination::Address(at) => (Some(at.ip()), Port::from_api(at.port().into())?),
            Destination::NodePort(port) => (None, port),
        };
        let frontend = Frontend { ip, protocol: Protocol::Udp, port };
        let is_complete = self.counts_are_complete == Some(true) && !self.recounted.contains(&frontend);
        is_complete.then_some(frontend)
    }

    /// There are few: a frontend goes with the last endpoint that its policy allows, or with its service. Remembered
    /// before the commit: its answer may get lost.
    fn remember_recounted(&mut self, steps: &Steps) {
        let family = self.desired.settings().family;
        let gone = steps.delete.iter().filter_map(|element| {
            let Set::Frontends(bank) = element.set else { return None };
            Frontend::from_key(element.key.as_bytes(), bank, family)
        });
        self.recounted.extend(gone.map(|(frontend, _)| frontend).filter(|it| it.protocol == Protocol::Udp));
    }
}

#[cfg(test)]
mod tests;
