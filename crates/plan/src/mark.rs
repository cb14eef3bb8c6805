//! The mark on packets to masquerade, in either mode.

use std::fmt;

/// The bit of the packet mark that requests masquerading. Only our rules use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u32);

impl Mark {
    /// `None` if marks have no such bit.
    pub fn from_bit(bit: u32) -> Option<Self> {
        1u32.checked_shl(bit).map(Self)
    }

    /// The inverse of [`Mark::get`].
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
