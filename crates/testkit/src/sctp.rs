//! Just enough SCTP to open an association and to be answered, by hand, for the kernel may have none.
//!
//! A client sends INIT; a server answers with an INIT ACK that carries its words in a parameter.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
/// Offset of the words in an INIT ACK: common header, chunk, parameter header.
const WORDS: usize = 12 + 20 + 4;

/// A socket for the packets of one address. Ports are the caller's business.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// What a packet says.
#[derive(Debug)]
pub struct Packet {
    pub source: u16,
    pub destination: u16,
    tag: [u8; 4],
    /// None for the question, some for the answer.
    pub words: Option<String>,
}

impl Socket {
    pub fn bind(address: IpAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket =
            rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::SCTP))?;
        rustix::net::bind(&socket, &SocketAddr::new(address, 0))?;
        Ok(Self(socket))
    }

    /// From here on only packets and errors from that address are heard.
    pub fn connect(&self, to: IpAddr) -> io::Result<()> {
        Ok(rustix::net::connect(&self.0, &SocketAddr::new(to, 0))?)
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Sends an INIT to the address connected to.
    pub fn ask(&self, source: u16, destination: u16) -> io::Result<()> {
        let packet = packet(source, destination, [0; 4], INIT, b"");
        rustix::net::send(&self.0, &packet, SendFlags::empty())?;
        Ok(())
    }

    /// Answers an INIT.
    pub fn answer(&self, question: &Packet, to: IpAddr, words: &str) -> io::Result<()> {
        let packet = packet(question.destination, question.source, question.tag, INIT_ACK, words.as_bytes());
        rustix::net::sendto(&self.0, &packet, SendFlags::empty(), &SocketAddr::new(to, 0))?;
        Ok(())
    }

    /// The next packet, if it is one of ours, and who sent it.
    pub fn receive(&self) -> io::Result<Option<(Packet, IpAddr)>> {
        let mut buffer = [0; 512];
        let (_, length, from) = rustix::net::recvfrom(&self.0, &mut buffer[..], RecvFlags::empty())?;
        let Some(Ok(from)) = from.map(SocketAddr::try_from) else { return Ok(None) };
        let mut bytes = &buffer[..length];
        if from.is_ipv4() {
            // Here the kernel gives the IP header, too.
            bytes = &bytes[usize::from(bytes[0] & 0xf) * 4..];
        }
        Ok(Packet::from_wire(bytes).map(|packet| (packet, from.ip())))
    }
}

impl Packet {
    fn from_wire(bytes: &[u8]) -> Option<Self> {
        let port = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let words = match *bytes.get(12)? {
            INIT => None,
            INIT_ACK => {
                let length = usize::from(port(WORDS - 2)?).checked_sub(4)?;
                Some(String::from_utf8_lossy(bytes.get(WORDS..WORDS + length)?).into_owned())
            }
            _ => return None,
        };
        let tag = bytes.get(16..20)?.try_into().ok()?;
        Some(Self { source: port(0)?, destination: port(2)?, tag, words })
    }
}

fn packet(source: u16, destination: u16, tag: [u8; 4], chunk: u8, words: &[u8]) -> Vec<u8> {
    let padded = words.len().next_multiple_of(4);
    let parameter = if words.is_empty() { 0 } else { 4 + padded };
    let length = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
    let mut bytes = Vec::new();
    bytes.extend(source.to_be_bytes());
    bytes.extend(destination.to_be_bytes());
    bytes.extend(tag);
    bytes.extend([0; 4]); // the checksum, once it is known
    bytes.extend([chunk, 0]);
    bytes.extend(length(20 + parameter));
    bytes.extend(u32::from(source).wrapping_add(0x0101_0101).to_be_bytes()); // the tag of our side
    bytes.extend(0x10000_u32.to_be_bytes()); // receive window
    bytes.extend([0, 1, 0, 1]); // streams out and in
    bytes.extend([0, 0, 0, 1]); // first sequence number
    if !words.is_empty() {
        bytes.extend([0xc0, 1]); // a parameter to skip when it is not known
        bytes.extend(length(4 + words.len()));
        bytes.extend(words);
        bytes.resize(WORDS + padded, 0);
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
fn the_checksum_is_that_of_the_standard() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
