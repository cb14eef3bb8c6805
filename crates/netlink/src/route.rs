//! The addresses of this machine, notifications of their changes, and its default source address; and dummy interfaces, which
//! carry addresses without sending packets.
//!
//! Everything is read from the kernel's tables: no packet is sent and no socket is connected.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::Family;
use crate::attributes::{Attribute, Attributes};
use crate::buffer::Buffer;
use crate::message::{Message, NLM_F_CREATE, NLM_F_EXCL};
use crate::socket::{NetlinkProtocol, Request, Socket, is};

// include/uapi/linux/rtnetlink.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RT_TABLE_MAIN: u32 = 254;
const RTN_UNICAST: u8 = 1;
const RTNH_F_DEAD: u32 = 1;
const RT_SCOPE_UNIVERSE: u8 = 0;

// include/uapi/linux/if_link.h, if.h
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const DUMMY: &str = "dummy";
const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 8;

// include/uapi/linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

/// Reads the links, addresses and routes of one network namespace, and changes its dummy interfaces.
#[derive(Debug)]
pub struct RouteSocket {
    socket: Socket,
}

impl RouteSocket {
    /// Belongs to the namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(NetlinkProtocol::Route)? })
    }

    /// All interfaces, in the kernel's order.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        let request = Request { kind: RTM_GETLINK, flags: 0, fixed: &[0; LINK] };
        self.socket.dump(request, |_| {}, Link::from_wire)
    }

    /// The interface of that name. `None` if there is none.
    pub fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let request = Request { kind: RTM_GETLINK, flags: 0, fixed: &[0; LINK] };
        match self.socket.ask(request, |m| m.string(IFLA_IFNAME, name), Link::from_wire) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if is(&error, Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a dummy interface, which is down. `EEXIST` if there is an interface of that name.
    pub fn create_dummy(&mut self, name: &str) -> io::Result<()> {
        let request = Request { kind: RTM_NEWLINK, flags: NLM_F_CREATE | NLM_F_EXCL, fixed: &[0; LINK] };
        let body = |message: &mut Buffer| {
            message.string(IFLA_IFNAME, name);
            message.nest(IFLA_LINKINFO, |m| m.string(IFLA_INFO_KIND, DUMMY));
        };
        self.socket.ask(request, body, |_| None::<()>).map(drop)
    }

    /// Deletes an interface with its addresses. Refuses to delete any other than a dummy interface.
    pub fn delete_dummy(&mut self, link: &Link) -> io::Result<()> {
        if !link.is_dummy() {
            let message = format!("{} is not a dummy interface", link.name);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let [i0, i1, i2, i3] = link.index.to_ne_bytes();
        let fixed = [0, 0, 0, 0, i0, i1, i2, i3, 0, 0, 0, 0, 0, 0, 0, 0];
        let request = Request { kind: RTM_DELLINK, flags: 0, fixed: &fixed };
        self.socket.ask(request, |_| {}, |_| None::<()>).map(drop)
    }

    /// The addresses of one family with full-length prefixes on the interface, in the kernel's order.
    pub fn host_addresses(&mut self, interface: u32, family: Family) -> io::Result<Vec<IpAddr>> {
        let request =
            Request { kind: RTM_GETADDR, flags: 0, fixed: &[family.to_wire(), 0, 0, 0, 0, 0, 0, 0] };
        let read = |message: &Message<'_>| {
            let found = WireAddress::from_wire(message)?;
            let is_host = found.prefix_length == host_prefix(found.address);
            (found.interface == interface && is_host).then_some(found.address)
        };
        self.socket.dump(request, |_| {}, read)
    }

    /// Adds addresses with full-length prefixes to the interface, all in one datagram, and returns the results in their order.
    /// Those that exist count as added.
    pub fn add_host_addresses(
        &mut self,
        interface: u32,
        addresses: &[IpAddr],
    ) -> io::Result<Vec<io::Result<()>>> {
        let added = self.change_addresses(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, interface, addresses)?;
        Ok(added.into_iter().map(|result| accept(result, &[Errno::EXIST])).collect())
    }

    /// The reverse of [`Self::add_host_addresses`]. Those that do not exist count as deleted, as do all if the interface does not
    /// exist.
    pub fn delete_host_addresses(
        &mut self,
        interface: u32,
        addresses: &[IpAddr],
    ) -> io::Result<Vec<io::Result<()>>> {
        let deleted = self.change_addresses(RTM_DELADDR, 0, interface, addresses)?;
        let gone = [Errno::ADDRNOTAVAIL, Errno::NXIO, Errno::NODEV];
        Ok(deleted.into_iter().map(|result| accept(result, &gone)).collect())
    }

    fn change_addresses(
        &mut self,
        kind: u16,
        flags: u16,
        interface: u32,
        addresses: &[IpAddr],
    ) -> io::Result<Vec<io::Result<()>>> {
        let items: Vec<(IpAddr, [u8; ADDRESS])> =
            addresses.iter().map(|ip| (*ip, host_address(interface, *ip))).collect();
        self.socket.ask_each(
            &items,
            |(_, fixed)| Request { kind, flags, fixed },
            |(ip, _), message| {
                // For IPv4, IFA_ADDRESS is that of the peer, and the same where there is none.
                match ip {
                    IpAddr::V4(ip) => {
                        message.bytes(IFA_LOCAL, &ip.octets());
                        message.bytes(IFA_ADDRESS, &ip.octets());
                    }
                    IpAddr::V6(ip) => message.bytes(IFA_ADDRESS, &ip.octets()),
                }
            },
        )
    }

    /// All addresses of both families with the names of their interfaces, in the kernel's order.
    pub fn addresses(&mut self) -> io::Result<Vec<InterfaceAddress>> {
        let links: HashMap<u32, Link> = self.links()?.into_iter().map(|link| (link.index, link)).collect();
        let request = Request { kind: RTM_GETADDR, flags: 0, fixed: &[0; ADDRESS] };
        let read = |message: &Message<'_>| {
            let address = WireAddress::from_wire(message)?;
            // The interface may have appeared between the two dumps: a notification follows.
            let link = links.get(&address.interface)?;
            Some(address.on(link))
        };
        self.socket.dump(request, |_| {}, read)
    }

    /// The interface of the default route, and the source address that packets get there. `None` if the main table has no
    /// default route, or if its interface has no usable address.
    pub fn default_source(&mut self, family: Family) -> io::Result<Option<Source>> {
        let Some(route) = self.default_route(family)? else { return Ok(None) };
        let on_its_interface = |address: &InterfaceAddress| address.interface == route.interface;
        let usable = |address: &InterfaceAddress| address.family() == family && address.is_usable_source();
        let link = self.links()?.into_iter().find(|link| link.index == route.interface);
        let address = match route.preferred_source {
            Some(address) => Some(address),
            None => self.addresses()?.iter().find(|a| on_its_interface(a) && usable(a)).map(|a| a.address),
        };
        Ok(link.zip(address).map(|(link, address)| Source { interface: link.name, address }))
    }

    /// The default route of the main table with the lowest metric, and the first one among equals.
    fn default_route(&mut self, family: Family) -> io::Result<Option<DefaultRoute>> {
        let mut fixed = [0; ROUTE];
        fixed[0] = family.to_wire();
        let request = Request { kind: RTM_GETROUTE, flags: 0, fixed: &fixed };
        let routes = self.socket.dump(request, |_| {}, |m| DefaultRoute::from_wire(m, family))?;
        Ok(routes.into_iter().min_by_key(|route| route.metric))
    }
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: Arc<str>,
    /// The driver of a virtual interface. Others have none.
    pub kind: Option<Box<str>>,
    pub is_up: bool,
    pub is_loopback: bool,
}

/// The size of `struct ifinfomsg`.
const LINK: usize = 16;

impl Link {
    /// `None` unless the message is a link.
    #[must_use]
    pub fn from_wire(message: &Message<'_>) -> Option<Self> {
        if message.header.kind != RTM_NEWLINK {
            return None;
        }
        let [_, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *message.fixed::<LINK>()?;
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        let attributes = message.attributes(LINK);
        let name = attributes.find(IFLA_IFNAME)?.str()?;
        let information =
            attributes.find(IFLA_LINKINFO).and_then(|found| found.nested().find(IFLA_INFO_KIND));
        Some(Self {
            index: u32::from_ne_bytes([i0, i1, i2, i3]),
            name: name.into(),
            kind: information.and_then(|kind| kind.str()).map(Box::from),
            is_up: flags & IFF_UP != 0,
            is_loopback: flags & IFF_LOOPBACK != 0,
        })
    }

    #[must_use]
    pub fn is_dummy(&self) -> bool {
        self.kind.as_deref() == Some(DUMMY)
    }
}

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The index of its interface.
    pub interface: u32,
    /// The name of its interface. Not the label, which may differ and which IPv6 addresses lack.
    pub name: Arc<str>,
    pub is_up: bool,
    pub is_loopback: bool,
    pub address: IpAddr,
    pub prefix_length: u8,
    /// `RT_SCOPE_*`: 0 is global, 253 link, 254 host.
    pub scope: u8,
    /// `IFA_F_*`
    pub flags: u32,
}

impl InterfaceAddress {
    #[must_use]
    pub const fn family(&self) -> Family {
        match self.address {
            IpAddr::V4(_) => Family::Ipv4,
            IpAddr::V6(_) => Family::Ipv6,
        }
    }

    #[must_use]
    pub const fn is_global(&self) -> bool {
        self.scope == RT_SCOPE_UNIVERSE
    }

    /// The kernel's source address selection avoids such addresses, too.
    const fn is_usable_source(&self) -> bool {
        self.is_global() && self.flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED | IFA_F_DEPRECATED) == 0
    }
}

/// The default source address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The name of the interface of the default route.
    pub interface: Arc<str>,
    pub address: IpAddr,
}

/// Reports that addresses have changed. The caller reads them again to find out which.
#[derive(Debug)]
pub struct AddressChanges {
    socket: Socket,
}

impl AddressChanges {
    /// Belongs to the namespace of the calling thread. Open it before the first read of the addresses.
    pub fn open() -> io::Result<Self> {
        let groups = [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
        Ok(Self { socket: Socket::subscribe(NetlinkProtocol::Route, &groups)? })
    }

    /// The interfaces whose addresses have changed since the last call, by index. Waits up to `time` for a change. 0 stands for
    /// lost notifications, of any interface.
    pub fn seen_within(&mut self, time: Duration) -> io::Result<BTreeSet<u32>> {
        let mut seen = BTreeSet::new();
        let mut time = time;
        while self.receive_within(time, &mut seen)? {
            time = Duration::ZERO;
        }
        Ok(seen)
    }

    /// Returns whether a datagram arrived.
    fn receive_within(&mut self, time: Duration, seen: &mut BTreeSet<u32>) -> io::Result<bool> {
        match self.socket.receive_within(time) {
            Ok(None) => return Ok(false),
            Ok(Some(messages)) => {
                for message in messages {
                    let interface = message.fixed::<ADDRESS>().map(|[_, _, _, _, index @ ..]| *index);
                    seen.insert(interface.map_or(0, u32::from_ne_bytes));
                }
            }
            Err(error) if crate::socket::is_loss(&error) => drop(seen.insert(0)),
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}

impl AsFd for AddressChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An address without the name of its interface.
struct WireAddress {
    interface: u32,
    address: IpAddr,
    prefix_length: u8,
    scope: u8,
    flags: u32,
}

/// The size of `struct ifaddrmsg`.
const ADDRESS: usize = 8;

impl WireAddress {
    fn from_wire(message: &Message<'_>) -> Option<Self> {
        if message.header.kind != RTM_NEWADDR {
            return None;
        }
        let [family, prefix_length, flags, scope, i0, i1, i2, i3] = *message.fixed::<ADDRESS>()?;
        let family = Family::from_wire(family)?;
        let attributes = message.attributes(ADDRESS);
        // On a point-to-point link IFA_ADDRESS is that of the peer.
        let address = attributes.find(IFA_LOCAL).or_else(|| attributes.find(IFA_ADDRESS))?;
        let flags = attributes.find(IFA_FLAGS).and_then(|a| a.ne32()).unwrap_or(u32::from(flags));
        Some(Self {
            interface: u32::from_ne_bytes([i0, i1, i2, i3]),
            address: ip(address, family)?,
            prefix_length,
            scope,
            flags,
        })
    }

    fn on(self, link: &Link) -> InterfaceAddress {
        InterfaceAddress {
            interface: self.interface,
            name: Arc::clone(&link.name),
            is_up: link.is_up,
            is_loopback: link.is_loopback,
            address: self.address,
            prefix_length: self.prefix_length,
            scope: self.scope,
            flags: self.flags,
        }
    }
}

const fn host_prefix(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// `struct ifaddrmsg` of an address with a full-length prefix and global scope.
fn host_address(interface: u32, ip: IpAddr) -> [u8; ADDRESS] {
    let family = if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    let [i0, i1, i2, i3] = interface.to_ne_bytes();
    [family.to_wire(), host_prefix(ip), 0, RT_SCOPE_UNIVERSE, i0, i1, i2, i3]
}

/// Turns these errors into successes.
fn accept(result: io::Result<()>, benign: &[Errno]) -> io::Result<()> {
    result.or_else(|error| if benign.iter().any(|errno| is(&error, *errno)) { Ok(()) } else { Err(error) })
}

struct DefaultRoute {
    interface: u32,
    metric: u32,
    preferred_source: Option<IpAddr>,
}

/// The size of `struct rtmsg`.
const ROUTE: usize = 12;

impl DefaultRoute {
    fn from_wire(message: &Message<'_>, family: Family) -> Option<Self> {
        if message.header.kind != RTM_NEWROUTE {
            return None;
        }
        let [route_family, destination_length, _, _, table, _, _, kind, f0, f1, f2, f3] =
            *message.fixed::<ROUTE>()?;
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        let attributes = message.attributes(ROUTE);
        let number = |kind| attributes.find(kind).and_then(|a| a.ne32());
        let is_default = route_family == family.to_wire()
            && destination_length == 0
            && kind == RTN_UNICAST
            && flags & RTNH_F_DEAD == 0
            && number(RTA_TABLE).unwrap_or(u32::from(table)) == RT_TABLE_MAIN;
        if !is_default {
            return None;
        }
        Some(Self {
            interface: number(RTA_OIF).or_else(|| first_hop(attributes))?,
            metric: number(RTA_PRIORITY).unwrap_or(0),
            preferred_source: attributes.find(RTA_PREFSRC).and_then(|a| ip(a, family)),
        })
    }
}

/// The interface of the first next hop. `struct rtnexthop` consists of length, flags, weight and index.
fn first_hop(attributes: Attributes<'_>) -> Option<u32> {
    let [_, _, _, _, i0, i1, i2, i3] = *attributes.find(RTA_MULTIPATH)?.value.first_chunk()?;
    Some(u32::from_ne_bytes([i0, i1, i2, i3]))
}

fn ip(attribute: Attribute<'_>, family: Family) -> Option<IpAddr> {
    match family {
        Family::Ipv4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(attribute.value).ok()?).into()),
        Family::Ipv6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(attribute.value).ok()?).into()),
    }
}

/// Runs every decoder of this module over one message; see [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn decode_all(message: &Message<'_>) {
    let _ = (Link::from_wire(message), WireAddress::from_wire(message).is_some());
    for family in [Family::Ipv4, Family::Ipv6] {
        let _ = DefaultRoute::from_wire(message, family).is_some();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::Header;

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(kind in 14_u16..30, body in prop::collection::vec(any::<u8>(), 0..200)) {
            decode_all(&Message { header: Header { kind, flags: 0, sequence: 0, port: 0 }, body: &body });
        }
    }
}
