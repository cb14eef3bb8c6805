//! What the virtual servers of IPVS serve, together with the elements of the table around it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::hashing::ClientHash;

use super::{KernelComparison, RefusalReason, Served, ServedEndpoint, ServedHash, shares};
use crate::difference::Difference;
use crate::ipvs::compare::compare;
use crate::ipvs::desired::{DesiredServers, DesiredVirtual, HASH_SCHEDULER, addresses};
use crate::ipvs::servers::{
    ActualServers, ActualVirtual, HASH_PORT, PERSISTENT, RealServer, VirtualAddress, VirtualServer,
};
use crate::nftables::desired::DesiredTable;
use crate::nftables::elements::FrontendKey;
use crate::nftables::sets::Element;

/// The virtual servers of one side, desired or actual.
struct Side<'a> {
    table: &'a DesiredTable,
    servers: BTreeMap<VirtualAddress, ServedVirtual>,
    bound: BTreeSet<IpAddr>,
}

/// A virtual server: its session affinity, and where connections go.
struct ServedVirtual {
    affinity: Option<u32>,
    hash: Option<ServedHash>,
    /// With their weights.
    endpoints: BTreeMap<ServedEndpoint, f64>,
}

impl KernelComparison {
    /// Compares the desired servers and elements with the actual ones, given the differences of the elements.
    pub fn of_servers(
        servers: &DesiredServers<'_>,
        found: &ActualServers,
        elements: &[Element],
        mut differences: Vec<Difference>,
        objects: usize,
    ) -> Self {
        let table = servers.table;
        let (mut desired, mut actual) = Served::of_sides(elements, &differences, table.settings().family);
        differences.extend(compare(found, servers));
        desired.serve(&Side::desired(servers));
        desired.claim(table);
        actual.serve(&Side::actual(table, found));
        actual.name_after(&desired);
        Self { objects, differences, desired, actual }
    }
}

impl<'a> Side<'a> {
    fn desired(servers: &DesiredServers<'a>) -> Self {
        let served = |(at, DesiredVirtual { server, real_servers })| {
            let weight = |(real, weight): (RealServer, u32)| ((real.ip, real.port), f64::from(weight));
            let endpoints = real_servers.into_iter().map(weight).collect();
            (at, ServedVirtual { affinity: affinity(&server), hash: hash(&server), endpoints })
        };
        Self {
            table: servers.table,
            servers: servers.all().into_iter().map(served).collect(),
            bound: servers.table.bound_ips().collect(),
        }
    }

    fn actual(table: &'a DesiredTable, found: &ActualServers) -> Self {
        let served = |(at, found): (&VirtualAddress, &ActualVirtual)| {
            let real = found.real_servers.iter().filter(|(_, real)| real.weight > 0);
            let endpoints = real.map(|(real, it)| ((real.ip, real.port), it.weight.into())).collect();
            let server = &found.server;
            (*at, ServedVirtual { affinity: affinity(server), hash: hash(server), endpoints })
        };
        let servers = found.virtual_servers.iter().map(served).collect();
        Self { table, servers, bound: found.bound.clone() }
    }

    /// The frontend of a virtual server: a node port, if no Service has its address.
    fn frontend(&self, at: &VirtualAddress) -> FrontendKey {
        let VirtualAddress { ip, protocol, port } = *at;
        let by_address = FrontendKey { ip: Some(ip), protocol, port };
        let is_node_port =
            self.table.owner(&by_address).is_none() && self.table.node_port_ips().contains(&ip);
        FrontendKey { ip: Some(ip).filter(|_| !is_node_port), protocol, port }
    }

    /// The virtual servers that a frontend needs: a node port needs one at each address that no Service has.
    fn needed(&self, frontend: &FrontendKey) -> impl Iterator<Item = Option<&ServedVirtual>> {
        let all = addresses(frontend, self.table.node_port_ips()).into_iter();
        all.filter(move |at| self.frontend(at) == *frontend).map(|at| self.servers.get(&at))
    }

    fn is_reachable(&self, frontend: &FrontendKey) -> bool {
        frontend.ip.is_none_or(|ip| self.bound.contains(&ip) || self.table.node_ips().contains(&ip))
    }
}

impl Served {
    /// Replaces what elements tell about endpoints: in the ipvs mode, they only name frontends. A node port leads to the endpoints
    /// that it has at every address.
    fn serve(&mut self, side: &Side<'_>) {
        for at in side.servers.keys() {
            self.frontends.entry(side.frontend(at)).or_default();
        }
        for (frontend, service) in &mut self.frontends {
            let needed: Vec<Option<&ServedVirtual>> = side.needed(frontend).collect();
            let exists = !needed.is_empty() && needed.iter().all(Option::is_some);
            let mut each = needed.iter().flatten();
            let first = each.next();
            let mut endpoints = first.map(|first| first.endpoints.clone()).unwrap_or_default();
            each.for_each(|other| endpoints.retain(|endpoint, _| other.endpoints.contains_key(endpoint)));
            service.shares = shares(&endpoints);
            service.endpoints = endpoints.into_keys().collect();
            service.affinity = first.and_then(|first| first.affinity);
            service.hash = first.and_then(|first| first.hash.clone());
            let serves = exists && side.is_reachable(frontend);
            service.forwards = serves && !service.endpoints.is_empty();
            let refuses = serves && service.endpoints.is_empty();
            service.refusal = refuses.then_some(RefusalReason::NoEndpoints);
        }
    }
}

fn hash(server: &VirtualServer) -> Option<ServedHash> {
    let of = if server.flags & HASH_PORT != 0 { ClientHash::AddressAndPort } else { ClientHash::Address };
    (&*server.scheduler == HASH_SCHEDULER).then(|| ServedHash { of, slots: Arc::default() })
}

fn affinity(server: &VirtualServer) -> Option<u32> {
    (server.flags & PERSISTENT != 0).then_some(server.timeout)
}
