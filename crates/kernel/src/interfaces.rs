//! The node's own addresses, and notifications of their changes.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use model::address::Family;
use netlink::route::{AddressChanges, RouteSocket};
use plan::ipvs::servers::INTERFACE;

/// The addresses of all interfaces, in the kernel's order, without those that an ipvs mode has bound for Services.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let all = RouteSocket::open()?.addresses()?.into_iter();
    Ok(all.filter(|found| *found.name != *INTERFACE).map(|found| found.address).collect())
}

/// Interfaces with addresses of Services, which an ipvs mode and NodeLocal DNSCache create.
const SERVICE_INTERFACES: [&str; 2] = [INTERFACE, "nodelocaldns"];

/// The addresses of all interfaces but those that carry addresses of Services.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let all = RouteSocket::open()?.addresses()?.into_iter();
    Ok(all.filter(|found| !SERVICE_INTERFACES.contains(&&*found.name)).map(|found| found.address).collect())
}

/// The address from which the node sends along its default route.
pub fn default_address(family: Family) -> io::Result<Option<IpAddr>> {
    let source = RouteSocket::open()?.default_source(crate::wire_family(family))?;
    Ok(source.map(|source| source.address))
}

/// The source address with which the kernel would send to a destination; an error if it has no route. Sends nothing.
pub fn source_towards(destination: SocketAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind((Family::of(destination.ip()).everything().addr(), 0))?;
    socket.connect(destination)?;
    Ok(socket.local_addr()?.ip())
}

/// Receives notifications of changes of addresses from the time it was opened.
#[derive(Debug)]
pub struct AddressMonitor(AddressChanges);

impl AddressMonitor {
    /// Monitors the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self(AddressChanges::open()?))
    }

    /// Calls `notify` after each change of [`addresses`], until it returns false.
    pub fn follow(mut self, mut notify: impl FnMut() -> bool) -> io::Result<()> {
        let mut route = RouteSocket::open()?;
        loop {
            let mut seen = self.0.seen_within(Duration::from_secs(3_600))?;
            if seen.is_empty() {
                continue;
            }
            if let Some(bound) = route.link(INTERFACE)? {
                seen.remove(&bound.index);
            }
            if !seen.is_empty() && !notify() {
                return Ok(());
            }
        }
    }
}
