//! Decodes the headers of netlink messages, and the outcome of requests.

use std::io;

use crate::attributes::Attributes;

// include/uapi/linux/netlink.h
pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;

pub(crate) const HEADER: usize = 16;

/// Everything in netlink starts on a multiple of four.
pub(crate) const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The header of a message, without the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    /// In messages from the kernel: the port of the socket whose request caused them, also in notifications.
    pub port: u32,
}

impl Header {
    pub(crate) fn to_wire(self) -> [u8; HEADER] {
        let [k0, k1] = self.kind.to_ne_bytes();
        let [f0, f1] = self.flags.to_ne_bytes();
        let [s0, s1, s2, s3] = self.sequence.to_ne_bytes();
        let [p0, p1, p2, p3] = self.port.to_ne_bytes();
        [0, 0, 0, 0, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3]
    }

    fn from_wire(bytes: &[u8; HEADER]) -> (usize, Self) {
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *bytes;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]);
        let header = Self {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            port: u32::from_ne_bytes([p0, p1, p2, p3]),
        };
        (usize::try_from(length).unwrap_or(usize::MAX), header)
    }
}

/// A message that borrows its body.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub header: Header,
    /// A fixed part whose size depends on the kind, then attributes.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The fixed part, if it is complete.
    #[must_use]
    pub fn fixed<const N: usize>(&self) -> Option<&'a [u8; N]> {
        self.body.first_chunk()
    }

    /// The attributes after a fixed part of this size.
    #[must_use]
    pub fn attributes(&self, fixed: usize) -> Attributes<'a> {
        Attributes::new(self.body.get(aligned(fixed)..).unwrap_or_default())
    }

    /// The outcome of the request that the message answers.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.header.kind {
            NLMSG_DONE => match self.status() {
                0.. => Outcome::Success,
                errno => Outcome::Refused(Refusal::plain(errno)),
            },
            NLMSG_ERROR => match self.status() {
                0.. => Outcome::Success,
                errno => Outcome::Refused(self.refusal(errno)),
            },
            _ => Outcome::Pending,
        }
    }

    fn status(&self) -> i32 {
        self.fixed().map_or(0, |bytes| i32::from_ne_bytes(*bytes))
    }

    /// The attributes follow the header of the rejected message, or all of that message unless the answer is capped.
    fn refusal(&self, errno: i32) -> Refusal {
        let mut refusal = Refusal::plain(errno);
        let echoed = self.body.get(4..).and_then(<[u8]>::first_chunk).map(Header::from_wire);
        let Some((length, _)) = echoed else { return refusal };
        if self.header.flags & NLM_F_ACK_TLVS != 0 {
            let skipped = if self.header.flags & NLM_F_CAPPED != 0 { HEADER } else { length };
            for attribute in self.attributes(skipped.saturating_add(4).min(self.body.len())) {
                match attribute.kind {
                    NLMSGERR_ATTR_MSG => refusal.text = attribute.str().map(str::to_owned),
                    NLMSGERR_ATTR_OFFS => refusal.offset = attribute.ne32(),
                    _ => {}
                }
            }
        }
        refusal
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Unknown so far: the message contains an object.
    Pending,
    Success,
    Refused(Refusal),
}

/// Why the kernel rejected a request.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) errno: io::Error,
    /// The extended acknowledgement, from subsystems that send one.
    pub(crate) text: Option<String>,
    /// The offset of the offending attribute in the rejected message.
    pub(crate) offset: Option<u32>,
}

impl Refusal {
    fn plain(errno: i32) -> Self {
        Self { errno: io::Error::from_raw_os_error(errno.saturating_neg()), text: None, offset: None }
    }
}

/// Iterates over messages. Ends early where the bytes are malformed.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all bytes belong to messages. Those of a datagram do, unless it was truncated.
    pub(crate) fn is_whole(mut self) -> bool {
        while !self.0.is_empty() {
            if self.next().is_none() {
                return false;
            }
        }
        true
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (length, header) = Header::from_wire(self.0.first_chunk()?);
        let body = self.0.get(HEADER..length)?;
        self.0 = self.0.get(aligned(length)..).unwrap_or_default();
        Some(Message { header, body })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::buffer::Buffer;

    fn error(flags: u16, errno: i32, attributes: impl FnOnce(&mut Buffer)) -> Buffer {
        let echo = Header { kind: 99, flags: 1, sequence: 5, port: 0 }.to_wire();
        let fixed = [&errno.to_ne_bytes()[..], &echo].concat();
        let mut buffer = Buffer::new();
        buffer.message(Header { kind: NLMSG_ERROR, flags, sequence: 5, port: 0 }, &fixed, attributes);
        buffer
    }

    #[test]
    fn a_refusal_contains_its_reason_and_offset() {
        let buffer = error(NLM_F_CAPPED | NLM_F_ACK_TLVS, -2, |m| {
            m.string(NLMSGERR_ATTR_MSG, "no such chain");
            m.ne32(NLMSGERR_ATTR_OFFS, 36);
        });
        let message = Messages::new(buffer.as_bytes()).next().unwrap();
        let Outcome::Refused(refusal) = message.outcome() else { panic!("{message:?}") };
        assert_eq!(refusal.errno.raw_os_error(), Some(2));
        assert_eq!(refusal.text.as_deref(), Some("no such chain"));
        assert_eq!(refusal.offset, Some(36));
    }

    #[test]
    fn an_acknowledgement_is_a_success() {
        let buffer = error(NLM_F_CAPPED, 0, |_| {});
        let message = Messages::new(buffer.as_bytes()).next().unwrap();
        assert!(matches!(message.outcome(), Outcome::Success));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0_u16..4) {
            for message in Messages::new(&bytes) {
                let _ = message.outcome();
            }
            let header = Header { kind, flags: u16::MAX, sequence: 0, port: 0 };
            let _ = Message { header, body: &bytes }.outcome();
        }
    }
}
