//! The desired state of the table, and what is known of its actual state.
//!
//! ```text
//!   changes ─▶ steps ──────────────────┬─▶ commit ─▶ settle       while the kernel's state is known
//!              read back ─▶ steps_from ┘      └────▶ the next sync reads back
//! ```
//!
//! No change is lost when a commit fails, since it is part of the desired state by then.
//!
//! At a start without a table, Services are loaded while they arrive: [`NftablesPlan::preload_from`] creates the table without base
//! chains, so that no packet enters it, and the first sync adds those.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use model::cluster::Changes;
use model::names::{Port, Protocol, ServicePortName};

use crate::flows::Destination;
use crate::nftables::claims::Contention;
use crate::nftables::desired::DesiredTable;
use crate::nftables::elements::{FrontendKey, SlotAssignment};
use crate::nftables::program::ProgramSettings;
use crate::nftables::sets::Set;
use crate::nftables::steps::{ActualState, ActualTable, Steps};

/// The plan for the table of one family.
#[derive(Debug)]
pub struct NftablesPlan {
    desired: DesiredTable,
    known: Known,
    /// The table has everything but its base chains, so no packet enters it.
    lacks_base_chains: bool,
    /// The node-port IPs have changed since the last steps.
    node_port_ips_changed: bool,
    /// A read-back since the last [`NftablesPlan::settle`] found drift.
    has_drifted: bool,
    /// Whether frontends have counted all packets since the first commit; `None` before it.
    counts_are_complete: Option<bool>,
    /// UDP frontends that have not: they were deleted, and count from zero when they are added again.
    recounted: HashSet<FrontendKey>,
    /// Changes of contended frontends that the caller has not taken yet.
    contentions: Vec<Contention>,
}

/// What is known of the kernel's table.
#[derive(Debug)]
enum Known {
    /// It holds the desired state.
    Settled,
    /// A foreign writer may have changed it. Before that it held this, or the desired state if that is unchanged.
    Unverified(Option<Box<DesiredTable>>),
    /// Nothing: no commit has succeeded, or the last one failed.
    Unknown,
}

impl NftablesPlan {
    pub fn new(settings: ProgramSettings) -> Self {
        Self {
            desired: DesiredTable::new(settings),
            known: Known::Unknown,
            lacks_base_chains: false,
            node_port_ips_changed: false,
            has_drifted: false,
            counts_are_complete: None,
            recounted: HashSet::new(),
            contentions: Vec::new(),
        }
    }

    /// The desired state with all changes so far.
    pub fn desired(&self) -> &DesiredTable {
        &self.desired
    }

    /// Replaces the node's addresses that serve node ports. Returns whether they changed, which is never so if all addresses
    /// serve node ports.
    pub fn set_node_port_ips(&mut self, node_port_ips: Vec<IpAddr>) -> bool {
        let before = matches!(self.known, Known::Unverified(None)).then(|| self.desired.clone());
        let is_change = self.desired.replace_node_port_ips(node_port_ips);
        if let Some(before) = before.filter(|_| is_change) {
            self.known = Known::Unverified(Some(before.into()));
        }
        self.node_port_ips_changed |= is_change;
        is_change
    }

    /// A foreign writer may have changed the table: the next sync reads it back.
    pub fn suspect_drift(&mut self) {
        if matches!(self.known, Known::Settled) {
            self.known = Known::Unverified(None);
        }
    }

    /// What the table held before a foreign writer may have changed it.
    pub fn unverified(&self) -> Option<&DesiredTable> {
        match &self.known {
            Known::Unverified(before) => Some(before.as_deref().unwrap_or(&self.desired)),
            Known::Settled | Known::Unknown => None,
        }
    }

    /// The steps that create a table without base chains. `None` if a table exists, which the first sync will bring to the
    /// desired state or replace.
    pub fn preload_from(&mut self, actual: ActualState) -> Option<Steps> {
        if !matches!(actual.table, ActualTable::Absent) {
            return None;
        }
        let mut steps = self.steps_from(actual);
        let chains = steps.table.as_mut().map(|table| &mut table.program.chains)?;
        chains.retain(|chain| chain.hook.is_none());
        self.lacks_base_chains = true;
        Some(steps)
    }

    /// The steps to these changes in a table that is being preloaded. `None` if the last commit failed.
    pub fn preload(&mut self, changes: Changes) -> Option<Steps> {
        self.steps_at(changes, None)
    }

    /// Makes the changes part of the desired state and returns the steps to it. `None` if the actual state is not known: the
    /// caller then reads the kernel back and calls [`NftablesPlan::steps_from`].
    pub fn steps(&mut self, changes: Changes) -> Option<Steps> {
        let mut steps = self.steps_at(changes, None)?;
        // If the commit fails, the next read-back finds a table that is not ours, since they are missing.
        if std::mem::take(&mut self.lacks_base_chains) {
            steps.is_full = true;
            let program = self.desired.program();
            steps.chains.extend(program.chains.into_iter().filter(|chain| chain.hook.is_some()));
        }
        Some(steps)
    }

    /// Like [`NftablesPlan::steps`], and replaces all addresses of the node if there are new ones. Only the ipvs mode depends on
    /// them.
    pub fn steps_at(&mut self, changes: Changes, node_ips: Option<BTreeSet<IpAddr>>) -> Option<Steps> {
        let Changes { routings, service_cidrs, .. } = changes;
        let is_change = !routings.is_empty() || service_cidrs.is_some() || node_ips.is_some();
        if matches!(self.known, Known::Unverified(None)) && is_change {
            self.known = Known::Unverified(Some(self.desired.clone().into()));
        }
        let new_cidrs = service_cidrs.is_some_and(|cidrs| self.desired.replace_service_cidrs(cidrs));
        if !matches!(self.known, Known::Settled) {
            self.contentions.extend(self.desired.accept(routings));
            node_ips.into_iter().for_each(|ips| self.desired.replace_node_ips(ips));
            return None;
        }
        let (mut steps, contentions) = self.desired.replace_at(routings, node_ips);
        self.contentions.extend(contentions);
        steps.service_cidrs = new_cidrs.then(|| self.desired.cidr_boundaries());
        let is_change = std::mem::take(&mut self.node_port_ips_changed);
        steps.node_port_ips = is_change.then(|| self.desired.node_port_ips().iter().copied().collect());
        // The actual state is unknown until the commit succeeds.
        self.known = Known::Unknown;
        self.note_recounted(&steps);
        Some(steps)
    }

    /// The steps from the actual to the desired state.
    pub fn steps_from(&mut self, mut actual: ActualState) -> Steps {
        self.lacks_base_chains = false;
        if let ActualTable::Ours(content) = &mut actual.table {
            content.elements.sort_unstable();
        }
        let mut steps = self.desired.steps_from(&actual);
        self.has_drifted |= match &mut self.known {
            Known::Unverified(None) => !steps.is_empty(),
            Known::Unverified(Some(before)) => !before.steps_from(&actual).is_empty(),
            Known::Settled | Known::Unknown => false,
        };
        steps.has_drifted = self.has_drifted;
        self.node_port_ips_changed = false;
        // A frontend that is added again counts from zero.
        if steps.add.iter().any(|element| matches!(element.set, Set::Frontends(_))) {
            self.counts_are_complete = self.counts_are_complete.and(Some(false));
        }
        self.note_recounted(&steps);
        steps
    }

    /// The kernel has committed the last steps.
    pub fn settle(&mut self) {
        self.known = Known::Settled;
        self.has_drifted = false;
        self.counts_are_complete.get_or_insert(true);
    }

    /// Whether the next sync needs no read-back.
    pub fn is_settled(&self) -> bool {
        matches!(self.known, Known::Settled)
    }

    /// The changes of contended frontends since the last call, including those of failed syncs.
    pub fn take_contentions(&mut self) -> Vec<Contention> {
        std::mem::take(&mut self.contentions)
    }

    /// Service ports with too many endpoints, and how many endpoints of each have no slot.
    pub fn left_out(&self) -> &BTreeMap<ServicePortName, usize> {
        self.desired.left_out()
    }

    /// The slots of the endpoints of a service port.
    pub fn slots(&self, name: &ServicePortName) -> SlotAssignment<'_> {
        self.desired.slots(name)
    }

    /// The frontend of a UDP destination, if it has counted every packet since the first commit.
    pub fn counted_from_start(&self, destination: Destination) -> Option<FrontendKey> {
        let (ip, port) = match destination {
            Destination::Address(at) => (Some(at.ip()), Port::from_api(at.port().into())?),
            Destination::NodePort(port) => (None, port),
        };
        let frontend = FrontendKey { ip, protocol: Protocol::Udp, port };
        let is_complete = self.counts_are_complete == Some(true) && !self.recounted.contains(&frontend);
        is_complete.then_some(frontend)
    }

    /// Notes the UDP frontends that the steps delete. There are few: a frontend is deleted with its Service, or with the last
    /// endpoint that its policy allows. This happens before the commit, since the kernel's answer may be lost.
    fn note_recounted(&mut self, steps: &Steps) {
        let family = self.desired.settings().family;
        let gone = steps.delete.iter().filter_map(|element| {
            let Set::Frontends(by) = element.set else { return None };
            FrontendKey::from_key(element.key.as_bytes(), by, family)
        });
        self.recounted.extend(gone.map(|(frontend, _)| frontend).filter(|it| it.protocol == Protocol::Udp));
    }
}

#[cfg(test)]
mod tests;
