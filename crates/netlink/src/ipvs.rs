//! IPVS: virtual servers, which the kernel calls services, and real servers, which it calls destinations.
//!
//! There are no transactions: the kernel applies each change on its own, and answers each on its own.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use rustix::io::Errno;

use crate::Family;
use crate::attributes::{Attribute, Attributes};
use crate::buffer::Buffer;
use crate::generic::{self, FIXED, fixed};
use crate::message::Message;
use crate::socket::{NetlinkProtocol, Request, Socket, is};

// include/uapi/linux/ip_vs.h
const IPVS_GENL_NAME: &str = "IPVS";
const IPVS_CMD_NEW_SERVICE: [u8; FIXED] = fixed(1);
const IPVS_CMD_SET_SERVICE: [u8; FIXED] = fixed(2);
const IPVS_CMD_DEL_SERVICE: [u8; FIXED] = fixed(3);
const IPVS_CMD_GET_SERVICE: [u8; FIXED] = fixed(4);
const IPVS_CMD_NEW_DEST: [u8; FIXED] = fixed(5);
const IPVS_CMD_SET_DEST: [u8; FIXED] = fixed(6);
const IPVS_CMD_DEL_DEST: [u8; FIXED] = fixed(7);
const IPVS_CMD_GET_DEST: [u8; FIXED] = fixed(8);
const IPVS_CMD_SET_CONFIG: [u8; FIXED] = fixed(12);
const IPVS_CMD_GET_CONFIG: [u8; FIXED] = fixed(13);
const IPVS_CMD_SET_INFO: [u8; FIXED] = fixed(14);
const IPVS_CMD_GET_INFO: [u8; FIXED] = fixed(15);
const IPVS_CMD_ATTR_SERVICE: u16 = 1;
const IPVS_CMD_ATTR_DEST: u16 = 2;
const IPVS_CMD_ATTR_TIMEOUT_TCP: u16 = 4;
const IPVS_CMD_ATTR_TIMEOUT_TCP_FIN: u16 = 5;
const IPVS_CMD_ATTR_TIMEOUT_UDP: u16 = 6;
const IPVS_INFO_ATTR_VERSION: u16 = 1;
const IPVS_INFO_ATTR_CONN_TAB_SIZE: u16 = 2;
const IPVS_SVC_ATTR_AF: u16 = 1;
const IPVS_SVC_ATTR_PROTOCOL: u16 = 2;
const IPVS_SVC_ATTR_ADDR: u16 = 3;
const IPVS_SVC_ATTR_PORT: u16 = 4;
const IPVS_SVC_ATTR_SCHED_NAME: u16 = 6;
const IPVS_SVC_ATTR_FLAGS: u16 = 7;
const IPVS_SVC_ATTR_TIMEOUT: u16 = 8;
const IPVS_SVC_ATTR_NETMASK: u16 = 9;
const IPVS_DEST_ATTR_ADDR: u16 = 1;
const IPVS_DEST_ATTR_PORT: u16 = 2;
const IPVS_DEST_ATTR_FWD_METHOD: u16 = 3;
const IPVS_DEST_ATTR_WEIGHT: u16 = 4;
const IPVS_DEST_ATTR_U_THRESH: u16 = 5;
const IPVS_DEST_ATTR_L_THRESH: u16 = 6;
const IPVS_DEST_ATTR_ACTIVE_CONNS: u16 = 7;
const IPVS_DEST_ATTR_INACT_CONNS: u16 = 8;
const IPVS_DEST_ATTR_STATS: u16 = 10;
const IPVS_DEST_ATTR_ADDR_FAMILY: u16 = 11;
const IPVS_DEST_ATTR_STATS64: u16 = 12;
const IPVS_STATS_ATTR_CONNS: u16 = 1;
const IP_VS_SVC_F_HASHED: u32 = 0x2;
const IP_VS_CONN_F_MASQ: u32 = 0;
const NO_THRESHOLD: u32 = 0;
// include/uapi/linux/netfilter/nfnetlink.h, nf_tables_compat.h
const NFNL_MSG_COMPAT_GET: u16 = 11 << 8; // of NFNL_SUBSYS_NFT_COMPAT
const NFTA_COMPAT_NAME: u16 = 1;
const NFTA_COMPAT_REV: u16 = 2;
const NFTA_COMPAT_TYPE: u16 = 3;
const NFTA_COMPAT_TYPE_MATCH: u32 = 0;

/// What identifies a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpvsServiceKey {
    /// `IPPROTO_*`
    pub protocol: u8,
    pub address: SocketAddr,
}

/// How a virtual server balances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpvsService {
    pub scheduler: Arc<str>,
    /// `IP_VS_SVC_F_*`, without `IP_VS_SVC_F_HASHED`, which every virtual server in the kernel has.
    pub flags: u32,
    /// Seconds of persistence.
    pub timeout: u32,
}

/// A real server that packets are masqueraded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpvsDestination {
    pub address: SocketAddr,
    pub weight: u32,
}

/// The connections of a real server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpvsConnections {
    pub active: u32,
    pub inactive: u32,
    /// Since the real server was added.
    pub total: u64,
}

/// Seconds after which idle connections expire. In a request, zero keeps the present value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpvsTimeouts {
    pub tcp: u32,
    pub tcp_fin: u32,
    pub udp: u32,
}

/// The version of IPVS, and the number of buckets of its table of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpvsInfo {
    pub version: u32,
    pub connection_buckets: u32,
}

/// A change of one virtual or real server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpvsChange {
    /// `EEXIST` if it exists, `ENOENT` if the kernel has no such scheduler.
    NewService(IpvsServiceKey, IpvsService),
    /// `ESRCH` if it does not exist, `ENOENT` if the kernel has no such scheduler.
    SetService(IpvsServiceKey, IpvsService),
    /// `ESRCH` if it does not exist. Its real servers go with it.
    DeleteService(IpvsServiceKey),
    /// `EEXIST` if it exists, `ESRCH` if the virtual server does not.
    NewDestination(IpvsServiceKey, IpvsDestination),
    /// `ENOENT` if it does not exist, `ESRCH` if the virtual server does not.
    SetDestination(IpvsServiceKey, IpvsDestination),
    /// `ENOENT` if it does not exist, `ESRCH` if the virtual server does not.
    DeleteDestination(IpvsServiceKey, SocketAddr),
}

impl IpvsServiceKey {
    fn to_wire(self, message: &mut Buffer) {
        message.ne16(IPVS_SVC_ATTR_AF, family(self.address.ip()));
        message.ne16(IPVS_SVC_ATTR_PROTOCOL, self.protocol.into());
        write_ip(message, IPVS_SVC_ATTR_ADDR, self.address.ip());
        message.be16(IPVS_SVC_ATTR_PORT, self.address.port());
    }

    /// `None` for a virtual server that a firewall mark identifies.
    fn from_wire(service: Attributes<'_>) -> Option<Self> {
        let family = service.find(IPVS_SVC_ATTR_AF)?.ne16()?;
        let ip = read_ip(service.find(IPVS_SVC_ATTR_ADDR)?, family)?;
        Some(Self {
            protocol: service.find(IPVS_SVC_ATTR_PROTOCOL)?.ne16()?.try_into().ok()?,
            address: SocketAddr::new(ip, service.find(IPVS_SVC_ATTR_PORT)?.be16()?),
        })
    }
}

impl IpvsService {
    fn to_wire(&self, key: IpvsServiceKey, message: &mut Buffer) {
        key.to_wire(message);
        message.string(IPVS_SVC_ATTR_SCHED_NAME, &self.scheduler);
        let [f0, f1, f2, f3] = self.flags.to_ne_bytes();
        // The second number is the mask of the flags that are set.
        message.bytes(IPVS_SVC_ATTR_FLAGS, &[f0, f1, f2, f3, 0xff, 0xff, 0xff, 0xff]);
        message.ne32(IPVS_SVC_ATTR_TIMEOUT, self.timeout);
        message.ne32(IPVS_SVC_ATTR_NETMASK, if key.address.is_ipv4() { u32::MAX } else { 128 });
    }

    /// `None` unless the message is a virtual server that an address identifies.
    fn from_wire(message: &Message<'_>) -> Option<(IpvsServiceKey, Self)> {
        let service = object(message, IPVS_CMD_NEW_SERVICE, IPVS_CMD_ATTR_SERVICE)?;
        let flags = service.find(IPVS_SVC_ATTR_FLAGS)?.value.first_chunk()?;
        let found = Self {
            scheduler: service.find(IPVS_SVC_ATTR_SCHED_NAME)?.str()?.into(),
            flags: u32::from_ne_bytes(*flags) & !IP_VS_SVC_F_HASHED,
            timeout: service.find(IPVS_SVC_ATTR_TIMEOUT)?.ne32()?,
        };
        Some((IpvsServiceKey::from_wire(service)?, found))
    }
}

impl IpvsDestination {
    fn to_wire(self, message: &mut Buffer) {
        write_destination(message, self.address);
        message.ne32(IPVS_DEST_ATTR_FWD_METHOD, IP_VS_CONN_F_MASQ);
        message.ne32(IPVS_DEST_ATTR_WEIGHT, self.weight);
        message.ne32(IPVS_DEST_ATTR_U_THRESH, NO_THRESHOLD);
        message.ne32(IPVS_DEST_ATTR_L_THRESH, NO_THRESHOLD);
        message.ne16(IPVS_DEST_ATTR_ADDR_FAMILY, family(self.address.ip()));
    }

    /// `None` unless the message is a real server.
    fn from_wire(message: &Message<'_>) -> Option<(Self, IpvsConnections)> {
        let destination = object(message, IPVS_CMD_NEW_DEST, IPVS_CMD_ATTR_DEST)?;
        let family = destination.find(IPVS_DEST_ATTR_ADDR_FAMILY)?.ne16()?;
        let ip = read_ip(destination.find(IPVS_DEST_ATTR_ADDR)?, family)?;
        let number = |kind| destination.find(kind)?.ne32();
        let found = Self {
            address: SocketAddr::new(ip, destination.find(IPVS_DEST_ATTR_PORT)?.be16()?),
            weight: number(IPVS_DEST_ATTR_WEIGHT)?,
        };
        let connections = IpvsConnections {
            active: number(IPVS_DEST_ATTR_ACTIVE_CONNS)?,
            inactive: number(IPVS_DEST_ATTR_INACT_CONNS)?,
            total: total_connections(destination)?,
        };
        Some((found, connections))
    }
}

/// Of the statistics in 64 bits if there are any, which kernels before 4.1 lack.
fn total_connections(destination: Attributes<'_>) -> Option<u64> {
    match destination.find(IPVS_DEST_ATTR_STATS64) {
        Some(stats) => stats.nested().find(IPVS_STATS_ATTR_CONNS)?.ne64(),
        None => {
            let stats = destination.find(IPVS_DEST_ATTR_STATS)?.nested();
            stats.find(IPVS_STATS_ATTR_CONNS)?.ne32().map(u64::from)
        }
    }
}

impl IpvsTimeouts {
    fn to_wire(self, message: &mut Buffer) {
        message.ne32(IPVS_CMD_ATTR_TIMEOUT_TCP, self.tcp);
        message.ne32(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, self.tcp_fin);
        message.ne32(IPVS_CMD_ATTR_TIMEOUT_UDP, self.udp);
    }

    fn from_wire(message: &Message<'_>) -> Option<Self> {
        let attributes = answer(message, IPVS_CMD_SET_CONFIG)?;
        let seconds = |kind| attributes.find(kind)?.ne32();
        Some(Self {
            tcp: seconds(IPVS_CMD_ATTR_TIMEOUT_TCP)?,
            tcp_fin: seconds(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN)?,
            udp: seconds(IPVS_CMD_ATTR_TIMEOUT_UDP)?,
        })
    }
}

impl IpvsInfo {
    fn from_wire(message: &Message<'_>) -> Option<Self> {
        let attributes = answer(message, IPVS_CMD_SET_INFO)?;
        Some(Self {
            version: attributes.find(IPVS_INFO_ATTR_VERSION)?.ne32()?,
            connection_buckets: attributes.find(IPVS_INFO_ATTR_CONN_TAB_SIZE)?.ne32()?,
        })
    }
}

impl IpvsChange {
    fn fixed(&self) -> &'static [u8; FIXED] {
        match self {
            Self::NewService(..) => &IPVS_CMD_NEW_SERVICE,
            Self::SetService(..) => &IPVS_CMD_SET_SERVICE,
            Self::DeleteService(_) => &IPVS_CMD_DEL_SERVICE,
            Self::NewDestination(..) => &IPVS_CMD_NEW_DEST,
            Self::SetDestination(..) => &IPVS_CMD_SET_DEST,
            Self::DeleteDestination(..) => &IPVS_CMD_DEL_DEST,
        }
    }

    fn to_wire(&self, message: &mut Buffer) {
        match self {
            Self::NewService(key, service) | Self::SetService(key, service) => {
                message.nest(IPVS_CMD_ATTR_SERVICE, |m| service.to_wire(*key, m));
            }
            Self::DeleteService(key) => write_key(message, *key),
            Self::NewDestination(key, destination) | Self::SetDestination(key, destination) => {
                write_key(message, *key);
                message.nest(IPVS_CMD_ATTR_DEST, |m| destination.to_wire(m));
            }
            Self::DeleteDestination(key, address) => {
                write_key(message, *key);
                message.nest(IPVS_CMD_ATTR_DEST, |m| write_destination(m, *address));
            }
        }
    }
}

/// Reads and changes the servers of one network namespace.
#[derive(Debug)]
pub struct IpvsSocket {
    socket: Socket,
    /// The kind of IPVS messages, which the kernel assigned when the module was loaded.
    kind: u16,
}

impl IpvsSocket {
    /// Belongs to the network namespace of the calling thread. Loads the kernel's module if needed; `ENOENT` if there is none.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::open(NetlinkProtocol::Generic)?;
        let kind = match generic::resolve(&mut socket, IPVS_GENL_NAME) {
            Err(error) if is(&error, Errno::NOENT) => {
                load_module()?;
                generic::resolve(&mut socket, IPVS_GENL_NAME)?
            }
            resolved => resolved?,
        };
        Ok(Self { socket, kind })
    }

    pub fn info(&mut self) -> io::Result<IpvsInfo> {
        let found = self.socket.ask(request(self.kind, &IPVS_CMD_GET_INFO), |_| {}, IpvsInfo::from_wire)?;
        found.first().copied().ok_or_else(incomplete)
    }

    pub fn timeouts(&mut self) -> io::Result<IpvsTimeouts> {
        let request = request(self.kind, &IPVS_CMD_GET_CONFIG);
        let found = self.socket.ask(request, |_| {}, IpvsTimeouts::from_wire)?;
        found.first().copied().ok_or_else(incomplete)
    }

    pub fn set_timeouts(&mut self, timeouts: IpvsTimeouts) -> io::Result<()> {
        let request = request(self.kind, &IPVS_CMD_SET_CONFIG);
        self.socket.ask(request, |m| timeouts.to_wire(m), |_| None::<()>).map(drop)
    }

    /// All virtual servers of both families that an address identifies, in the kernel's order.
    ///
    /// The kernel does not report that the list changed while it was read: if a virtual server is deleted meanwhile, another one
    /// may be missing, and if one is added, another one may be there twice.
    pub fn services(&mut self) -> io::Result<Vec<(IpvsServiceKey, IpvsService)>> {
        let request = request(self.kind, &IPVS_CMD_GET_SERVICE);
        self.socket.dump(request, |_| {}, IpvsService::from_wire)
    }

    /// `None` if there is no such virtual server.
    pub fn service(&mut self, key: IpvsServiceKey) -> io::Result<Option<IpvsService>> {
        let request = request(self.kind, &IPVS_CMD_GET_SERVICE);
        match self.socket.ask(request, |m| write_key(m, key), IpvsService::from_wire) {
            Ok(found) => Ok(found.into_iter().next().map(|(_, service)| service)),
            Err(error) if is(&error, Errno::SRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The real servers of a virtual server, in the kernel's order. None if there is no such virtual server.
    pub fn destinations(
        &mut self,
        key: IpvsServiceKey,
    ) -> io::Result<Vec<(IpvsDestination, IpvsConnections)>> {
        let request = request(self.kind, &IPVS_CMD_GET_DEST);
        self.socket.dump(request, |m| write_key(m, key), IpvsDestination::from_wire)
    }

    /// Sends all changes at once, and returns the results in their order. The kernel continues after a change that it rejects.
    pub fn change(&mut self, changes: &[IpvsChange]) -> io::Result<Vec<io::Result<()>>> {
        let kind = self.kind;
        self.socket.ask_each(changes, |change| request(kind, change.fixed()), IpvsChange::to_wire)
    }
}

/// Lets the kernel load the iptables match `ipvs`, and with it IPVS itself. Kernels such as 5.10 and 5.15 do not load IPVS by the
/// name of its subsystem. No error if they do not load the match either.
fn load_module() -> io::Result<()> {
    let mut socket = Socket::open(NetlinkProtocol::Netfilter)?;
    let request = Request { kind: NFNL_MSG_COMPAT_GET, flags: 0, fixed: &[Family::Ipv4.to_wire(), 0, 0, 0] };
    let body = |message: &mut Buffer| {
        message.string(NFTA_COMPAT_NAME, "ipvs");
        message.be32(NFTA_COMPAT_REV, 0);
        message.be32(NFTA_COMPAT_TYPE, NFTA_COMPAT_TYPE_MATCH);
    };
    let _ = socket.ask(request, body, |_| None::<()>);
    Ok(())
}

const fn request(kind: u16, fixed: &[u8]) -> Request<'_> {
    Request { kind, flags: 0, fixed }
}

/// The attributes of an answer, if it has this command.
fn answer<'a>(message: &Message<'a>, command: [u8; FIXED]) -> Option<Attributes<'a>> {
    let found = message.fixed::<FIXED>()?;
    (found.first() == command.first()).then(|| message.attributes(FIXED))
}

fn object<'a>(message: &Message<'a>, command: [u8; FIXED], kind: u16) -> Option<Attributes<'a>> {
    Some(answer(message, command)?.find(kind)?.nested())
}

fn incomplete() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is incomplete")
}

fn write_key(message: &mut Buffer, key: IpvsServiceKey) {
    message.nest(IPVS_CMD_ATTR_SERVICE, |m| key.to_wire(m));
}

fn write_destination(message: &mut Buffer, address: SocketAddr) {
    write_ip(message, IPVS_DEST_ATTR_ADDR, address.ip());
    message.be16(IPVS_DEST_ATTR_PORT, address.port());
}

fn write_ip(message: &mut Buffer, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => message.bytes(kind, &ip.octets()),
        IpAddr::V6(ip) => message.bytes(kind, &ip.octets()),
    }
}

/// The kernel sends 16 bytes for both families.
fn read_ip(attribute: Attribute<'_>, family: u16) -> Option<IpAddr> {
    match Family::from_wire(family.try_into().ok()?)? {
        Family::Ipv4 => Some(Ipv4Addr::from(*attribute.value.first_chunk::<4>()?).into()),
        Family::Ipv6 => Some(Ipv6Addr::from(*attribute.value.first_chunk::<16>()?).into()),
    }
}

fn family(ip: IpAddr) -> u16 {
    let family = if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    family.to_wire().into()
}

/// Runs every decoder of this module over one message; see [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn decode_all(message: &Message<'_>) {
    let _ = (IpvsService::from_wire(message), IpvsDestination::from_wire(message));
    let _ = (IpvsTimeouts::from_wire(message), IpvsInfo::from_wire(message), generic::family_id(message));
}

// The recorded bytes are little-endian.
#[cfg(target_endian = "little")]
#[cfg(test)]
mod tests;
