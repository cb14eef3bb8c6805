//! Removes what proxies leave in the kernel: everything with `--cleanup`, and the rules of other modes once ours have taken over.

use std::io;

use anyhow::bail;
use kernel::{iptables, nftables};
use model::address::Family;
use settings::config::ProxyMode;

/// Removes what any mode may have left. Continues after a failure, so that as much as possible is removed.
pub fn everything() -> anyhow::Result<()> {
    let removed = Family::BOTH.map(|family| [remove_iptables(family), remove_nftables(family)]);
    if removed.as_flattened().contains(&false) {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}

/// Removes what another mode left in a family, so that no packet is translated twice. Logs what cannot be removed.
///
/// iptables and ipvs share their chains and take over from each other.
pub fn other_modes(mode: ProxyMode, family: Family) {
    match mode {
        ProxyMode::Nftables => remove_iptables(family),
        ProxyMode::Iptables | ProxyMode::Ipvs => remove_nftables(family),
    };
}

/// Returns whether nothing is left.
fn remove_iptables(family: Family) -> bool {
    let removed = iptables::remove(family);
    if let Err(error) = &removed {
        tracing::error!(ipFamily = %family, err = %error, "Error cleaning up iptables rules");
    }
    removed.is_ok()
}

/// Returns whether nothing is left.
fn remove_nftables(family: Family) -> bool {
    let Err(error) = nftables::KernelTable::remove(family) else { return true };
    let error = anyhow::Error::from(error);
    let is_forbidden = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let why = if !error.chain().filter_map(|error| error.downcast_ref()).any(is_forbidden) {
        ""
    } else if nftables::present(family).is_ok() {
        // Reading is permitted, so the cause is not a lack of privileges.
        " (the table belongs to a proxy that is still running; stop that one first)"
    } else {
        " (it takes root or CAP_NET_ADMIN)"
    };
    tracing::error!(ipFamily = %family, err = format!("{error:#}{why}"), "Error cleaning up nftables rules");
    false
}
