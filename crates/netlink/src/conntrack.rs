//! The kernel's table of flows: which of them there are, and ending some.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;

use crate::Family;
use crate::attributes::Attributes;
use crate::buffer::Buffer;
use crate::message::Message;
use crate::socket::{Protocol, Request, Socket, is};

// include/uapi/linux/netfilter/nfnetlink.h
const NFNL_SUBSYS_CTNETLINK: u8 = 1;
// include/uapi/linux/netfilter/nfnetlink_conntrack.h
const IPCTNL_MSG_CT_NEW: u8 = 0;
const IPCTNL_MSG_CT_GET: u8 = 1;
const IPCTNL_MSG_CT_DELETE: u8 = 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
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
#[cfg(any(test, feature = "testing"))]
mod made {
    pub const CTA_PROTOINFO: u16 = 4;
    pub const CTA_TIMEOUT: u16 = 7;
    pub const CTA_PROTOINFO_TCP: u16 = 1;
    pub const CTA_PROTOINFO_TCP_STATE: u16 = 1;
    pub const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
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

/// Flows ended with one call to the kernel.
const AT_ONCE: usize = 256;

const fn kind(message: u8) -> u16 {
    u16::from_be_bytes([NFNL_SUBSYS_CTNETLINK, message])
}

/// A flow: where its first packet came from and went to, and who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub original: Direction,
    pub reply: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Direction {
    pub protocol: u8,
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// What the kernel calls a flow, in its own bytes, to be given back to it.
#[derive(Clone, Debug)]
pub struct Handle {
    tuple: Vec<u8>,
    zone: Option<u16>,
    /// Keeps us from ending a later flow between the same two.
    id: Option<u32>,
}

impl Flow {
    /// `None` for anything but a flow between ports.
    #[must_use]
    pub fn from_wire(message: &Message<'_>) -> Option<Self> {
        if message.header.kind != kind(IPCTNL_MSG_CT_NEW) {
            return None;
        }
        let attributes = message.attributes(FIXED);
        Some(Self {
            original: Direction::from_wire(attributes.find(CTA_TUPLE_ORIG)?.nested())?,
            reply: Direction::from_wire(attributes.find(CTA_TUPLE_REPLY)?.nested())?,
        })
    }
}

impl Direction {
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

/// A socket for the flows of one network namespace.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

impl Connection {
    /// Belongs to the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)? })
    }

    /// The flows of one protocol, and to one address if one is given, that are `wanted`. The kernel leaves out others where
    /// it knows how to (5.8 and later); elsewhere we do. It goes through all of them either way.
    pub fn flows(
        &mut self,
        family: Family,
        protocol: u8,
        destination: Option<IpAddr>,
        mut wanted: impl FnMut(&Flow) -> bool,
    ) -> io::Result<Vec<Handle>> {
        let fixed = [family.to_wire(), 0, 0, 0];
        let request = Request { kind: kind(IPCTNL_MSG_CT_GET), flags: 0, fixed: &fixed };
        let those = |message: &mut Buffer| {
            let mut by = CTA_FILTER_F_CTA_PROTO_NUM;
            message.nest(CTA_TUPLE_ORIG, |m| {
                // Of IPv6 addresses it gives those that are different: `ctnetlink_filter_match_tuple` has it the wrong way round.
                if let Some(IpAddr::V4(ip)) = destination {
                    by |= CTA_FILTER_F_CTA_IP_DST;
                    m.nest(CTA_TUPLE_IP, |m| m.bytes(CTA_IP_V4_DST, &ip.octets()));
                }
                m.nest(CTA_TUPLE_PROTO, |m| m.u8(CTA_PROTO_NUM, protocol));
            });
            message.nest(CTA_FILTER, |m| {
                m.ne32(CTA_FILTER_ORIG_FLAGS, by);
                m.ne32(CTA_FILTER_REPLY_FLAGS, 0);
            });
        };
        let mut read = |message: &Message<'_>| {
            let flow = Flow::from_wire(message)?;
            let is_of_those = flow.original.protocol == protocol
                && destination.is_none_or(|ip| flow.original.destination.ip() == ip);
            (is_of_those && wanted(&flow)).then(|| Handle::from_wire(message)).flatten()
        };
        match self.socket.dump(request, those, &mut read) {
            Err(error) if is(&error, Errno::OPNOTSUPP) || is(&error, Errno::INVAL) => {
                self.socket.dump(request, |_| {}, read)
            }
            dumped => dumped,
        }
    }

    /// The flow that has packets of this kind, of either direction; `None` if there is none, or in no zone that we know of.
    pub fn find(&mut self, family: Family, packet: Direction) -> io::Result<Option<(Flow, Handle)>> {
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

    /// Ends flows. Returns how many; those that have ended by themselves count too.
    pub fn end(&mut self, family: Family, flows: &[Handle]) -> io::Result<usize> {
        let fixed = [family.to_wire(), 0, 0, 0];
        let request = Request { kind: kind(IPCTNL_MSG_CT_DELETE), flags: 0, fixed: &fixed };
        for some in flows.chunks(AT_ONCE) {
            for ended in self.socket.ask_each(request, some, |flow, message| flow.to_wire(message))? {
                match ended {
                    Err(error) if !is(&error, Errno::NOENT) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(flows.len())
    }
}

/// For benchmarks and tests that need flows nobody sends packets for.
#[cfg(any(test, feature = "testing"))]
impl Connection {
    /// Makes flows that are not translated and live for an hour.
    pub fn make(&mut self, family: Family, flows: &[Direction]) -> io::Result<()> {
        let fixed = [family.to_wire(), 0, 0, 0];
        let request = Request { kind: kind(IPCTNL_MSG_CT_NEW), flags: CREATE, fixed: &fixed };
        for some in flows.chunks(AT_ONCE) {
            for made in self.socket.ask_each(request, some, Direction::write_flow)? {
                made?;
            }
        }
        Ok(())
    }
}

#[cfg(any(test, feature = "testing"))]
impl Direction {
    /// Both directions of a flow, the other one being this one turned round, and what a flow has to have.
    fn write_flow(&self, message: &mut Buffer) {
        let turned = Self { source: self.destination, destination: self.source, ..*self };
        message.nest(CTA_TUPLE_ORIG, |m| self.to_wire(m));
        message.nest(CTA_TUPLE_REPLY, |m| turned.to_wire(m));
        message.be32(CTA_TIMEOUT, 3_600);
        if self.protocol == TCP {
            message.nest(CTA_PROTOINFO, |m| {
                m.nest(CTA_PROTOINFO_TCP, |m| m.u8(CTA_PROTOINFO_TCP_STATE, TCP_CONNTRACK_ESTABLISHED));
            });
        }
    }
}

pub(crate) fn decode_all(message: &Message<'_>) {
    let _ = (Flow::from_wire(message), Handle::from_wire(message));
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::testing::{in_fresh_netns, run};

    const UDP: u8 = 17;

    /// Makes the kernel follow flows on the loopback, and sends one packet from each port to port 53 there.
    fn send(ip: &str, ports: std::ops::Range<u16>) -> Vec<UdpSocket> {
        run("ip link set lo up");
        for family in ["ip", "ip6"] {
            run(&format!("nft add table {family} t"));
            run(&format!("nft add chain {family} t c {{ type filter hook output priority 0; }}"));
            run(&format!("nft add rule {family} t c ct state invalid drop"));
        }
        let to: SocketAddr = (ip.parse::<IpAddr>().unwrap(), 53).into();
        let from = |port| {
            let socket = UdpSocket::bind((ip, port)).unwrap();
            socket.send_to(b"x", to).unwrap();
            socket
        };
        ports.map(from).collect()
    }

    fn sources(connection: &mut Connection, family: Family) -> Vec<SocketAddr> {
        let mut sources = Vec::new();
        connection
            .flows(family, UDP, None, |flow| {
                sources.push(flow.original.source);
                false
            })
            .unwrap();
        sources.sort();
        sources
    }

    #[test]
    fn flows_are_found_and_ended_one_by_one() {
        in_fresh_netns(|| {
            let _sockets = send("127.0.0.1", 4000..4600);
            let mut connection = Connection::open().unwrap();
            assert_eq!(sources(&mut connection, Family::Ipv4).len(), 600);
            assert_eq!(sources(&mut connection, Family::Ipv6).len(), 0);
            let all_but_two = connection
                .flows(Family::Ipv4, UDP, None, |flow| {
                    assert_eq!(flow.original.destination, flow.reply.source, "nobody translates");
                    ![4000, 4599].contains(&flow.original.source.port())
                })
                .unwrap();
            assert_eq!(connection.end(Family::Ipv4, &all_but_two).unwrap(), 598);
            let left: Vec<_> = sources(&mut connection, Family::Ipv4).iter().map(SocketAddr::port).collect();
            assert_eq!(left, [4000, 4599]);
            assert_eq!(connection.end(Family::Ipv4, &all_but_two).unwrap(), 598, "gone already");
        });
    }

    #[test]
    fn a_flow_is_found_by_a_packet_of_either_direction() {
        in_fresh_netns(|| {
            let _sockets = (send("127.0.0.1", 4000..4002), send("::1", 4000..4002));
            let mut connection = Connection::open().unwrap();
            for (family, ip) in [(Family::Ipv4, "127.0.0.1"), (Family::Ipv6, "::1")] {
                let at = |port| SocketAddr::new(ip.parse().unwrap(), port);
                let packet = |from, to| Direction { protocol: UDP, source: at(from), destination: at(to) };
                let (flow, handle) = connection.find(family, packet(4000, 53)).unwrap().unwrap();
                assert_eq!(flow.original, packet(4000, 53));
                assert_eq!(flow.reply, packet(53, 4000));
                let (same, _) = connection.find(family, packet(53, 4000)).unwrap().unwrap();
                assert_eq!(same, flow);
                assert!(connection.find(family, packet(4002, 53)).unwrap().is_none());
                assert_eq!(connection.end(family, &[handle]).unwrap(), 1);
                assert!(connection.find(family, packet(4000, 53)).unwrap().is_none());
                assert!(connection.find(family, packet(4001, 53)).unwrap().is_some());
            }
        });
    }

    #[test]
    fn flows_of_the_other_family_and_of_other_protocols_are_left_out() {
        in_fresh_netns(|| {
            let _sockets = send("::1", 4000..4001);
            let listener = std::net::TcpListener::bind("[::1]:80").unwrap();
            let _stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut connection = Connection::open().unwrap();
            assert_eq!(sources(&mut connection, Family::Ipv4), []);
            assert_eq!(sources(&mut connection, Family::Ipv6), ["[::1]:4000".parse().unwrap()]);
            assert_eq!(connection.flows(Family::Ipv6, 6, None, |_| true).unwrap().len(), 1);
        });
    }

    #[test]
    fn only_flows_to_one_address_can_be_asked_for() {
        in_fresh_netns(|| {
            let _sockets = (send("127.0.0.1", 4000..4003), send("::1", 4000..4003));
            let other = UdpSocket::bind("127.0.0.1:4500").unwrap();
            other.send_to(b"x", "127.0.0.2:53").unwrap();
            let mut connection = Connection::open().unwrap();
            let mut count = |family, ip: &str| {
                let mut seen = 0;
                let see = |_: &Flow| {
                    seen += 1;
                    false
                };
                connection.flows(family, UDP, Some(ip.parse().unwrap()), see).unwrap();
                seen
            };
            assert_eq!(count(Family::Ipv4, "127.0.0.1"), 3);
            assert_eq!(count(Family::Ipv4, "127.0.0.2"), 1);
            assert_eq!(count(Family::Ipv4, "127.0.0.3"), 0);
            assert_eq!(count(Family::Ipv6, "::1"), 3);
        });
    }
}
