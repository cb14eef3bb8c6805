//! Values of up to 64 bytes, verdicts, and the registers that hold them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::buffer::Buffer;
use crate::nftables::wire::*;

/// The size of all registers together, and the maximum length of keys and data.
const CAPACITY: usize = 64;
/// The alignment of fields in a concatenation.
const WORD: u8 = 4;

/// A key, a datum or the operand of a comparison. On the stack, since they are as numerous as endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value {
    bytes: [u8; CAPACITY],
    length: u8,
}

impl Value {
    const EMPTY: Self = Self { bytes: [0; CAPACITY], length: 0 };

    /// Concatenates fields, each padded to four bytes. Panics if they do not fit into 64 bytes, which depends on their types and
    /// not on their content.
    #[must_use]
    pub fn concatenation(fields: &[&[u8]]) -> Self {
        let mut value = Self::EMPTY;
        for field in fields {
            value.append(field);
            value.length = value.length.next_multiple_of(WORD);
        }
        value
    }

    /// `None` if there are more than 64 bytes.
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
    /// Does not compile for more than 64 bytes.
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

/// Hexadecimal digits in groups of four bytes, like `nft --debug=netlink`.
pub(super) fn hex(bytes: &[u8]) -> String {
    let word = |word: &[u8]| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(WORD.into()).map(word).collect::<Vec<_>>().join(" ")
}

/// The register that an expression reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u32);

impl Register {
    /// The register for values that are not part of a concatenation.
    pub const FIRST: Self = Self::at(0);

    /// The register at this word of four bytes, 0 to 15. Those at a multiple of 16 bytes have an old number, too, which is used
    /// because `nft` prints only these in full.
    #[must_use]
    pub const fn at(word: u32) -> Self {
        if word.is_multiple_of(4) { Self(1 + word / 4) } else { Self(8 + word) }
    }

    pub(super) const fn to_wire(self) -> u32 {
        self.0
    }
}

/// Allocates consecutive registers for the fields of a concatenation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    next_word: u32,
}

impl Registers {
    /// The register for a field of this length.
    pub fn take(&mut self, bytes: u32) -> Register {
        let register = Register::at(self.next_word);
        self.next_word += bytes.div_ceil(WORD.into());
        register
    }
}

pub(super) fn write_value(m: &mut Buffer, attribute: u16, value: &Value) {
    m.nest(attribute, |m| m.bytes(NFTA_DATA_VALUE, value.as_bytes()));
}

/// What happens to the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    Drop,
    Return,
    Jump(&'a str),
    Goto(&'a str),
}

impl<'a> Verdict<'a> {
    const fn code(self) -> i32 {
        match self {
            Self::Drop => 0,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
            Self::Return => -5,
        }
    }

    const fn chain(self) -> Option<&'a str> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            Self::Drop | Self::Return => None,
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
        let plain = [Self::Drop, Self::Return];
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
    fn registers_are_numbered_like_those_of_nft() {
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
    fn fields_of_a_concatenation_are_padded_and_single_ones_are_not() {
        let key = Value::concatenation(&[&[172, 30, 0, 41], &[6], &80_u16.to_be_bytes()]);
        assert_eq!(key.as_bytes(), [172, 30, 0, 41, 6, 0, 0, 0, 0, 80, 0, 0]);
        assert_eq!(Value::from([6]).as_bytes(), [6]);
        assert_eq!(format!("{key:?}"), "ac1e0029 06000000 00500000");
    }

    #[test]
    fn a_value_has_at_most_64_bytes() {
        assert_eq!(Value::from_slice(&[7; 64]).map(|value| value.as_bytes().len()), Some(64));
        assert_eq!(Value::from_slice(&[7; 65]), None);
    }
}
