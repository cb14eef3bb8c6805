//! Compares the servers and bound addresses in the kernel with the desired ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::names::Protocol;

use crate::difference::{Difference, DifferenceKind, KernelObject};
use crate::ipvs::desired::{DesiredServers, DesiredVirtual};
use crate::ipvs::servers::{ActualServers, ActualVirtual, VirtualAddress};

/// Every virtual server, real server and bound address that differs. A TCP real server of weight 0 is not unexpected: it ends its
/// connections.
pub fn compare(actual: &ActualServers, desired: &DesiredServers<'_>) -> Vec<Difference> {
    let servers = desired.all();
    let mut all = Vec::new();
    let mut add = |kind, object| all.push(Difference::new(kind, object));
    for (at, server) in &servers {
        compare_virtual(at, actual.virtual_servers.get(at), server, &mut add);
    }
    for (at, found) in unexpected(actual, &servers, desired) {
        add(DifferenceKind::Unexpected, KernelObject::Virtual(*at, found.server.clone()));
    }
    let bound: BTreeSet<IpAddr> = desired.table.bound_ips().collect();
    for ip in bound.difference(&actual.bound) {
        add(DifferenceKind::Missing, KernelObject::Bound(*ip));
    }
    for ip in actual.bound.difference(&bound) {
        add(DifferenceKind::Unexpected, KernelObject::Bound(*ip));
    }
    all
}

/// The number of desired virtual servers, real servers and bound addresses.
pub fn objects(desired: &DesiredServers<'_>) -> usize {
    let servers = desired.all();
    let real: usize = servers.values().map(|server| server.real_servers.len()).sum();
    servers.len() + real + desired.table.bound_ips().count()
}

/// The virtual servers that a sync deletes.
fn unexpected<'a>(
    actual: &'a ActualServers,
    servers: &BTreeMap<VirtualAddress, DesiredVirtual>,
    desired: &DesiredServers<'_>,
) -> impl Iterator<Item = (&'a VirtualAddress, &'a ActualVirtual)> {
    let is_excluded = |ip: IpAddr| desired.settings.exclude_cidrs.iter().any(|cidr| cidr.contains(&ip));
    let found = actual.virtual_servers.iter();
    found.filter(move |(at, _)| !servers.contains_key(at) && !is_excluded(at.ip))
}

fn compare_virtual(
    at: &VirtualAddress,
    actual: Option<&ActualVirtual>,
    desired: &DesiredVirtual,
    add: &mut impl FnMut(DifferenceKind, KernelObject),
) {
    let real_servers = actual.map(|found| &found.real_servers);
    match actual {
        None => add(DifferenceKind::Missing, KernelObject::Virtual(*at, desired.server.clone())),
        Some(found) if found.server != desired.server => {
            add(DifferenceKind::Changed, KernelObject::Virtual(*at, desired.server.clone()));
        }
        Some(_) => {}
    }
    for (real, weight) in &desired.real_servers {
        let object = KernelObject::Real(*at, *real, *weight);
        match real_servers.and_then(|found| found.get(real)).map(|found| found.weight) {
            None => add(DifferenceKind::Missing, object),
            Some(found) if found == *weight => {}
            Some(_) => add(DifferenceKind::Changed, object),
        }
    }
    for (real, found) in real_servers.into_iter().flatten() {
        let terminates = at.protocol == Protocol::Tcp && found.weight == 0;
        if !desired.real_servers.contains_key(real) && !terminates {
            add(DifferenceKind::Unexpected, KernelObject::Real(*at, *real, found.weight));
        }
    }
}
