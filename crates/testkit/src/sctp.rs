//! Just enough SCTP over raw sockets to open an association: the kernel may have no SCTP of its own.
//!
//! A client sends INIT; a server answers with an INIT ACK that carries its payload in a parameter.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
/// Offset of the payload in an INIT ACK: common header, chunk, parameter header.
const PAYLOAD: usize = 12 + 20 + 4;

/// A raw socket bound to one address. It receives the packets to all ports of that address.
#[derive(Debug)]
pub struct SctpSocket(OwnedFd);

#[derive(Debug)]
pub struct SctpPacket {
    pub source: u16,
    pub destination: u16,
    tag: [u8; 4],
    /// `None` in an INIT, `Some` in an INIT ACK.
    pub payload: Option<String>,
}

impl SctpSocket {
    pub fn bind(address: IpAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket =
            rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::SCTP))?;
        rustix::net::bind(&socket, &SocketAddr::new(address, 0))?;
        Ok(Self(socket))
    }

    /// From here on the socket receives only packets and errors from `to`.
    pub fn connect(&self, to: IpAddr) -> io::Result<()> {
        Ok(rustix::net::connect(&self.0, &SocketAddr::new(to, 0))?)
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Sends an INIT to the address that the socket is connected to.
    pub fn send_init(&self, source: u16, destination: u16) -> io::Result<()> {
        let packet = packet(source, destination, [0; 4], INIT, b"");
        rustix::net::send(&self.0, &packet, SendFlags::empty())?;
        Ok(())
    }

    /// Answers an INIT.
    pub fn answer(&self, init: &SctpPacket, to: IpAddr, payload: &str) -> io::Result<()> {
        let packet = packet(init.destination, init.source, init.tag, INIT_ACK, payload.as_bytes());
        rustix::net::sendto(&self.0, &packet, SendFlags::empty(), &SocketAddr::new(to, 0))?;
        Ok(())
    }

    /// Returns the next packet and its source, or `None` if it is neither INIT nor INIT ACK.
    pub fn receive(&self) -> io::Result<Option<(SctpPacket, IpAddr)>> {
        let mut buffer = [0; 512];
        let (_, length, from) = rustix::net::recvfrom(&self.0, &mut buffer[..], RecvFlags::empty())?;
        let Some(Ok(from)) = from.map(SocketAddr::try_from) else { return Ok(None) };
        let mut bytes = &buffer[..length];
        if from.is_ipv4() {
            // IPv4 raw sockets deliver the IP header, too.
            bytes = &bytes[usize::from(bytes[0] & 0xf) * 4..];
        }
        Ok(SctpPacket::from_wire(bytes).map(|packet| (packet, from.ip())))
    }
}

impl SctpPacket {
    fn from_wire(bytes: &[u8]) -> Option<Self> {
        let port = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let payload = match *bytes.get(12)? {
            INIT => None,
            INIT_ACK => {
                let length = usize::from(port(PAYLOAD - 2)?).checked_sub(4)?;
                Some(String::from_utf8_lossy(bytes.get(PAYLOAD..PAYLOAD + length)?).into_owned())
            }
            _ => return None,
        };
        let tag = bytes.get(16..20)?.try_into().ok()?;
        Some(Self { source: port(0)?, destination: port(2)?, tag, payload })
    }
}

fn packet(source: u16, destination: u16, tag: [u8; 4], chunk: u8, payload: &[u8]) -> Vec<u8> {
    let padded = payload.len().next_multiple_of(4);
    let parameter = if payload.is_empty() { 0 } else { 4 + padded };
    let length = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
    let mut bytes = Vec::new();
    bytes.extend(source.to_be_bytes());
    bytes.extend(destination.to_be_bytes());
    bytes.extend(tag);
    bytes.extend([0; 4]); // checksum, filled in below
    bytes.extend([chunk, 0]);
    bytes.extend(length(20 + parameter));
    bytes.extend(u32::from(source).wrapping_add(0x0101_0101).to_be_bytes()); // initiate tag
    bytes.extend(0x10000_u32.to_be_bytes()); // receive window
    bytes.extend([0, 1, 0, 1]); // outbound and inbound streams
    bytes.extend([0, 0, 0, 1]); // initial TSN
    if !payload.is_empty() {
        bytes.extend([0xc0, 1]); // a parameter that a receiver skips if it does not know it
        bytes.extend(length(4 + payload.len()));
        bytes.extend(payload);
        bytes.resize(PAYLOAD + padded, 0);
    }
    let checksum = crc32c(&bytes).to_le_bytes();
    bytes[8..12].copy_from_slice(&checksum);
    bytes
}

/// RFC 9260, appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }))
    })
}

#[test]
fn crc32c_matches_the_check_value() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
