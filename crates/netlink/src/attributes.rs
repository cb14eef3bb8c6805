//! Reads attributes in place, without allocating. Never panics: a malformed list ends early, and a value of the wrong size
//! is `None`.

use crate::buffer::NLA_F_NESTED;
use crate::message::aligned;

/// Set by some subsystems for big-endian values. The decoders know the byte order of each attribute anyway.
// include/uapi/linux/netlink.h
const NLA_F_NET_BYTEORDER: u16 = 1 << 14;
const HEADER: usize = 4;

/// Iterates over a list of attributes. It is `Copy`, so that a list can be iterated over several times.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The first attribute of that kind.
    #[must_use]
    pub fn find(mut self, kind: u16) -> Option<Attribute<'a>> {
        Iterator::find(&mut self, |attribute| attribute.kind == kind)
    }

    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (kind, _) = rest.split_first_chunk()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        let kind = u16::from_ne_bytes(*kind);
        let value = self.0.get(HEADER..length)?;
        // The last attribute may lack its padding.
        self.0 = self.0.get(aligned(length)..).unwrap_or_default();
        Some(Attribute {
            kind: kind & !(NLA_F_NESTED | NLA_F_NET_BYTEORDER),
            is_nested: kind & NLA_F_NESTED != 0,
            value,
        })
    }
}

/// One attribute, without its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    pub kind: u16,
    /// Whether the sender set `NLA_F_NESTED`; older parts of the kernel nest without it.
    pub is_nested: bool,
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    #[must_use]
    pub fn u8(&self) -> Option<u8> {
        self.exactly().map(u8::from_ne_bytes)
    }

    #[must_use]
    pub fn be16(&self) -> Option<u16> {
        self.exactly().map(u16::from_be_bytes)
    }

    #[must_use]
    pub fn be32(&self) -> Option<u32> {
        self.exactly().map(u32::from_be_bytes)
    }

    #[must_use]
    pub fn be64(&self) -> Option<u64> {
        self.exactly().map(u64::from_be_bytes)
    }

    /// In host byte order, which generic netlink uses.
    #[must_use]
    pub fn ne16(&self) -> Option<u16> {
        self.exactly().map(u16::from_ne_bytes)
    }

    /// In host byte order, which rtnetlink and generic netlink use.
    #[must_use]
    pub fn ne32(&self) -> Option<u32> {
        self.exactly().map(u32::from_ne_bytes)
    }

    /// In host byte order, which generic netlink uses.
    #[must_use]
    pub fn ne64(&self) -> Option<u64> {
        self.exactly().map(u64::from_ne_bytes)
    }

    /// The text up to the first NUL, or all of it if there is none.
    #[must_use]
    pub fn str(&self) -> Option<&'a str> {
        text(self.value)
    }

    #[must_use]
    pub const fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }

    fn exactly<const N: usize>(&self) -> Option<[u8; N]> {
        self.value.try_into().ok()
    }
}

pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    let text = bytes.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn walk(attributes: Attributes<'_>, depth: u32) {
        for attribute in attributes {
            let _ = (attribute.u8(), attribute.be16(), attribute.be32(), attribute.be64(), attribute.str());
            if depth < 8 {
                walk(attribute.nested(), depth + 1);
            }
        }
    }

    #[test]
    fn a_list_ends_where_it_is_malformed() {
        let header = |length: u16| [length.to_ne_bytes(), 1_u16.to_ne_bytes()].concat();
        for (bytes, want, why) in [
            (vec![], 0, "empty"),
            (vec![4, 0, 1], 0, "half a header"),
            (header(3), 0, "shorter than its own header"),
            (header(5), 0, "longer than the bytes"),
            (header(4), 1, "empty value"),
            ([header(5), vec![7]].concat(), 1, "the last one without padding"),
            ([header(5), vec![7, 0, 0, 0], header(99)].concat(), 1, "a valid one, then an invalid one"),
        ] {
            assert_eq!(Attributes::new(&bytes).count(), want, "{why}");
        }
    }

    #[test]
    fn text_ends_at_the_first_nul() {
        for (bytes, want) in [(&b"abc\0"[..], "abc"), (b"abc", "abc"), (b"a\0b\0", "a"), (b"", "")] {
            assert_eq!(Attribute { kind: 1, is_nested: false, value: bytes }.str(), Some(want));
        }
        assert_eq!(Attribute { kind: 1, is_nested: false, value: &[0xff] }.str(), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            walk(Attributes::new(&bytes), 0);
        }
    }
}
