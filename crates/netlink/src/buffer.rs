//! Encodes messages into one growing block of bytes, and fills in lengths once they are known.
//!
//! Encoding cannot fail. An attribute of 64 KiB or more cannot be encoded: callers must split their lists.

use std::fmt;

use crate::message::{Header, aligned};

/// Marks an attribute whose value is a list of attributes.
// include/uapi/linux/netlink.h
pub(crate) const NLA_F_NESTED: u16 = 1 << 15;

/// Encoded messages, ready to be sent.
#[derive(Clone, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends a message: its header, the `fixed` part of its kind, then the attributes that `body` appends.
    pub fn message(&mut self, header: Header, fixed: &[u8], body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&header.to_wire());
        self.bytes.extend_from_slice(fixed);
        self.pad();
        body(self);
        let length = u32::try_from(self.bytes.len() - start).expect("a message is far below 4 GiB");
        self.patch(start, length.to_ne_bytes());
    }

    /// Appends an attribute that contains the attributes which `body` appends.
    pub fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.attribute_header(kind | NLA_F_NESTED);
        body(self);
        self.close_attribute(start);
    }

    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.fill(kind, |buffer| buffer.raw(value));
    }

    /// Appends the text with a terminating NUL.
    pub fn string(&mut self, kind: u16, value: &str) {
        self.fill(kind, |buffer| {
            buffer.raw(value.as_bytes());
            buffer.raw(&[0]);
        });
    }

    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    pub fn be16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub fn be32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub fn be64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// In host byte order, which generic netlink uses.
    pub fn ne16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// In host byte order, which rtnetlink and generic netlink use and nf_tables never does.
    pub fn ne32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute whose value `body` appends as [`Self::raw`] bytes.
    pub(crate) fn fill(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.attribute_header(kind);
        body(self);
        self.close_attribute(start);
        self.pad();
    }

    /// Appends bytes without header or padding. Only inside [`Self::fill`].
    pub(crate) fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    fn attribute_header(&mut self, kind: u16) {
        let [low, high] = kind.to_ne_bytes();
        self.bytes.extend_from_slice(&[0, 0, low, high]);
    }

    fn close_attribute(&mut self, start: usize) {
        let length = u16::try_from(self.bytes.len() - start).expect("callers split lists below 64 KiB");
        self.patch(start, length.to_ne_bytes());
    }

    fn patch<const N: usize>(&mut self, start: usize, value: [u8; N]) {
        self.bytes.get_mut(start..start + N).expect("a header was written here").copy_from_slice(&value);
    }

    fn pad(&mut self) {
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }
}

impl fmt::Debug for Buffer {
    /// Prints the size only: a batch may have hundreds of megabytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::attributes::Attributes;
    use crate::message::Messages;

    #[test]
    fn lengths_are_filled_in() {
        let mut buffer = Buffer::new();
        buffer.message(Header { kind: 7, flags: 1, sequence: 9, port: 0 }, &[1, 2, 3, 4], |m| {
            m.string(1, "abc");
            m.nest(2, |m| m.u8(3, 5));
        });
        let want = [
            &[40, 0, 0, 0, 7, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4][..],
            &[8, 0, 1, 0, b'a', b'b', b'c', 0],
            &[12, 0, 2, 0x80, 5, 0, 3, 0, 5, 0, 0, 0],
        ]
        .concat();
        // Headers are in host byte order, and the expected bytes are little-endian.
        if cfg!(target_endian = "little") {
            assert_eq!(buffer.as_bytes(), want);
        }
    }

    #[test]
    fn integers_are_read_as_written() {
        let mut buffer = Buffer::new();
        buffer.message(Header { kind: 1, flags: 0, sequence: 0, port: 0 }, &[], |m| {
            m.u8(1, 0xab);
            m.be16(2, 0xabcd);
            m.be32(3, 0xabcd_ef01);
            m.be64(4, 0xabcd_ef01_2345_6789);
            m.ne32(5, 0xabcd_ef01);
            m.ne16(6, 0xabcd);
            m.bytes(7, &0xabcd_ef01_2345_6789_u64.to_ne_bytes());
        });
        let message = Messages::new(buffer.as_bytes()).next().unwrap();
        let read: Vec<_> = message.attributes(0).collect();
        assert_eq!(read[0].u8(), Some(0xab));
        assert_eq!(read[1].be16(), Some(0xabcd));
        assert_eq!(read[2].be32(), Some(0xabcd_ef01));
        assert_eq!(read[3].be64(), Some(0xabcd_ef01_2345_6789));
        assert_eq!(read[4].ne32(), Some(0xabcd_ef01));
        assert_eq!(read[5].ne16(), Some(0xabcd));
        assert_eq!(read[6].ne64(), Some(0xabcd_ef01_2345_6789));
    }

    /// A tree of attributes.
    #[derive(Clone, Debug, PartialEq)]
    enum Tree {
        Leaf(u16, Vec<u8>),
        Nest(u16, Vec<Tree>),
    }

    fn tree() -> impl Strategy<Value = Vec<Tree>> {
        let kind = 0_u16..0x3fff;
        let leaf = (kind.clone(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(kind, bytes)| Tree::Leaf(kind, bytes));
        let tree = leaf.prop_recursive(4, 64, 6, move |inner| {
            (kind.clone(), prop::collection::vec(inner, 0..6)).prop_map(|(kind, list)| Tree::Nest(kind, list))
        });
        prop::collection::vec(tree, 0..8)
    }

    fn write(list: &[Tree], buffer: &mut Buffer) {
        for node in list {
            match node {
                Tree::Leaf(kind, bytes) => buffer.bytes(*kind, bytes),
                Tree::Nest(kind, inner) => buffer.nest(*kind, |m| write(inner, m)),
            }
        }
    }

    fn read(attributes: Attributes<'_>) -> Vec<Tree> {
        attributes
            .map(|attribute| {
                if attribute.is_nested {
                    Tree::Nest(attribute.kind, read(attribute.nested()))
                } else {
                    Tree::Leaf(attribute.kind, attribute.value.to_vec())
                }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn messages_are_read_as_written(messages in prop::collection::vec(tree(), 0..4)) {
            let mut buffer = Buffer::new();
            for list in &messages {
                let header = Header { kind: 1, flags: 2, sequence: 3, port: 4 };
                buffer.message(header, &[0; 4], |m| write(list, m));
            }
            let found: Vec<_> = Messages::new(buffer.as_bytes()).map(|m| read(m.attributes(4))).collect();
            prop_assert_eq!(found, messages);
        }
    }
}
