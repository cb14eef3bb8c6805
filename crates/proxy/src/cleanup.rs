//! Removes what proxies leave in the kernel: all of it when asked to, that of the other modes at every start.

use anyhow::bail;
use kernel::{iptables, nftables};
use model::address::Family;

use crate::config::ProxyMode;

/// Removes what any mode may have left.
pub fn everything() -> anyhow::Result<()> {
    let removed = [remove_iptables(), remove_nftables()];
    if removed.contains(&false) { bail!("encountered an error while tearing down rules") } else { Ok(()) }
}

/// Removes what another mode left, so that no packet is looked at twice. What fails is logged and left.
///
/// iptables and ipvs share their chains and take over from each other.
pub fn other_modes(mode: ProxyMode) {
    match mode {
        ProxyMode::Nftables => remove_iptables(),
        ProxyMode::Iptables | ProxyMode::Ipvs => remove_nftables(),
    };
}

/// Goes on past a failure, so that as much as possible is gone. Returns whether all is.
fn remove_iptables() -> bool {
    Family::BOTH.map(|family| match iptables::remove(family) {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(ipFamily = %family, err = %error, "Error cleaning up iptables rules");
            false
        }
    }) == [true; 2]
}

fn remove_nftables() -> bool {
    Family::BOTH.map(|family| match nftables::Table::remove(family) {
        Ok(()) => true,
        Err(error) => {
            let err = format!("{:#}", anyhow::Error::from(error));
            tracing::error!(ipFamily = %family, err, "Error cleaning up nftables rules");
            false
        }
    }) == [true; 2]
}
