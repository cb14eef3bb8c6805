//! The node's own addresses, and word of their changes.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use model::address::Family;
use netlink::route::{AddressChanges, Connection};

/// Every address of every interface, in the kernel's order.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    Ok(Connection::open()?.addresses()?.into_iter().map(|found| found.address).collect())
}

/// Interfaces that carry addresses of Services: upstream's ipvs mode and NodeLocal DNSCache add them.
const FOR_SERVICES: [&str; 2] = ["kube-ipvs0", "nodelocaldns"];

/// The addresses that are the node's own, whatever Services ask for.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let all = Connection::open()?.addresses()?.into_iter();
    Ok(all.filter(|found| !FOR_SERVICES.contains(&&*found.name)).map(|found| found.address).collect())
}

/// The address this node speaks from by default: that of the default route's interface.
pub fn default_address(family: Family) -> io::Result<Option<IpAddr>> {
    let source = Connection::open()?.default_source(crate::wire_family(family))?;
    Ok(source.map(|source| source.address))
}

/// The address that the kernel would send from to a destination; an error if it would not send at all. Nothing is sent.
pub fn source_towards(destination: SocketAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind((Family::of(destination.ip()).everything().addr(), 0))?;
    socket.connect(destination)?;
    Ok(socket.local_addr()?.ip())
}

/// Word of every change of addresses from now on.
#[derive(Debug)]
pub struct AddressMonitor(AddressChanges);

impl AddressMonitor {
    /// Belongs to the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self(AddressChanges::open()?))
    }

    /// Calls `tell` after every change, for as long as it returns true.
    pub fn follow(mut self, mut tell: impl FnMut() -> bool) -> io::Result<()> {
        loop {
            if self.0.seen_within(Duration::from_secs(3_600))? && !tell() {
                return Ok(());
            }
        }
    }
}
