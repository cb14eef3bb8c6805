//! Netlink: encodes and decodes messages, and exchanges them with the kernel over one kind of socket.
//!
//! Knows nothing of Kubernetes.
//!
//! ```text
//!   Buffer ── bytes ──▶ Socket ──▶ kernel
//!                          │
//!   Attributes ◀── Message ┘
//! ```
//!
//! Messages are written straight into a [`buffer::Buffer`] and read in place through
//! [`attributes::Attributes`]. On these stand [`nftables`], [`conntrack`],
//! [`accounting`], [`ipvs`], [`ipset`] and [`route`].

pub mod accounting;
pub mod attributes;
pub mod buffer;
mod calls;
pub mod conntrack;
#[cfg(feature = "testing")]
pub mod faults;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod generic;
pub mod ipset;
pub mod ipvs;
pub mod message;
pub mod nftables;
pub mod route;
pub mod socket;
mod sys;
#[cfg(feature = "testing")]
pub mod testing;

use std::fmt;

/// The two IP families. Decoders skip objects of any other family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// `AF_INET` and `AF_INET6`, which are also `NFPROTO_IPV4` and `NFPROTO_IPV6`.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::Ipv4 => 2,
            Self::Ipv6 => 10,
        }
    }

    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            2 => Some(Self::Ipv4),
            10 => Some(Self::Ipv6),
            _ => None,
        }
    }
}

impl fmt::Display for Family {
    /// As `nft` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "ip",
            Self::Ipv6 => "ip6",
        })
    }
}
