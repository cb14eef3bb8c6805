//! Removes what an ipvs mode left, ours or upstream's. Its iptables rules are left to [`crate::iptables::remove`].

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use model::address::Family;
use netlink::ipset::IpsetSocket;
use netlink::ipvs::{IpvsChange, IpvsServiceKey, IpvsSocket};
use netlink::route::RouteSocket;
use plan::ipvs::servers::INTERFACE;
use rustix::io::Errno;

use super::{MAX_LISTS, STEPS_PER_SEND, is};
use crate::wire_family;

/// The sets of upstream's ipvs mode for IPv4.
const SETS: [&str; 17] = [
    "KUBE-LOOP-BACK",
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-LOAD-BALANCER",
    "KUBE-LOAD-BALANCER-FW",
    "KUBE-LOAD-BALANCER-LOCAL",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-NODE-PORT-TCP",
    "KUBE-NODE-PORT-LOCAL-TCP",
    "KUBE-NODE-PORT-UDP",
    "KUBE-NODE-PORT-LOCAL-UDP",
    "KUBE-NODE-PORT-SCTP-HASH",
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    "KUBE-HEALTH-CHECK-NODE-PORT",
    "KUBE-IPVS-IPS",
];
/// The kernel's limit, to which upstream truncates.
const SET_NAME_MAX: usize = 31;

/// Removes the family's virtual servers outside `exclude` and its addresses on the interface, and the interface unless the
/// other family still needs it. Without the interface no ipvs mode has run, and all virtual servers are those of other programs.
pub fn remove(family: Family, exclude: &[IpNet]) -> io::Result<()> {
    remove_where(family, exclude, |_, _| Ok(true)).map(drop)
}

/// The same, but leaves virtual servers that have connections, and their addresses. Returns how many it leaves.
pub fn remove_idle(family: Family, exclude: &[IpNet]) -> io::Result<usize> {
    remove_where(family, exclude, |ipvs, key| {
        let found = ipvs.destinations(key)?;
        Ok(found.iter().all(|(_, connections)| connections.active == 0 && connections.inactive == 0))
    })
}

fn remove_where(
    family: Family,
    exclude: &[IpNet],
    may_remove: impl FnMut(&mut IpvsSocket, IpvsServiceKey) -> io::Result<bool>,
) -> io::Result<usize> {
    let mut route = RouteSocket::open()?;
    let Some(link) = route.link(INTERFACE)? else { return Ok(0) };
    let Remaining { kept, of_other_family } = remove_servers(family, exclude, may_remove)?;
    let mut addresses = route.host_addresses(link.index, wire_family(family))?;
    addresses.retain(|ip| kept.iter().all(|key| key.address.ip() != *ip));
    for chunk in addresses.chunks(STEPS_PER_SEND) {
        route.delete_host_addresses(link.index, chunk)?.into_iter().collect::<io::Result<()>>()?;
    }
    let other = wire_family(family.other());
    if !kept.is_empty() || of_other_family || !route.host_addresses(link.index, other)?.is_empty() {
        return Ok(kept.len());
    }
    match route.delete_dummy(&link) {
        // The worker of the other family has deleted it meanwhile.
        Err(error) if is(&error, Errno::NODEV) => Ok(0),
        deleted => deleted.map(|()| 0),
    }
}

/// Virtual servers of an ipvs mode that still exist.
#[derive(Default)]
struct Remaining {
    kept: Vec<IpvsServiceKey>,
    /// Whether the other family has any.
    of_other_family: bool,
}

fn remove_servers(
    family: Family,
    exclude: &[IpNet],
    mut may_remove: impl FnMut(&mut IpvsSocket, IpvsServiceKey) -> io::Result<bool>,
) -> io::Result<Remaining> {
    let mut ipvs = match IpvsSocket::open() {
        Err(error) if is(&error, Errno::NOENT) => return Ok(Remaining::default()),
        opened => opened?,
    };
    let is_excluded = |ip: IpAddr| exclude.iter().any(|cidr| cidr.contains(&ip));
    // A list lacks some if others are deleted meanwhile, so another list has to confirm that none is left.
    for _ in 0..MAX_LISTS {
        let services = ipvs.services()?.into_iter().map(|(key, _)| key);
        let (ours, others): (Vec<IpvsServiceKey>, Vec<IpvsServiceKey>) = services
            .filter(|key| !is_excluded(key.address.ip()))
            .partition(|key| Family::of(key.address.ip()) == family);
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        for key in ours {
            let list = if may_remove(&mut ipvs, key)? { &mut removed } else { &mut kept };
            list.push(key);
        }
        if removed.is_empty() {
            return Ok(Remaining { kept, of_other_family: !others.is_empty() });
        }
        delete_servers(&mut ipvs, removed)?;
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process keeps adding virtual servers"))
}

fn delete_servers(ipvs: &mut IpvsSocket, keys: Vec<IpvsServiceKey>) -> io::Result<()> {
    let changes: Vec<IpvsChange> = keys.into_iter().map(IpvsChange::DeleteService).collect();
    for chunk in changes.chunks(STEPS_PER_SEND) {
        for deleted in ipvs.change(chunk)? {
            match deleted {
                Err(error) if !is(&error, Errno::SRCH) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Destroys the sets of upstream's ipvs mode. Fails with [`io::ErrorKind::ResourceBusy`] while rules use one of them; with
/// iptables-nft, this lasts for a moment after the rules have been deleted.
pub fn destroy_sets(family: Family) -> io::Result<()> {
    let mut ipset = IpsetSocket::open()?;
    let present = ipset.names()?;
    let ours: Vec<String> = set_names(family).filter(|name| present.contains(name)).collect();
    let destroyed = ipset.destroy(&ours.iter().map(String::as_str).collect::<Vec<&str>>())?;
    for (name, result) in ours.iter().zip(destroyed) {
        result.map_err(|error| io::Error::new(error.kind(), format!("destroying set {name}: {error}")))?;
    }
    Ok(())
}

fn set_names(family: Family) -> impl Iterator<Item = String> {
    SETS.into_iter().map(move |name| match family {
        Family::V4 => name.to_owned(),
        Family::V6 => name.replacen("KUBE-", "KUBE-6-", 1).chars().take(SET_NAME_MAX).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ipv6_sets_are_truncated_as_upstream_does() {
        let names: Vec<String> = set_names(Family::V6).collect();
        for name in ["KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "KUBE-6-IPVS-IPS"]
        {
            assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
        }
    }
}
