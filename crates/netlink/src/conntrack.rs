//! The kernel's table of flows: which of them there are, and ending some.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;

use crate::Family;
use crate::attributes::Attributes;
use crate::buffer::Buffer;
use crate::message::Message;
use crate::socket::{NetlinkProtocol, Request, Socket, is};

// include/uapi/linux/netfilter/nfnetlink.h
const NFNL_SUBSYS_CTNETLINK: u8 = 1;
// include/uapi/linux/netfilter/nfnetlink_conntrack.h
const IPCTNL_MSG_CT_NEW: u8 = 0;
const IPCTNL_MSG_CT_GET: u8 = 1;
const IPCTNL_MSG_CT_DELETE: u8 = 2;
const IPCTNL_MSG_CT_GET_STATS: u8 = 5;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
const CTA_STATUS_MASK: u16 = 26;
const CTA_STATS_GLOBAL_ENTRIES: u16 = 1;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
// include/uapi/linux/netfilter/nf_conntrack_common.h
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_DST_NAT: u32 = 1 << 5;
#[cfg(any(test, feature = "testing"))]
mod made {
    pub const CTA_PROTOINFO: u16 = 4;
    pub const CTA_TIMEOUT: u16 = 7;
    pub const CTA_PROTOINFO_TCP: u16 = 1;
    pub const CTA_PROTOINFO_TCP_STATE: u16 = 1;
    pub const TCP_CONNTRACK_SYN_SENT: u8 = 1;
    pub const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
    pub const IPS_ASSURED: u32 = 1 << 2;
    pub const IPS_CONFIRMED: u32 = 1 << 3;
    pub const TCP: u8 = 6;
    /// `NLM_F_CREATE`.
    pub const CREATE: u16 = 0x400;
}
#[cfg(any(test, feature = "testing"))]
use made::*;
// net/netfilter/nf_internals.h
const CTA_FILTER_F_CTA_IP_DST: u32 = 1 << 1;
const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;

/// The size of `struct nfgenmsg`.
const FIXED: usize = 4;

/// The number of flows per system call.
const FLOWS_PER_SEND: usize = 256;

const fn kind(message: u8) -> u16 {
    u16::from_be_bytes([NFNL_SUBSYS_CTNETLINK, message])
}

/// A conntrack entry: the tuples of its packets in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub original: Tuple,
    pub reply: Tuple,
    /// Whether a packet in the reply direction has been seen.
    pub has_reply: bool,
}

/// Selects the flows to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    pub protocol: u8,
    /// Only flows to this address.
    pub destination: Option<IpAddr>,
    /// Only flows without replies whose destination was not translated.
    pub only_attempts: bool,
}

impl Filter {
    /// Applied to every flow, because kernels ignore filters that they do not know.
    fn accepts(&self, flow: &Flow) -> bool {
        flow.original.protocol == self.protocol
            && self.destination.is_none_or(|ip| flow.original.destination.ip() == ip)
            && !(self.only_attempts && (flow.has_reply || flow.is_translated()))
    }

    fn to_wire(self, message: &mut Buffer) {
        let mut by = CTA_FILTER_F_CTA_PROTO_NUM;
        message.nest(CTA_TUPLE_ORIG, |m| {
            // For IPv6 the kernel would return the flows to other addresses: `ctnetlink_filter_match_tuple` inverts the test.
            if let Some(IpAddr::V4(ip)) = self.destination {
                by |= CTA_FILTER_F_CTA_IP_DST;
                m.nest(CTA_TUPLE_IP, |m| m.bytes(CTA_IP_V4_DST, &ip.octets()));
            }
            m.nest(CTA_TUPLE_PROTO, |m| m.u8(CTA_PROTO_NUM, self.protocol));
        });
        message.nest(CTA_FILTER, |m| {
            m.ne32(CTA_FILTER_ORIG_FLAGS, by);
            m.ne32(CTA_FILTER_REPLY_FLAGS, 0);
        });
        if self.only_attempts {
            message.be32(CTA_STATUS, 0);
            message.be32(CTA_STATUS_MASK, IPS_SEEN_REPLY | IPS_DST_NAT);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub protocol: u8,
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// Identifies a flow to the kernel, in the bytes that the kernel sent.
#[derive(Clone, Debug)]
pub struct Handle {
    tuple: Vec<u8>,
    zone: Option<u16>,
    /// Distinguishes the flow from a later one with the same tuple.
    id: Option<u32>,
}

impl Flow {
    /// `None` unless the message is a flow of a protocol with ports.
    #[must_use]
    pub fn from_wire(message: &Message<'_>) -> Option<Self> {
        if message.header.kind != kind(IPCTNL_MSG_CT_NEW) {
            return None;
        }
        let attributes = message.attributes(FIXED);
        Some(Self {
            original: Tuple::from_wire(attributes.find(CTA_TUPLE_ORIG)?.nested())?,
            reply: Tuple::from_wire(attributes.find(CTA_TUPLE_REPLY)?.nested())?,
            has_reply: attributes.find(CTA_STATUS)?.be32()? & IPS_SEEN_REPLY != 0,
        })
    }

    /// Whether replies come from another address or port than the client sent to.
    #[must_use]
    pub fn is_translated(&self) -> bool {
        self.original.destination != self.reply.source
    }
}

impl Tuple {
    fn from_wire(tuple: Attributes<'_>) -> Option<Self> {
        let (ip, proto) = (tuple.find(CTA_TUPLE_IP)?.nested(), tuple.find(CTA_TUPLE_PROTO)?.nested());
        let address = |v4: u16, v6: u16| match ip.find(v4) {
            Some(found) => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(found.value).ok()?))),
            None => Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip.find(v6)?.value).ok()?))),
        };
        let port = |kind: u16| proto.find(kind)?.be16();
        Some(Self {
            protocol: proto.find(CTA_PROTO_NUM)?.u8()?,
            source: SocketAddr::new(address(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?, port(CTA_PROTO_SRC_PORT)?),
            destination: SocketAddr::new(address(CTA_IP_V4_DST, CTA_IP_V6_DST)?, port(CTA_PROTO_DST_PORT)?),
        })
    }

    #[cfg(any(test, feature = "testing"))]
    fn to_wire(self, message: &mut Buffer) {
        message.nest(CTA_TUPLE_IP, |m| {
            let mut address = |ip, v4, v6| match ip {
                IpAddr::V4(ip) => m.bytes(v4, &ip.octets()),
                IpAddr::V6(ip) => m.bytes(v6, &ip.octets()),
            };
            address(self.source.ip(), CTA_IP_V4_SRC, CTA_IP_V6_SRC);
            address(self.destination.ip(), CTA_IP_V4_DST, CTA_IP_V6_DST);
        });
        message.nest(CTA_TUPLE_PROTO, |m| {
            m.u8(CTA_PROTO_NUM, self.protocol);
            m.be16(CTA_PROTO_SRC_PORT, self.source.port());
            m.be16(CTA_PROTO_DST_PORT, self.destination.port());
        });
    }
}

impl Handle {
    fn from_wire(message: &Message<'_>) -> Option<Self> {
        let attributes = message.attributes(FIXED);
        Some(Self {
            tuple: attributes.find(CTA_TUPLE_ORIG)?.value.to_vec(),
            zone: attributes.find(CTA_ZONE).and_then(|zone| zone.be16()),
            id: attributes.find(CTA_ID).and_then(|id| id.be32()),
        })
    }

    fn to_wire(&self, message: &mut Buffer) {
        message.nest(CTA_TUPLE_ORIG, |m| m.raw(&self.tuple));
        if let Some(zone) = self.zone {
            message.be16(CTA_ZONE, zone);
        }
        if let Some(id) = self.id {
            message.be32(CTA_ID, id);
        }
    }
}

/// Lists and deletes the flows of one network namespace.
#[derive(Debug)]
pub struct ConntrackSocket {
    socket: Socket,
}

impl ConntrackSocket {
    /// Belongs to the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(NetlinkProtocol::Netfilter)? })
    }

    /// The number of flows of all families and protocols.
    pub fn count(&mut self) -> io::Result<u32> {
        let request = Request { kind: kind(IPCTNL_MSG_CT_GET_STATS), flags: 0, fixed: &[0; FIXED] };
        let read = |message: &Message<'_>| message.attributes(FIXED).find(CTA_STATS_GLOBAL_ENTRIES)?.be32();
        let found = self.socket.ask(request, |_| {}, read)?;
        found.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The flows that match the filter and that `select` accepts. The kernel applies the filter as far as it can (protocol and
    /// address since 5.8, status since 5.18), and we apply all of it again. The kernel walks its whole table in any case.
    pub fn flows(
        &mut self,
        family: Family,
        filter: Filter,
        mut select: impl FnMut(&Flow) -> bool,
    ) -> io::Result<Vec<(Flow, Handle)>> {
        let fixed = [family.to_wire(), 0, 0, 0];
        let request = Request { kind: kind(IPCTNL_MSG_CT_GET), flags: 0, fixed: &fixed };
        let mut read = |message: &Message<'_>| {
            let flow = Flow::from_wire(message)?;
            let is_selected = filter.accepts(&flow) && select(&flow);
            is_selected.then(|| Handle::from_wire(message)).flatten().map(|handle| (flow, handle))
        };
        match self.socket.dump(request, |message| filter.to_wire(message), &mut read) {
            Err(error) if is(&error, Errno::OPNOTSUPP) || is(&error, Errno::INVAL) => {
                self.socket.dump(request, |_| {}, read)
            }
            dumped => dumped,
        }
    }

    /// Deletes flows, and returns their number, including those that no longer existed.
    pub fn end(&mut self, family: Family, flows: &[(Flow, Handle)]) -> io::Result<usize> {
        let fixed = [family.to_wire(), 0, 0, 0];
        let request = Request { kind: kind(IPCTNL_MSG_CT_DELETE), flags: 0, fixed: &fixed };
        for chunk in flows.chunks(FLOWS_PER_SEND) {
            let body = |(_, handle): &(Flow, Handle), message: &mut Buffer| handle.to_wire(message);
            for ended in self.socket.ask_each(chunk, |_| request, body)? {
                match ended {
                    Err(error) if !is(&error, Errno::NOENT) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(flows.len())
    }

    /// Deletes the flows that still have no reply, and returns their number. Looks each one up first, so that a connection that
    /// was established after the flows were listed is not cut.
    pub fn end_unanswered(&mut self, family: Family, flows: &[(Flow, Handle)]) -> io::Result<usize> {
        let fixed = [family.to_wire(), 0, 0, 0];
        let request = Request { kind: kind(IPCTNL_MSG_CT_GET), flags: 0, fixed: &fixed };
        let mut ended = 0;
        for flow in flows {
            match self.socket.ask(request, |message| flow.1.to_wire(message), Flow::from_wire) {
                Ok(found) if found.iter().any(|found| found.has_reply) => {}
                Ok(_) => ended += self.end(family, std::slice::from_ref(flow))?,
                Err(error) if is(&error, Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ended)
    }
}

/// Creates flows without packets, for benchmarks and tests.
#[cfg(any(test, feature = "testing"))]
impl ConntrackSocket {
    /// Creates flows with a timeout of one hour.
    pub fn make(&mut self, family: Family, flows: &[Flow]) -> io::Result<()> {
        let fixed = [family.to_wire(), 0, 0, 0];
        let request = Request { kind: kind(IPCTNL_MSG_CT_NEW), flags: CREATE, fixed: &fixed };
        for chunk in flows.chunks(FLOWS_PER_SEND) {
            for made in self.socket.ask_each(chunk, |_| request, Flow::write)? {
                made?;
            }
        }
        Ok(())
    }

    /// The flow that a packet belongs to, in either direction. `None` if there is none in the default zone.
    pub fn find(&mut self, family: Family, packet: Tuple) -> io::Result<Option<(Flow, Handle)>> {
        let fixed = [family.to_wire(), 0, 0, 0];
        let request = Request { kind: kind(IPCTNL_MSG_CT_GET), flags: 0, fixed: &fixed };
        let body = |message: &mut Buffer| message.nest(CTA_TUPLE_ORIG, |m| packet.to_wire(m));
        let read = |message: &Message<'_>| Some((Flow::from_wire(message)?, Handle::from_wire(message)?));
        match self.socket.ask(request, body, read) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if is(&error, Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Flow {
    /// A flow with replies and without translation.
    #[must_use]
    pub fn untranslated(original: Tuple) -> Self {
        let reply = Tuple { source: original.destination, destination: original.source, ..original };
        Self { original, reply, has_reply: true }
    }

    /// A flow with replies whose destination is translated to `to`.
    #[must_use]
    pub fn translated(original: Tuple, to: SocketAddr) -> Self {
        let flow = Self::untranslated(original);
        Self { reply: Tuple { source: to, ..flow.reply }, ..flow }
    }

    fn write(&self, message: &mut Buffer) {
        message.nest(CTA_TUPLE_ORIG, |m| self.original.to_wire(m));
        message.nest(CTA_TUPLE_REPLY, |m| self.reply.to_wire(m));
        message.be32(CTA_TIMEOUT, 3_600);
        if self.has_reply {
            message.be32(CTA_STATUS, IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED);
        }
        if self.original.protocol == TCP {
            let state = if self.has_reply { TCP_CONNTRACK_ESTABLISHED } else { TCP_CONNTRACK_SYN_SENT };
            message.nest(CTA_PROTOINFO, |m| {
                m.nest(CTA_PROTOINFO_TCP, |m| m.u8(CTA_PROTOINFO_TCP_STATE, state));
            });
        }
    }
}

/// Runs every decoder of this module over one message; see [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn decode_all(message: &Message<'_>) {
    let _ = (Flow::from_wire(message), Handle::from_wire(message));
}
