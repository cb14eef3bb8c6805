//! The desired state of the ipvs mode, and what is known of its actual state.
//!
//! ```text
//!   changes ─▶ steps ──────────────────┬─▶ steps before, table, steps after ─▶ settle ─▶ due ─▶ settle_termination
//!              read back ─▶ steps_from ┘                └────▶ the next sync reads back
//! ```
//!
//! The table decides which service port gets a frontend, and which addresses are bound; virtual servers follow from it. So the
//! cost of a sync is that of the changed service ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use model::cluster::Changes;

use crate::ipvs::changes::{IpvsSteps, KnownVirtual, ServerChanges};
use crate::ipvs::desired::{DesiredServers, DesiredVirtual, ServerSettings, addresses, usable_node_ips};
use crate::ipvs::servers::{ActualServers, ServerStep, VirtualAddress};
use crate::ipvs::termination::{RealCounts, Termination};
use crate::nftables::claims::Contention;
use crate::nftables::desired::{DesiredTable, RoutingChange};
use crate::nftables::elements::{FrontendKey, frontends};
use crate::nftables::plan::NftablesPlan;
use crate::nftables::program::ProgramSettings;
use crate::nftables::sets::{Balancer, Element, Set, address};
use crate::nftables::steps::{ActualState, Steps};

/// The plan for one family.
#[derive(Debug)]
pub struct IpvsPlan {
    table: NftablesPlan,
    settings: ServerSettings,
    termination: Termination,
    /// The node's addresses from the next sync on.
    moved: Option<NodeAddresses>,
    /// A read-back since the last [`IpvsPlan::settle`] found drift of servers or bound addresses.
    has_drifted: bool,
}

/// The addresses of the node that virtual servers depend on: without loopback, IPv6 link-local and bound addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeAddresses {
    all: BTreeSet<IpAddr>,
    /// Those that serve node ports.
    node_port: BTreeSet<IpAddr>,
}

/// The virtual servers at some addresses.
type Rendered = BTreeMap<VirtualAddress, DesiredVirtual>;

impl IpvsPlan {
    pub fn new(program: ProgramSettings, settings: ServerSettings) -> Self {
        let program = ProgramSettings { balancer: Balancer::Ipvs, ..program };
        Self {
            table: NftablesPlan::new(program),
            settings,
            termination: Termination::default(),
            moved: None,
            has_drifted: false,
        }
    }

    /// The desired table with all changes so far.
    pub fn desired(&self) -> &DesiredTable {
        self.table.desired()
    }

    /// The desired virtual servers with all changes so far.
    pub fn servers(&self) -> DesiredServers<'_> {
        DesiredServers { table: self.table.desired(), settings: &self.settings }
    }

    /// The part of the plan that concerns the table.
    pub fn table(&self) -> &NftablesPlan {
        &self.table
    }

    /// Replaces the node's addresses, which do not include the bound ones: all of them, and those that serve node ports. Returns
    /// whether they changed; the next sync then adapts the virtual servers of node ports and the bound addresses.
    pub fn set_node_addresses(&mut self, all: &[IpAddr], node_port: &[IpAddr]) -> bool {
        let new = NodeAddresses { all: self.usable(all), node_port: self.usable(node_port) };
        let is_change = *self.moved.get_or_insert_with(|| current(self.table.desired())) != new;
        self.moved = Some(new).filter(|new| *new != current(self.table.desired()));
        is_change
    }

    /// A foreign writer may have changed the table, the servers or the addresses: the next sync reads them back.
    pub fn suspect_drift(&mut self) {
        self.table.suspect_drift();
    }

    /// Makes the changes part of the desired state and returns the steps to it. `None` if the actual state is not known: the
    /// caller then reads the kernel back and calls [`IpvsPlan::steps_from`].
    pub fn steps(&mut self, changes: Changes) -> Option<IpvsSteps> {
        let moved = self.moved.take();
        let affected = self.affected(&changes.routings, moved.as_ref());
        let before = self.rendered(&affected);
        if let Some(moved) = &moved {
            self.table.set_node_port_ips(moved.node_port.iter().copied().collect());
        }
        let table = self.table.steps_at(changes, moved.map(|moved| moved.all))?;
        let after = self.rendered(&affected);
        let mut steps = ServerChanges::default();
        for at in affected {
            let (before, after) = (before.get(&at), after.get(&at));
            if before != after {
                let known = before.map(|before| committed(before, &at, &self.termination));
                steps.change(at, known.as_ref(), after, &mut self.termination);
            }
        }
        steps.unbind(bound(&table.delete));
        steps.bind(bound(&table.add));
        Some(steps.around(table))
    }

    /// The steps from the actual to the desired state.
    pub fn steps_from(&mut self, actual: &ActualServers, table: ActualState) -> IpvsSteps {
        if let Some(before) = self.table.unverified() {
            let before = DesiredServers { table: before, settings: &self.settings };
            self.has_drifted |= !changes_from(actual, &before, &mut self.termination.clone()).is_empty();
        }
        let mut table: Steps = self.table.steps_from(table);
        table.has_drifted |= self.has_drifted;
        let servers = DesiredServers { table: self.table.desired(), settings: &self.settings };
        changes_from(actual, &servers, &mut self.termination).around(table)
    }

    /// The kernel has all of the last steps.
    pub fn settle(&mut self) {
        self.table.settle();
        self.has_drifted = false;
    }

    /// Whether the next sync needs no read-back.
    pub fn is_settled(&self) -> bool {
        self.table.is_settled()
    }

    /// The changes of contended frontends since the last call, including those of failed syncs.
    pub fn take_contentions(&mut self) -> Vec<Contention> {
        self.table.take_contentions()
    }

    /// The virtual servers whose connections have to be read now, since they have real servers that only end their connections.
    /// None while the kernel's state is not known.
    pub fn due(&self, now: Instant) -> Vec<VirtualAddress> {
        if self.is_settled() { self.termination.due(now) } else { Vec::new() }
    }

    /// When [`IpvsPlan::due`] returns any; `now` if it already does.
    pub fn next_check(&self, now: Instant) -> Option<Instant> {
        self.termination.next_check(now).filter(|_| self.is_settled())
    }

    /// The steps to delete real servers whose connections have ended. If they fail, the caller calls
    /// [`IpvsPlan::suspect_drift`].
    pub fn settle_termination(&mut self, now: Instant, found: &RealCounts) -> Vec<ServerStep> {
        self.termination.settle(now, found)
    }

    /// Every address at which the virtual server may change.
    fn affected(&self, changes: &[RoutingChange], moved: Option<&NodeAddresses>) -> BTreeSet<VirtualAddress> {
        let desired = self.table.desired();
        let routings = changes.iter().flat_map(|(name, new)| {
            let old = desired.unit(name).map(|unit| &unit.routing);
            old.into_iter().chain(new)
        });
        let changed: BTreeSet<FrontendKey> = routings.flat_map(|routing| frontends(routing)).collect();
        let now: BTreeSet<IpAddr> = desired.node_port_ips().iter().copied().collect();
        let then = moved.map_or(&now, |moved| &moved.node_port);
        let either: Vec<IpAddr> = now.union(then).copied().collect();
        let mut affected: BTreeSet<_> = changed.iter().flat_map(|it| addresses(it, &either)).collect();
        // All node ports change where the node gains or loses an address, which happens rarely.
        let one: Vec<IpAddr> = now.symmetric_difference(then).copied().collect();
        if !one.is_empty() {
            let node_ports = desired.frontends().filter(|frontend| frontend.ip.is_none());
            affected.extend(node_ports.flat_map(|frontend| addresses(frontend, &one)));
        }
        affected
    }

    fn usable(&self, ips: &[IpAddr]) -> BTreeSet<IpAddr> {
        usable_node_ips(ips, self.table.desired().settings().family).collect()
    }

    fn rendered(&self, at: &BTreeSet<VirtualAddress>) -> Rendered {
        at.iter().filter_map(|at| Some((*at, self.servers().at(at)?))).collect()
    }
}

/// What a sync has committed for an address.
fn committed<'a>(
    before: &'a DesiredVirtual,
    at: &VirtualAddress,
    termination: &Termination,
) -> KnownVirtual<'a> {
    let terminating = termination.of(at).map(|real| (real, 0));
    let weights =
        before.real_servers.iter().map(|(real, weight)| (*real, *weight)).chain(terminating).collect();
    KnownVirtual { server: &before.server, weights }
}

fn changes_from(
    actual: &ActualServers,
    desired: &DesiredServers<'_>,
    termination: &mut Termination,
) -> ServerChanges {
    let mut steps = ServerChanges::default();
    let servers = desired.all();
    let listed = termination.addresses().copied();
    let at: BTreeSet<VirtualAddress> =
        servers.keys().chain(actual.virtual_servers.keys()).copied().chain(listed).collect();
    let excluded = &desired.settings.exclude_cidrs;
    for at in at {
        let server = servers.get(&at);
        if server.is_some() || !excluded.iter().any(|cidr| cidr.contains(&at.ip)) {
            let known = actual.virtual_servers.get(&at).map(KnownVirtual::from);
            steps.change(at, known.as_ref(), server, termination);
        }
    }
    let bound: BTreeSet<IpAddr> = desired.table.bound_ips().collect();
    steps.unbind(actual.bound.difference(&bound).copied());
    steps.bind(bound.difference(&actual.bound).copied());
    steps
}

/// The bound addresses among these elements.
fn bound(elements: &[Element]) -> impl Iterator<Item = IpAddr> {
    let bound = elements.iter().filter(|element| element.set == Set::BoundIps);
    bound.filter_map(|element| address(element.key.as_bytes()))
}

fn current(table: &DesiredTable) -> NodeAddresses {
    NodeAddresses {
        all: table.node_ips().clone(),
        node_port: table.node_port_ips().iter().copied().collect(),
    }
}

#[cfg(test)]
mod tests;
