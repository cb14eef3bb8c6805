//! The steps of one sync, and their order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::names::Protocol;

use crate::ipvs::desired::DesiredVirtual;
use crate::ipvs::servers::{ActualVirtual, RealServer, ServerStep, VirtualAddress, VirtualServer};
use crate::ipvs::termination::Termination;
use crate::nftables::steps::Steps;

/// The changes of one sync, in the order of the fields. No virtual server loses its last real server before it has the next one.
/// Nothing is reachable before it has its rules, so what must no longer be reached goes before the table, and what becomes reachable
/// comes after it. It is the reverse if the table replaces one of the nftables mode: its translation serves until then.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IpvsSteps {
    pub before: Vec<ServerStep>,
    /// Rules and elements, in one transaction.
    pub table: Steps,
    pub after: Vec<ServerStep>,
}

impl IpvsSteps {
    /// Whether the actual state is the desired one.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.table.is_empty() && self.after.is_empty()
    }
}

/// A virtual server in the kernel, with the weights of its real servers.
#[derive(Debug)]
pub(super) struct KnownVirtual<'a> {
    pub server: &'a VirtualServer,
    pub weights: BTreeMap<RealServer, u32>,
}

impl<'a> From<&'a ActualVirtual> for KnownVirtual<'a> {
    fn from(actual: &'a ActualVirtual) -> Self {
        let ActualVirtual { server, real_servers } = actual;
        Self { server, weights: real_servers.iter().map(|(real, found)| (*real, found.weight)).collect() }
    }
}

/// Collects steps and puts them in order.
#[derive(Debug, Default)]
pub(super) struct ServerChanges {
    unbind: Vec<ServerStep>,
    delete: Vec<ServerStep>,
    virtual_servers: Vec<ServerStep>,
    /// Real servers that take connections.
    join: Vec<ServerStep>,
    /// Real servers that no longer do.
    leave: Vec<ServerStep>,
    bind: Vec<ServerStep>,
}

impl ServerChanges {
    pub fn bind(&mut self, ips: impl IntoIterator<Item = IpAddr>) {
        self.bind.extend(ips.into_iter().map(ServerStep::Bind));
    }

    pub fn unbind(&mut self, ips: impl IntoIterator<Item = IpAddr>) {
        self.unbind.extend(ips.into_iter().map(ServerStep::Unbind));
    }

    /// Adds the steps for one address. Real servers that have to end their connections first are noted in `termination`.
    pub fn change(
        &mut self,
        at: VirtualAddress,
        known: Option<&KnownVirtual<'_>>,
        desired: Option<&DesiredVirtual>,
        termination: &mut Termination,
    ) {
        let mut terminating = BTreeSet::new();
        match (known, desired) {
            (None, None) => {}
            (Some(_), None) => self.delete.push(ServerStep::DeleteVirtual(at)),
            (None, Some(desired)) => {
                self.virtual_servers.push(ServerStep::AddVirtual(at, desired.server.clone()));
                let real = desired.real_servers.iter();
                self.join.extend(real.map(|(real, weight)| ServerStep::AddReal(at, *real, *weight)));
            }
            (Some(known), Some(desired)) => {
                if *known.server != desired.server {
                    self.virtual_servers.push(ServerStep::SetVirtual(at, desired.server.clone()));
                }
                for (real, weight) in &desired.real_servers {
                    self.join.extend(match known.weights.get(real) {
                        None => Some(ServerStep::AddReal(at, *real, *weight)),
                        Some(known) if known == weight => None,
                        Some(_) => Some(ServerStep::SetWeight(at, *real, *weight)),
                    });
                }
                let unused = known.weights.iter().filter(|(it, _)| !desired.real_servers.contains_key(it));
                for (real, weight) in unused {
                    match at.protocol {
                        Protocol::Tcp => {
                            terminating.insert(*real);
                            let is_quiet = *weight == 0;
                            self.leave.extend((!is_quiet).then_some(ServerStep::SetWeight(at, *real, 0)));
                        }
                        Protocol::Udp | Protocol::Sctp => self.leave.push(ServerStep::DeleteReal(at, *real)),
                    }
                }
            }
        }
        termination.replace(at, terminating);
    }

    pub fn is_empty(&self) -> bool {
        let Self { unbind, delete, virtual_servers, join, leave, bind } = self;
        [unbind, delete, virtual_servers, join, leave, bind].into_iter().all(Vec::is_empty)
    }

    /// The steps of a sync that also changes the table.
    pub fn around(self, table: Steps) -> IpvsSteps {
        let Self { unbind, delete, virtual_servers, join, leave, bind } = self;
        let (removals, additions) =
            ([unbind, delete].concat(), [virtual_servers, join, leave, bind].concat());
        let replaces = table.table.as_ref().is_some_and(|new| new.replaces);
        let (before, after) = if replaces { (additions, removals) } else { (removals, additions) };
        IpvsSteps { before, table, after }
    }
}
