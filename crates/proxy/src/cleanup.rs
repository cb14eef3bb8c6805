//! Removes what proxies leave in the kernel: everything with `--cleanup`, and the rules of other modes once ours have taken over.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use anyhow::bail;
use ipnet::IpNet;
use kernel::{iptables, ipvs, nftables};
use model::address::Family;
use plan::iptables::cleanup::Leftovers;
use settings::config::ProxyMode;

use crate::threads;

/// How often, and at which interval, to try to remove what the kernel has not released yet: the ipsets of rules that have been deleted
/// through iptables-nft, and the table of a proxy that has just ended, which a program that it started may own for a moment.
const SET_ATTEMPTS: u32 = 50;
const TABLE_ATTEMPTS: u32 = 20;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(100);
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Removes what any mode may have left, but no virtual servers in `exclude`. Continues after a failure, so that as much as
/// possible is removed.
pub fn everything(exclude: &[IpNet]) -> anyhow::Result<()> {
    let removed = Family::BOTH.map(|family| {
        [remove_ipvs(family, exclude), remove_iptables(family, Leftovers::All), remove_nftables(family)]
    });
    let destroyed = Family::BOTH.map(destroy_sets);
    if removed.as_flattened().contains(&false) || destroyed.contains(&false) {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}

/// Removes what another mode left in a family, so that no packet is translated twice, but no virtual servers in `exclude`. Logs what
/// cannot be removed. The nftables and the ipvs mode have the same table, and the ipvs mode adopts virtual servers.
pub fn other_modes(mode: ProxyMode, family: Family, exclude: Vec<IpNet>) {
    match mode {
        ProxyMode::Nftables | ProxyMode::Ipvs => {
            remove_iptables(family, Leftovers::All);
        }
        ProxyMode::Iptables => {
            remove_iptables(family, Leftovers::OfIpvs);
            remove_nftables(family);
        }
    }
    destroy_sets(family);
    if mode != ProxyMode::Ipvs && !remove_idle_servers(family, &exclude) {
        threads::spawn_or_log(family, "ipvs-servers", move || {
            while !remove_idle_servers(family, &exclude) {
                sleep(IDLE_CHECK_INTERVAL);
            }
        });
    }
}

/// Removes the virtual servers of an ipvs mode whose connections have ended: IPVS alone can translate those. New connections do not
/// reach them, since the rules of this mode come first. Returns whether none is left.
fn remove_idle_servers(family: Family, exclude: &[IpNet]) -> bool {
    match ipvs::remove_idle(family, exclude) {
        Ok(left) => left == 0,
        Err(error) => {
            tracing::error!(ipFamily = %family, err = %error, "Error cleaning up IPVS servers");
            false
        }
    }
}

/// Returns whether nothing is left but rules and ipsets.
fn remove_ipvs(family: Family, exclude: &[IpNet]) -> bool {
    let removed = ipvs::remove(family, exclude);
    if let Err(error) = &removed {
        tracing::error!(ipFamily = %family, err = %error, "Error cleaning up IPVS servers");
    }
    removed.is_ok()
}

/// Destroys the ipsets of upstream's ipvs mode, whose rules have to be removed before. Returns whether none is left.
fn destroy_sets(family: Family) -> bool {
    let is_held = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
    let destroyed = until_released(SET_ATTEMPTS, || ipvs::destroy_sets(family), is_held);
    if let Err(error) = &destroyed {
        tracing::error!(ipFamily = %family, err = %error, "Error cleaning up ipsets");
    }
    destroyed.is_ok()
}

/// Returns whether nothing is left.
fn remove_iptables(family: Family, which: Leftovers) -> bool {
    let removed = iptables::remove(family, which);
    if let Err(error) = &removed {
        tracing::error!(ipFamily = %family, err = %error, "Error cleaning up iptables rules");
    }
    removed.is_ok()
}

/// Returns whether nothing is left.
fn remove_nftables(family: Family) -> bool {
    let remove = || nftables::KernelTable::remove(family).map_err(anyhow::Error::from);
    // If reading is permitted, the cause is not a lack of privileges.
    let is_owned = |error: &anyhow::Error| is_forbidden(error) && nftables::present(family).is_ok();
    let Err(error) = until_released(TABLE_ATTEMPTS, remove, is_owned) else { return true };
    let why = if is_owned(&error) {
        " (the table belongs to a proxy that is still running; stop that one first)"
    } else if is_forbidden(&error) {
        " (it takes root or CAP_NET_ADMIN)"
    } else {
        ""
    };
    tracing::error!(ipFamily = %family, err = format!("{error:#}{why}"), "Error cleaning up nftables rules");
    false
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|error| error.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Repeats `remove` while its error `is_held`, up to this many attempts in all.
fn until_released<E>(
    attempts: u32,
    mut remove: impl FnMut() -> Result<(), E>,
    is_held: impl Fn(&E) -> bool,
) -> Result<(), E> {
    let mut removed = remove();
    for _ in 1..attempts {
        if !removed.as_ref().is_err_and(&is_held) {
            break;
        }
        sleep(ATTEMPT_INTERVAL);
        removed = remove();
    }
    removed
}
