//! The mark on packets that are to be masqueraded, whatever mode the rules are of.

use std::fmt;

/// The bit that says "masquerade this"; private to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u32);

impl Mark {
    /// `None` for a bit that a mark does not have.
    pub fn from_bit(bit: u32) -> Option<Self> {
        1u32.checked_shl(bit).map(Self)
    }

    /// What [`Mark::get`] gave.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
