//! The node's own addresses, and word of their changes.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use model::address::Family;
use netlink::route::{AddressChanges, Connection};

/// Every address of every interface, in the kernel's order.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    Ok(Connection::open()?.addresses()?.into_iter().map(|found| found.address).collect())
}

/// The address this node speaks from by default: that of the default route's interface.
pub fn default_address(family: Family) -> io::Result<Option<IpAddr>> {
    let source = Connection::open()?.default_source(crate::wire_family(family))?;
    Ok(source.map(|source| source.address))
}

/// Calls `tell` after every change of addresses, for as long as it returns true.
pub fn on_change(mut tell: impl FnMut() -> bool) -> io::Result<()> {
    let mut changes = AddressChanges::open()?;
    loop {
        if changes.seen_within(Duration::from_secs(3_600))? && !tell() {
            return Ok(());
        }
    }
}
