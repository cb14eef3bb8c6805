//! Packets that rules report to whoever listens, by the number of a group: what the tool `ulogd` hears.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::io::Errno;

use crate::conntrack::Direction;
use crate::message::Message;
use crate::socket::{Protocol, Request, Socket, is, is_loss};

// include/uapi/linux/netfilter/nfnetlink.h
const NFNL_SUBSYS_ULOG: u8 = 4;
// include/uapi/linux/netfilter/nfnetlink_log.h
const NFULNL_MSG_PACKET: u8 = 0;
const NFULNL_MSG_CONFIG: u8 = 1;
const NFULA_PAYLOAD: u16 = 9;
const NFULA_CFG_CMD: u16 = 1;
const NFULNL_CFG_CMD_BIND: u8 = 1;

/// The size of `struct nfgenmsg`.
const FIXED: usize = 4;

/// Where to look for a group that nobody listens to. People who choose one by hand choose a small number.
const FIRST_GROUP: u16 = 0x5c00;
const GROUPS: u16 = 64;

/// As much of a packet as has to be seen to know its ports, whatever headers IPv6 puts before them.
pub const ENOUGH: u32 = 256;

const fn kind(message: u8) -> u16 {
    u16::from_be_bytes([NFNL_SUBSYS_ULOG, message])
}

/// Hears the packets of one group in one network namespace.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    group: u16,
}

impl Listener {
    /// Takes a group that nobody listens to. Belongs to the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for group in FIRST_GROUP..FIRST_GROUP + GROUPS {
            let [high, low] = group.to_be_bytes();
            let fixed = [0, 0, high, low];
            let request = Request { kind: kind(NFULNL_MSG_CONFIG), flags: 0, fixed: &fixed };
            match socket.ask(request, |m| m.u8(NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND), |_| None::<()>) {
                Ok(_) => return Ok(Self { socket, group }),
                // What another process listens to we may not touch.
                Err(error) if is(&error, Errno::BUSY) || is(&error, Errno::PERM) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// For rules that report.
    #[must_use]
    pub fn group(&self) -> u16 {
        self.group
    }

    /// The packets reported next; none if there were none within that time. Some may be lost when there are many.
    pub fn receive_within(&mut self, time: Duration) -> io::Result<Vec<Direction>> {
        match self.socket.receive_within(time) {
            Ok(messages) => Ok(messages.into_iter().flatten().filter_map(|m| packet(&m)).collect()),
            Err(error) if is_loss(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

fn packet(message: &Message<'_>) -> Option<Direction> {
    if message.header.kind != kind(NFULNL_MSG_PACKET) {
        return None;
    }
    Direction::of_packet(message.attributes(FIXED).find(NFULA_PAYLOAD)?.value)
}

impl Direction {
    /// Where a packet that begins with its IP header comes from and goes to; `None` if it has no ports.
    fn of_packet(bytes: &[u8]) -> Option<Self> {
        let (protocol, source, destination, transport) = match bytes.first()? >> 4 {
            4 => ipv4(bytes)?,
            6 => ipv6(bytes)?,
            _ => return None,
        };
        let port = |at: usize| transport.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes);
        matches!(protocol, TCP | UDP | SCTP).then_some(())?;
        Some(Self {
            protocol,
            source: SocketAddr::new(source, port(0)?),
            destination: SocketAddr::new(destination, port(2)?),
        })
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

type Opened<'a> = (u8, IpAddr, IpAddr, &'a [u8]);

fn ipv4(bytes: &[u8]) -> Option<Opened<'_>> {
    let ip = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?).into());
    let length = usize::from(bytes.first()? & 0xf) * 4;
    Some((*bytes.get(9)?, ip(12)?, ip(16)?, bytes.get(length..)?))
}

fn ipv6(bytes: &[u8]) -> Option<Opened<'_>> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const OPTIONS: u8 = 60;
    let ip = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?).into());
    let (mut next, mut rest) = (*bytes.get(6)?, bytes.get(40..)?);
    while matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | OPTIONS) {
        let more = if next == FRAGMENT { 0 } else { usize::from(*rest.get(1)?) };
        next = *rest.first()?;
        rest = rest.get((more + 1) * 8..)?;
    }
    Some((next, ip(8)?, ip(24)?, rest))
}

pub(crate) fn decode_all(message: &Message<'_>) {
    let _ = packet(message);
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::testing::{in_fresh_netns, run};

    #[test]
    fn packets_are_reported_with_their_addresses() {
        in_fresh_netns(|| {
            run("ip link set lo up");
            let mut listener = Listener::open().unwrap();
            let mut other = Listener::open().unwrap();
            assert_ne!(listener.group(), other.group(), "that one is taken");
            for (family, here) in [("ip", "127.0.0.1"), ("ip6", "::1")] {
                run(&format!("nft add table {family} t"));
                run(&format!("nft add chain {family} t c {{ type filter hook output priority 0; }}"));
                let group = listener.group();
                run(&format!("nft add rule {family} t c udp dport 53 log group {group} queue-threshold 1"));
                let socket = UdpSocket::bind((here, 4000)).unwrap();
                let to: SocketAddr = (here.parse::<IpAddr>().unwrap(), 53).into();
                socket.send_to(b"a question", to).unwrap();
                let heard = listener.receive_within(Duration::from_secs(10)).unwrap();
                let wanted =
                    Direction { protocol: UDP, source: socket.local_addr().unwrap(), destination: to };
                assert_eq!(heard, [wanted]);
            }
            assert_eq!(other.receive_within(Duration::ZERO).unwrap(), []);
        });
    }

    #[test]
    fn headers_before_the_ports_are_skipped() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 24, 0, 64];
        packet.extend([0; 15].iter().chain(&[1]));
        packet.extend([0; 15].iter().chain(&[2]));
        packet.extend([44, 0, 0, 0, 0, 0, 0, 0]); // options
        packet.extend([17, 9, 0, 0, 0, 0, 0, 0]); // fragment, which has no length
        packet.extend([0x0f, 0xa0, 0, 53, 0, 8, 0, 0]);
        let direction = Direction::of_packet(&packet).unwrap();
        assert_eq!(direction.source, "[::1]:4000".parse().unwrap());
        assert_eq!(direction.destination, "[::2]:53".parse().unwrap());
    }

    #[test]
    fn what_is_cut_short_or_has_no_ports_is_nothing() {
        let mut whole = vec![0x46, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 1];
        whole.extend([0x0f, 0xa0, 0, 53]);
        assert!(Direction::of_packet(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(Direction::of_packet(&whole[..length]), None, "{length}");
        }
        whole[9] = 1; // ICMP
        assert_eq!(Direction::of_packet(&whole), None);
        whole[0] = 0x56;
        assert_eq!(Direction::of_packet(&whole), None);
    }
}
