//! Encodes sets and maps: the types of keys and data, and the user data by which `nft` prints them.

use std::time::Duration;

use crate::buffer::Buffer;
use crate::message::NLM_F_CREATE;
use crate::nftables::batch::Batch;
use crate::nftables::expressions::Expression;
use crate::nftables::userdata::Userdata;
use crate::nftables::wire::*;

/// One field of a key or datum, by the type that `nft` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Ipv4Address,
    Ipv6Address,
    /// `inet_proto`, one byte
    Protocol,
    /// `inet_service`, network order
    Port,
    /// Host order
    Mark,
    /// A result of `numgen random mod modulus`, in host byte order. This type has no name, so `nft` declares sets with it by
    /// `typeof`.
    Index {
        modulus: u32,
    },
}

/// Types of user data of sets, which differ from those of other objects.
const KEY_BYTE_ORDER: u8 = 0;
const DATA_BYTE_ORDER: u8 = 1;
const KEY_TYPEOF: u8 = 3;
const DATA_TYPEOF: u8 = 4;
const DATA_INTERVAL: u8 = 6;
pub(super) const SET_COMMENT: u8 = 7;

/// Byte orders as `nft` numbers them.
const NO_ORDER: u32 = 0;
const HOST_ORDER: u32 = 1;
const NETWORK_ORDER: u32 = 2;

impl Field {
    /// In bytes, without the padding in a concatenation.
    #[must_use]
    pub const fn length(self) -> u32 {
        match self {
            Self::Protocol => 1,
            Self::Port => 2,
            Self::Ipv4Address | Self::Mark | Self::Index { .. } => 4,
            Self::Ipv6Address => 16,
        }
    }

    /// Assigned by `nft`. The kernel only stores these numbers.
    const fn type_number(self) -> u32 {
        match self {
            Self::Index { .. } => 4,
            Self::Ipv4Address => 7,
            Self::Ipv6Address => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Mark => 19,
        }
    }

    const fn byte_order(self) -> u32 {
        match self {
            Self::Protocol => NO_ORDER,
            Self::Mark | Self::Index { .. } => HOST_ORDER,
            Self::Ipv4Address | Self::Ipv6Address | Self::Port => NETWORK_ORDER,
        }
    }

    /// An expression of this type, in the format of `nft` 1.0.6 and later for `typeof`.
    fn put_typeof(self, userdata: &mut Userdata) {
        const PAYLOAD: u32 = 7;
        const META: u32 = 9;
        const NUMGEN: u32 = 23;
        const RANDOM: u32 = 1;
        let (expression, arguments): (u32, &[u32]) = match self {
            Self::Ipv4Address => (PAYLOAD, &[12, 12]), // ip daddr
            Self::Ipv6Address => (PAYLOAD, &[13, 9]),  // ip6 daddr
            Self::Port => (PAYLOAD, &[11, 2]),         // th dport
            Self::Mark => (META, &[3]),
            Self::Protocol => (META, &[16]),
            Self::Index { modulus } => (NUMGEN, &[RANDOM, modulus, 0]),
        };
        put_typeof(userdata, expression, |userdata| {
            for (kind, argument) in (0..).zip(arguments) {
                userdata.put_u32(kind, *argument);
            }
        });
    }
}

/// The length of a key or datum. The fields of a concatenation are padded to four bytes, a single field is not.
pub(super) fn length(fields: &[Field]) -> u32 {
    match fields {
        [field] => field.length(),
        _ => fields.iter().map(|field| field.length().next_multiple_of(4)).sum(),
    }
}

/// Six bits per field, the leftmost highest.
pub(super) fn type_number(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |number, field| number << 6 | field.type_number())
}

fn byte_order(fields: &[Field]) -> u32 {
    match fields {
        [field] => field.byte_order(),
        _ => NO_ORDER,
    }
}

fn put_typeof(userdata: &mut Userdata, expression: u32, arguments: impl FnOnce(&mut Userdata)) {
    userdata.put_u32(0, expression);
    userdata.nest(1, arguments);
}

fn put_typeof_fields(userdata: &mut Userdata, kind: u8, fields: &[Field]) {
    const CONCATENATION: u32 = 13;
    userdata.nest(kind, |userdata| match fields {
        [field] => field.put_typeof(userdata),
        _ => put_typeof(userdata, CONCATENATION, |userdata| {
            for (place, field) in (0..).zip(fields) {
                userdata.nest(place, |userdata| field.put_typeof(userdata));
            }
        }),
    });
}

/// The data type of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapData<'a> {
    /// For each added element, the kernel validates all reachable chains: not for large maps.
    Verdict,
    Fields(&'a [Field]),
}

impl MapData<'_> {
    pub(super) fn type_number(self) -> u32 {
        match self {
            Self::Verdict => NFT_DATA_VERDICT,
            Self::Fields(fields) => type_number(fields),
        }
    }

    fn length(self) -> u32 {
        match self {
            Self::Verdict => 0,
            Self::Fields(fields) => length(fields),
        }
    }

    fn byte_order(self) -> u32 {
        match self {
            Self::Verdict => NO_ORDER,
            Self::Fields(fields) => byte_order(fields),
        }
    }
}

/// A set, or a map if it has data. See [`Set::new`].
#[derive(Clone, Copy, Debug)]
pub struct Set<'a> {
    pub name: &'a str,
    pub key: &'a [Field],
    pub data: Option<MapData<'a>>,
    /// Elements are ranges: of single fields as pairs of elements, the second with `interval_end`; of
    /// concatenations as elements with `key_end`.
    pub interval: bool,
    /// Rules may add elements; see [`Expression::Dynamic`].
    pub dynamic: bool,
    /// Elements may have timeouts.
    pub timeouts: bool,
    /// The default timeout of elements.
    pub timeout: Option<Duration>,
    /// The maximum number of elements. The kernel defaults to 65,535 for dynamic sets.
    pub size: Option<u32>,
    /// Each element counts the packets that match it.
    pub counter: bool,
    pub comment: Option<&'a str>,
}

impl<'a> Set<'a> {
    /// A set without any options.
    #[must_use]
    pub const fn new(name: &'a str, key: &'a [Field]) -> Self {
        Self {
            name,
            key,
            data: None,
            interval: false,
            dynamic: false,
            timeouts: false,
            timeout: None,
            size: None,
            counter: false,
            comment: None,
        }
    }

    pub(super) fn flags(&self) -> u32 {
        // `nft` sets the flag for ranges of concatenations only.
        let concatenated_ranges = self.interval && self.key.len() > 1;
        [
            (self.interval, NFT_SET_INTERVAL),
            (self.data.is_some(), NFT_SET_MAP),
            (self.timeouts || self.timeout.is_some(), NFT_SET_TIMEOUT),
            (self.dynamic, NFT_SET_EVAL),
            (concatenated_ranges, NFT_SET_CONCAT),
        ]
        .into_iter()
        .fold(0, |flags, (is_set, flag)| if is_set { flags | flag } else { flags })
    }

    fn write(&self, m: &mut Buffer, id: u32) {
        m.string(NFTA_SET_NAME, self.name);
        m.be32(NFTA_SET_FLAGS, self.flags());
        m.be32(NFTA_SET_KEY_TYPE, type_number(self.key));
        m.be32(NFTA_SET_KEY_LEN, length(self.key));
        if let Some(data) = self.data {
            m.be32(NFTA_SET_DATA_TYPE, data.type_number());
            m.be32(NFTA_SET_DATA_LEN, data.length());
        }
        m.be32(NFTA_SET_ID, id);
        self.write_description(m);
        if let Some(timeout) = self.timeout {
            m.be64(NFTA_SET_TIMEOUT, milliseconds(timeout));
        }
        self.userdata().write(m, NFTA_SET_USERDATA);
        if self.counter {
            m.nest(NFTA_SET_EXPR, |m| Expression::Counter.write(m));
        }
    }

    fn write_description(&self, m: &mut Buffer) {
        let concatenated_ranges = self.flags() & NFT_SET_CONCAT != 0;
        if self.size.is_none() && !concatenated_ranges {
            return;
        }
        m.nest(NFTA_SET_DESC, |m| {
            if let Some(size) = self.size {
                m.be32(NFTA_SET_DESC_SIZE, size);
            }
            if concatenated_ranges {
                m.nest(NFTA_SET_DESC_CONCAT, |m| {
                    for field in self.key {
                        m.nest(NFTA_LIST_ELEM, |m| m.be32(NFTA_SET_FIELD_LEN, field.length()));
                    }
                });
            }
        });
    }

    /// Lets `nft list` print elements readably. `typeof` expressions only where they are needed: `nft` 1.0.6 crashes on some that
    /// later versions write.
    fn userdata(&self) -> Userdata {
        let mut userdata = Userdata::new();
        userdata.put_u32(KEY_BYTE_ORDER, byte_order(self.key));
        if let Some(data) = self.data {
            userdata.put_u32(DATA_BYTE_ORDER, data.byte_order());
        }
        let has_no_name = |field: &Field| matches!(field, Field::Index { .. });
        if self.key.iter().any(has_no_name) {
            put_typeof_fields(&mut userdata, KEY_TYPEOF, self.key);
            if let Some(MapData::Fields(fields)) = self.data {
                put_typeof_fields(&mut userdata, DATA_TYPEOF, fields);
            }
        }
        if self.data.is_some() {
            userdata.put_u32(DATA_INTERVAL, 0);
        }
        if let Some(comment) = self.comment {
            userdata.put_comment(SET_COMMENT, comment);
        }
        userdata
    }
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Refers to a set, by its name or by what [`Batch::add_set`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetRef<'a> {
    pub(super) name: &'a str,
    pub(super) id: Option<u32>,
}

impl<'a> From<&'a str> for SetRef<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, id: None }
    }
}

impl Batch {
    /// Changes at most timeout and size if the set exists. The kernel rejects a set that exists with another type.
    pub fn add_set<'a>(&mut self, set: &Set<'a>) -> SetRef<'a> {
        let id = self.next_set_id();
        self.message(NFT_MSG_NEWSET, NLM_F_CREATE, |m, table| {
            m.string(NFTA_TABLE, table);
            set.write(m, id);
        });
        SetRef { name: set.name, id: Some(id) }
    }

    /// The kernel rejects this while a rule refers to the set.
    pub fn delete_set(&mut self, name: &str) {
        self.named(NFT_MSG_DELSET, NFTA_SET_NAME, name);
    }

    /// Deletes all elements.
    pub fn flush_set(&mut self, name: &str) {
        self.named(NFT_MSG_DELSETELEM, NFTA_SET_ELEM_LIST_SET, name);
    }
}
