//! Expressions, which rules consist of. Each loads a register, operates on registers, or decides about the packet.

use std::time::Duration;

use crate::Family;
use crate::buffer::Buffer;
use crate::nftables::sets::{SetRef, milliseconds};
use crate::nftables::value::{Register, Value, Verdict, write_value};
use crate::nftables::wire::*;

/// One expression. If it does not match, the rest of the rule is not evaluated.
#[derive(Clone, Copy, Debug)]
pub enum Expression<'a> {
    /// Loads metadata of the packet.
    Meta {
        key: MetaKey,
        to: Register,
    },
    /// Only the mark can be set, of the keys in [`MetaKey`].
    SetMeta {
        key: MetaKey,
        from: Register,
    },
    /// Loads bytes of a header.
    Payload {
        base: Base,
        offset: u32,
        length: u32,
        to: Register,
    },
    /// Loads a property of the conntrack entry. Addresses and ports need a direction.
    Conntrack {
        key: ConntrackKey,
        direction: Option<Direction>,
        to: Register,
    },
    /// Loads the result of a routing lookup of the packet's addresses.
    Fib {
        source: bool,
        destination: bool,
        result: FibResult,
        to: Register,
    },
    /// Loads a number from 0 to `modulus` - 1, plus `offset`, in host byte order.
    Numgen {
        generator: NumberGenerator,
        modulus: u32,
        offset: u32,
        to: Register,
    },
    /// Loads a number from 0 to `modulus` - 1, plus `offset`, in host byte order: Jenkins' hash of `length` bytes.
    Hash {
        from: Register,
        length: u32,
        modulus: u32,
        seed: u32,
        offset: u32,
        to: Register,
    },
    /// Loads `from & mask ^ xor`. The length of the mask is that of the operation.
    Bitwise {
        from: Register,
        to: Register,
        mask: Value,
        xor: Value,
    },
    /// Matches, or not.
    Compare {
        from: Register,
        comparison: Comparison,
        value: Value,
    },
    /// Matches if the key is in the set.
    Lookup {
        set: SetRef<'a>,
        key: Register,
    },
    /// Matches if the key is not in the set.
    LookupMissing {
        set: SetRef<'a>,
        key: Register,
    },
    /// Loads the data of the key in the map. Does not match if the key is not in it.
    LookupData {
        map: SetRef<'a>,
        key: Register,
        to: Register,
    },
    /// Applies the verdict of the key in the map, or continues if the key is not in it.
    LookupVerdict {
        map: SetRef<'a>,
        key: Register,
    },
    /// Adds an element to a dynamic set or updates it. `with` are the expressions of the element.
    Dynamic {
        operation: DynamicOperation,
        set: SetRef<'a>,
        key: Register,
        data: Option<Register>,
        timeout: Option<Duration>,
        with: &'a [Expression<'a>],
    },
    /// Applies a verdict.
    Verdict(Verdict<'a>),
    /// Translates addresses, which also ends the evaluation.
    Nat {
        kind: NatKind,
        family: Family,
        address: Register,
        port: Option<Register>,
        flags: NatFlags,
    },
    Masquerade {
        flags: NatFlags,
    },
    Reject(RejectWith),
    /// Counts the packets that reach it.
    Counter,
}

/// `NFT_META_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MetaKey {
    /// Host order
    Mark = 3,
    InputName = 6,
    /// One byte
    L4Protocol = 16,
}

/// The header that the offset of `Payload` counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Base {
    Network = 1,
    Transport = 2,
}

/// `NFT_CT_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ConntrackKey {
    /// Bits, host order
    State = 0,
    /// Bits, host order
    Status = 2,
    DestinationPort = 12,
    DestinationIpv4 = 20,
    DestinationIpv6 = 22,
}

impl ConntrackKey {
    /// Bit of `State`.
    pub const STATE_NEW: u32 = 0x8;
    /// Bit of `Status`.
    pub const STATUS_DNAT: u32 = 0x20;
}

/// The direction of a tuple of a conntrack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    Original = 0,
}

/// `NFT_FIB_RESULT_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FibResult {
    /// `RTN_*`, host order
    AddressType = 3,
}

impl FibResult {
    /// `RTN_LOCAL`, an `AddressType`
    pub const LOCAL: u32 = 2;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NumberGenerator {
    Random = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Comparison {
    Equal = 0,
    NotEqual = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DynamicOperation {
    /// Also renews the timeout of an existing element. Its data stay the same.
    Update = 1,
    Delete = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NatKind {
    Destination = 1,
}

/// `NF_NAT_RANGE_*`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NatFlags {
    #[default]
    None,
    FullyRandom,
}

impl NatFlags {
    const fn to_wire(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::FullyRandom => Some(0x10),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectWith {
    /// ICMP port unreachable, the default of `nft`, for all protocols.
    PortUnreachable(Family),
}

impl<'a> Expression<'a> {
    #[must_use]
    pub const fn source_address(family: Family, to: Register) -> Self {
        match family {
            Family::Ipv4 => Self::Payload { base: Base::Network, offset: 12, length: 4, to },
            Family::Ipv6 => Self::Payload { base: Base::Network, offset: 8, length: 16, to },
        }
    }

    #[must_use]
    pub const fn destination_address(family: Family, to: Register) -> Self {
        match family {
            Family::Ipv4 => Self::Payload { base: Base::Network, offset: 16, length: 4, to },
            Family::Ipv6 => Self::Payload { base: Base::Network, offset: 24, length: 16, to },
        }
    }

    /// At the same offset for TCP, UDP and SCTP.
    #[must_use]
    pub const fn destination_port(to: Register) -> Self {
        Self::Payload { base: Base::Transport, offset: 2, length: 2, to }
    }

    /// Encodes the name and the attributes, as in list entries and sets.
    pub(super) fn write(&self, m: &mut Buffer) {
        m.string(NFTA_EXPR_NAME, self.name());
        m.nest(NFTA_EXPR_DATA, |m| self.write_attributes(m));
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Meta { .. } | Self::SetMeta { .. } => "meta",
            Self::Payload { .. } => "payload",
            Self::Conntrack { .. } => "ct",
            Self::Fib { .. } => "fib",
            Self::Numgen { .. } => "numgen",
            Self::Hash { .. } => "hash",
            Self::Verdict(_) => "immediate",
            Self::Bitwise { .. } => "bitwise",
            Self::Compare { .. } => "cmp",
            Self::Lookup { .. }
            | Self::LookupMissing { .. }
            | Self::LookupData { .. }
            | Self::LookupVerdict { .. } => "lookup",
            Self::Dynamic { .. } => "dynset",
            Self::Nat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Reject(_) => "reject",
            Self::Counter => "counter",
        }
    }

    /// In the order of `nft`.
    fn write_attributes(&self, m: &mut Buffer) {
        match *self {
            Self::Meta { key, to } => {
                m.be32(NFTA_META_KEY, key as u32);
                m.be32(NFTA_META_DREG, to.to_wire());
            }
            Self::SetMeta { key, from } => {
                m.be32(NFTA_META_KEY, key as u32);
                m.be32(NFTA_META_SREG, from.to_wire());
            }
            Self::Payload { base, offset, length, to } => {
                m.be32(NFTA_PAYLOAD_DREG, to.to_wire());
                m.be32(NFTA_PAYLOAD_BASE, base as u32);
                m.be32(NFTA_PAYLOAD_OFFSET, offset);
                m.be32(NFTA_PAYLOAD_LEN, length);
            }
            Self::Conntrack { key, direction, to } => {
                m.be32(NFTA_CT_KEY, key as u32);
                m.be32(NFTA_CT_DREG, to.to_wire());
                if let Some(direction) = direction {
                    m.u8(NFTA_CT_DIRECTION, direction as u8);
                }
            }
            Self::Fib { source, destination, result, to } => {
                let flags = if source { NFTA_FIB_F_SADDR } else { 0 }
                    | if destination { NFTA_FIB_F_DADDR } else { 0 };
                m.be32(NFTA_FIB_FLAGS, flags);
                m.be32(NFTA_FIB_RESULT, result as u32);
                m.be32(NFTA_FIB_DREG, to.to_wire());
            }
            Self::Numgen { generator, modulus, offset, to } => {
                m.be32(NFTA_NG_DREG, to.to_wire());
                m.be32(NFTA_NG_MODULUS, modulus);
                m.be32(NFTA_NG_TYPE, generator as u32);
                m.be32(NFTA_NG_OFFSET, offset);
            }
            Self::Hash { from, length, modulus, seed, offset, to } => {
                m.be32(NFTA_HASH_SREG, from.to_wire());
                m.be32(NFTA_HASH_DREG, to.to_wire());
                m.be32(NFTA_HASH_LEN, length);
                m.be32(NFTA_HASH_MODULUS, modulus);
                m.be32(NFTA_HASH_SEED, seed);
                m.be32(NFTA_HASH_OFFSET, offset);
                m.be32(NFTA_HASH_TYPE, NFT_HASH_JENKINS);
            }
            Self::Verdict(verdict) => {
                m.be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
                verdict.write(m, NFTA_IMMEDIATE_DATA);
            }
            Self::Bitwise { from, to, mask, xor } => {
                m.be32(NFTA_BITWISE_SREG, from.to_wire());
                m.be32(NFTA_BITWISE_DREG, to.to_wire());
                m.be32(NFTA_BITWISE_OP, NFT_BITWISE_MASK_XOR);
                m.be32(NFTA_BITWISE_LEN, wire_length(&mask));
                write_value(m, NFTA_BITWISE_MASK, &mask);
                write_value(m, NFTA_BITWISE_XOR, &xor);
            }
            Self::Compare { from, comparison, value } => {
                m.be32(NFTA_CMP_SREG, from.to_wire());
                m.be32(NFTA_CMP_OP, comparison as u32);
                write_value(m, NFTA_CMP_DATA, &value);
            }
            Self::Lookup { set, key } => write_lookup(m, set, key, None),
            Self::LookupMissing { set, key } => {
                write_lookup(m, set, key, None);
                m.be32(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV);
            }
            Self::LookupData { map, key, to } => write_lookup(m, map, key, Some(to.to_wire())),
            Self::LookupVerdict { map, key } => write_lookup(m, map, key, Some(NFT_REG_VERDICT)),
            Self::Dynamic { operation, set, key, data, timeout, with } => {
                m.be32(NFTA_DYNSET_SREG_KEY, key.to_wire());
                if let Some(data) = data {
                    m.be32(NFTA_DYNSET_SREG_DATA, data.to_wire());
                }
                m.be32(NFTA_DYNSET_OP, operation as u32);
                if let Some(timeout) = timeout {
                    m.be64(NFTA_DYNSET_TIMEOUT, milliseconds(timeout));
                }
                m.string(NFTA_DYNSET_SET_NAME, set.name);
                if let Some(id) = set.id {
                    m.be32(NFTA_DYNSET_SET_ID, id);
                }
                write_kept(m, with);
            }
            Self::Nat { kind, family, address, port, flags } => {
                m.be32(NFTA_NAT_TYPE, kind as u32);
                m.be32(NFTA_NAT_FAMILY, u32::from(family.to_wire()));
                m.be32(NFTA_NAT_REG_ADDR_MIN, address.to_wire());
                if let Some(port) = port {
                    m.be32(NFTA_NAT_REG_PROTO_MIN, port.to_wire());
                }
                if let Some(flags) = flags.to_wire() {
                    m.be32(NFTA_NAT_FLAGS, flags);
                }
            }
            Self::Masquerade { flags } => {
                if let Some(flags) = flags.to_wire() {
                    m.be32(NFTA_MASQ_FLAGS, flags);
                }
            }
            Self::Reject(with) => {
                let code = match with {
                    RejectWith::PortUnreachable(Family::Ipv4) => 3,
                    RejectWith::PortUnreachable(Family::Ipv6) => 4,
                };
                m.be32(NFTA_REJECT_TYPE, NFT_REJECT_ICMP_UNREACH);
                m.u8(NFTA_REJECT_ICMP_CODE, code);
            }
            Self::Counter => {}
        }
    }
}

fn wire_length(value: &Value) -> u32 {
    u32::try_from(value.as_bytes().len()).expect("a value has at most 64 bytes")
}

fn write_lookup(m: &mut Buffer, set: SetRef<'_>, key: Register, to: Option<u32>) {
    m.be32(NFTA_LOOKUP_SREG, key.to_wire());
    if let Some(to) = to {
        m.be32(NFTA_LOOKUP_DREG, to);
    }
    m.string(NFTA_LOOKUP_SET, set.name);
    if let Some(id) = set.id {
        m.be32(NFTA_LOOKUP_SET_ID, id);
    }
}

/// A single expression has an attribute of its own. A list of them needs a flag.
fn write_kept(m: &mut Buffer, expressions: &[Expression<'_>]) {
    match expressions {
        [] => {}
        [expression] => m.nest(NFTA_DYNSET_EXPR, |m| expression.write(m)),
        _ => {
            m.be32(NFTA_DYNSET_FLAGS, NFT_DYNSET_F_EXPR);
            m.nest(NFTA_DYNSET_EXPRESSIONS, |m| {
                for expression in expressions {
                    m.nest(NFTA_LIST_ELEM, |m| expression.write(m));
                }
            });
        }
    }
}
