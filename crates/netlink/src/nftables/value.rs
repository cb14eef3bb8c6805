//! What registers hold: up to 64 bytes or a verdict, and the numbers by which the kernel calls them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::buffer::Buffer;
use crate::nftables::wire::*;

/// As much as all registers together hold; keys and data can't be longer.
const CAPACITY: usize = 64;
/// Fields of a concatenation start on a multiple of this.
const WORD: u8 = 4;

/// Bytes of a key, a datum or a comparison. Lives on the stack: there are as many as endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value {
    bytes: [u8; CAPACITY],
    length: u8,
}

impl Value {
    const EMPTY: Self = Self { bytes: [0; CAPACITY], length: 0 };

    /// Fields one after the other, each filled up to a multiple of four bytes, as concatenations are
    /// kept. What doesn't fit into 64 bytes is a mistake of the caller's types, not of its data.
    #[must_use]
    pub fn concatenation(fields: &[&[u8]]) -> Self {
        let mut value = Self::EMPTY;
        for field in fields {
            value.append(field);
            value.length = value.length.next_multiple_of(WORD);
        }
        value
    }

    /// `None` if it doesn't fit into 64 bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        let mut value = Self::EMPTY;
        (bytes.len() <= CAPACITY).then(|| {
            value.append(bytes);
            value
        })
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    fn append(&mut self, field: &[u8]) {
        let start = usize::from(self.length);
        let end = start + field.len();
        self.bytes.get_mut(start..end).expect("all fields fit into the registers").copy_from_slice(field);
        self.length = u8::try_from(end).expect("the capacity is below 256");
    }
}

impl<const N: usize> From<[u8; N]> for Value {
    /// Exactly these bytes; too many don't compile.
    fn from(bytes: [u8; N]) -> Self {
        const { assert!(N <= CAPACITY) };
        let mut value = Self::EMPTY;
        value.append(&bytes);
        value
    }
}

impl From<Ipv4Addr> for Value {
    fn from(address: Ipv4Addr) -> Self {
        address.octets().into()
    }
}

impl From<Ipv6Addr> for Value {
    fn from(address: Ipv6Addr) -> Self {
        address.octets().into()
    }
}

impl From<IpAddr> for Value {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.as_bytes()))
    }
}

/// Bytes as a person can compare them: words of four, as `nft --debug=netlink` groups them.
pub(super) fn hex(bytes: &[u8]) -> String {
    let word = |word: &[u8]| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(WORD.into()).map(word).collect::<Vec<_>>().join(" ")
}

/// Where an expression reads or leaves its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u32);

impl Register {
    /// Where values that aren't part of a concatenation go.
    pub const FIRST: Self = Self::at(0);

    /// The register that begins at that word of four bytes, 0 to 15. Those on a 16-byte boundary go by
    /// their old number: `nft` prints only these in full.
    #[must_use]
    pub const fn at(word: u32) -> Self {
        if word.is_multiple_of(4) { Self(1 + word / 4) } else { Self(8 + word) }
    }

    pub(super) const fn to_wire(self) -> u32 {
        self.0
    }
}

/// Hands out registers one after the other, as the fields of a concatenation need them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    next_word: u32,
}

impl Registers {
    /// The register for a field of that many bytes.
    pub fn take(&mut self, bytes: u32) -> Register {
        let register = Register::at(self.next_word);
        self.next_word += bytes.div_ceil(WORD.into());
        register
    }
}

pub(super) fn write_value(m: &mut Buffer, attribute: u16, value: &Value) {
    m.nest(attribute, |m| m.bytes(NFTA_DATA_VALUE, value.as_bytes()));
}

/// Where a packet goes from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    Drop,
    Accept,
    Continue,
    Return,
    Jump(&'a str),
    Goto(&'a str),
}

impl<'a> Verdict<'a> {
    const fn code(self) -> i32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Continue => -1,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
            Self::Return => -5,
        }
    }

    const fn chain(self) -> Option<&'a str> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            Self::Drop | Self::Accept | Self::Continue | Self::Return => None,
        }
    }

    pub(super) fn write(self, buffer: &mut Buffer, attribute: u16) {
        buffer.nest(attribute, |m| {
            m.nest(NFTA_DATA_VERDICT, |m| {
                m.be32(NFTA_VERDICT_CODE, self.code().cast_unsigned());
                if let Some(chain) = self.chain() {
                    m.string(NFTA_VERDICT_CHAIN, chain);
                }
            });
        });
    }

    pub(super) fn from_wire(code: u32, chain: Option<&'a str>) -> Option<Self> {
        let plain = [Self::Drop, Self::Accept, Self::Continue, Self::Return];
        let named = chain.map(|chain| [Self::Jump(chain), Self::Goto(chain)]);
        let mut all = plain.into_iter().chain(named.into_iter().flatten());
        all.find(|verdict| verdict.code() == code.cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(lengths: &[u32]) -> Vec<u32> {
        let mut registers = Registers::default();
        lengths.iter().map(|length| registers.take(*length).to_wire()).collect()
    }

    #[test]
    fn registers_follow_each_other_as_nft_numbers_them() {
        for (lengths, want, what) in [
            (&[4, 1, 2][..], &[1, 9, 10][..], "IPv4 frontend"),
            (&[16, 1, 2], &[1, 2, 13], "IPv6 frontend"),
            (&[4, 4, 1, 2], &[1, 9, 10, 11], "IPv4 hairpin"),
            (&[16, 16, 1, 2], &[1, 2, 3, 17], "IPv6 hairpin"),
            (&[4, 1, 2, 4, 2], &[1, 9, 10, 11, 2], "IPv4 sticky frontend and endpoint"),
        ] {
            assert_eq!(numbers(lengths), want, "{what}");
        }
    }

    #[test]
    fn fields_of_a_concatenation_are_filled_up_and_single_ones_are_not() {
        let key = Value::concatenation(&[&[172, 30, 0, 41], &[6], &80_u16.to_be_bytes()]);
        assert_eq!(key.as_bytes(), [172, 30, 0, 41, 6, 0, 0, 0, 0, 80, 0, 0]);
        assert_eq!(Value::from([6]).as_bytes(), [6]);
        assert_eq!(format!("{key:?}"), "ac1e0029 06000000 00500000");
    }

    #[test]
    fn a_slice_that_does_not_fit_is_no_value() {
        assert_eq!(Value::from_slice(&[7; 64]).map(|value| value.as_bytes().len()), Some(64));
        assert_eq!(Value::from_slice(&[7; 65]), None);
    }
}
