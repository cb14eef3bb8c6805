//! Decodes objects from dumps, as far as comparisons need them.

use std::time::Duration;

use crate::Family;
use crate::attributes::{Attribute, Attributes};
use crate::message::Message;
use crate::nftables::objects::{ChainKind, Hook, HookPoint, Policy};
use crate::nftables::sets::{MapData, SET_COMMENT, Set, length, type_number};
use crate::nftables::userdata;
use crate::nftables::value::Verdict;
use crate::nftables::wire::*;

/// A version of the ruleset, which consists of all tables of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Incremented by each commit.
    pub id: u32,
    /// The thread that requested the generation or, in an event, that committed. In the initial pid namespace.
    pub pid: u32,
    /// The name of that thread.
    pub process: String,
}

impl Generation {
    /// `None` unless the message is of this kind.
    #[must_use]
    pub fn from_wire(message: &Message<'_>) -> Option<Self> {
        let attributes = body(message, NFT_MSG_NEWGEN)?;
        let number = |kind| attributes.find(kind).and_then(|a| a.be32());
        Some(Self {
            id: number(NFTA_GEN_ID)?,
            pid: number(NFTA_GEN_PROC_PID).unwrap_or(0),
            process: name(attributes, NFTA_GEN_PROC_NAME).unwrap_or_default(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTable {
    pub family: Family,
    pub name: String,
    pub handle: u64,
    /// The port of the socket that owns it. `None` for a persistent table whose owner was closed.
    pub owner: Option<u32>,
    /// Whether it outlives its owner.
    pub persistent: bool,
    pub comment: Option<String>,
}

impl FoundTable {
    /// `None` unless the message is of this kind and of an IP family.
    #[must_use]
    pub fn from_wire(message: &Message<'_>) -> Option<Self> {
        let attributes = body(message, NFT_MSG_NEWTABLE)?;
        let flags = attributes.find(NFTA_TABLE_FLAGS).and_then(|a| a.be32()).unwrap_or(0);
        Some(Self {
            family: family(message)?,
            name: name(attributes, NFTA_TABLE_NAME)?,
            handle: handle(attributes, NFTA_TABLE_HANDLE),
            owner: attributes.find(NFTA_TABLE_OWNER).and_then(|a| a.be32()),
            persistent: flags & NFT_TABLE_F_PERSIST != 0,
            comment: comment(attributes, NFTA_TABLE_USERDATA, userdata::COMMENT),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundChain {
    pub family: Family,
    pub table: String,
    pub name: String,
    pub handle: u64,
    /// Also `None` for a hook of an unknown kind.
    pub hook: Option<Hook>,
    pub comment: Option<String>,
}

impl FoundChain {
    /// `None` unless the message is of this kind and of an IP family.
    #[must_use]
    pub fn from_wire(message: &Message<'_>) -> Option<Self> {
        let attributes = body(message, NFT_MSG_NEWCHAIN)?;
        Some(Self {
            family: family(message)?,
            table: name(attributes, NFTA_TABLE)?,
            name: name(attributes, NFTA_CHAIN_NAME)?,
            handle: handle(attributes, NFTA_CHAIN_HANDLE),
            hook: hook(attributes),
            comment: comment(attributes, NFTA_CHAIN_USERDATA, userdata::COMMENT),
        })
    }
}

fn hook(attributes: Attributes<'_>) -> Option<Hook> {
    let nest = attributes.find(NFTA_CHAIN_HOOK)?.nested();
    Some(Hook {
        kind: ChainKind::from_wire(attributes.find(NFTA_CHAIN_TYPE)?.str()?)?,
        point: HookPoint::from_wire(nest.find(NFTA_HOOK_HOOKNUM)?.be32()?)?,
        priority: nest.find(NFTA_HOOK_PRIORITY)?.be32()?.cast_signed(),
        policy: attributes.find(NFTA_CHAIN_POLICY).and_then(|a| Policy::from_wire(a.be32()?)),
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRule {
    pub family: Family,
    pub table: String,
    pub chain: String,
    pub handle: u64,
    pub comment: Option<String>,
    pub fingerprint: Option<u64>,
    /// As the kernel encodes them: deterministic except for counters, but different from what was sent.
    pub expressions: Box<[u8]>,
}

impl FoundRule {
    /// `None` unless the message is of this kind and of an IP family.
    #[must_use]
    pub fn from_wire(message: &Message<'_>) -> Option<Self> {
        let attributes = body(message, NFT_MSG_NEWRULE)?;
        let fingerprint = attributes
            .find(NFTA_RULE_USERDATA)
            .and_then(|a| userdata::find(a.value, userdata::FINGERPRINT))
            .and_then(|bytes| bytes.try_into().ok());
        Some(Self {
            family: family(message)?,
            table: name(attributes, NFTA_TABLE)?,
            chain: name(attributes, NFTA_RULE_CHAIN)?,
            handle: handle(attributes, NFTA_RULE_HANDLE),
            comment: comment(attributes, NFTA_RULE_USERDATA, userdata::COMMENT),
            fingerprint: fingerprint.map(u64::from_be_bytes),
            expressions: attributes.find(NFTA_RULE_EXPRESSIONS).map(|a| a.value.into()).unwrap_or_default(),
        })
    }

    /// The names of the expressions, such as `payload`, `lookup` or `nat`.
    pub fn expression_names(&self) -> impl Iterator<Item = &str> {
        Attributes::new(&self.expressions).filter_map(|entry| entry.nested().find(NFTA_EXPR_NAME)?.str())
    }
}

/// A set or map without its elements. Compare it by [`Set::agrees_with`](super::Set::agrees_with).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSet {
    pub family: Family,
    pub table: String,
    pub name: String,
    pub handle: u64,
    pub(super) flags: u32,
    pub(super) key_type: u32,
    pub(super) key_length: u32,
    pub(super) data_type: Option<u32>,
    pub(super) data_length: Option<u32>,
    pub timeout: Option<Duration>,
    pub size: Option<u32>,
    /// The number of elements, from kernels that report it (observed on 6.18).
    pub count: Option<u32>,
    pub counter: bool,
    pub comment: Option<String>,
}

impl Set<'_> {
    /// Whether the kernel would accept this set in place of `found`, and change at most timeout and size. If not, the old one
    /// must be deleted first.
    #[must_use]
    pub fn agrees_with(&self, found: &FoundSet) -> bool {
        found.name == self.name
            && found.flags == self.flags()
            && found.key_type == type_number(self.key)
            && found.key_length == length(self.key)
            && self.data.map_or(found.data_type.is_none(), |data| data.agrees_with(found))
            && found.counter == self.counter
    }
}

impl MapData<'_> {
    /// The kernel does not keep the length of verdicts.
    fn agrees_with(self, found: &FoundSet) -> bool {
        let lengths_agree = match self {
            Self::Verdict => true,
            Self::Fields(fields) => found.data_length == Some(length(fields)),
        };
        lengths_agree && found.data_type == Some(self.type_number())
    }
}

impl FoundSet {
    /// `None` unless the message is of this kind and of an IP family.
    #[must_use]
    pub fn from_wire(message: &Message<'_>) -> Option<Self> {
        let attributes = body(message, NFT_MSG_NEWSET)?;
        let number = |kind| attributes.find(kind).and_then(|a| a.be32());
        let description = attributes.find(NFTA_SET_DESC);
        let size = description.and_then(|a| a.nested().find(NFTA_SET_DESC_SIZE)?.be32());
        Some(Self {
            family: family(message)?,
            table: name(attributes, NFTA_TABLE)?,
            name: name(attributes, NFTA_SET_NAME)?,
            handle: handle(attributes, NFTA_SET_HANDLE),
            flags: number(NFTA_SET_FLAGS).unwrap_or(0),
            key_type: number(NFTA_SET_KEY_TYPE).unwrap_or(0),
            key_length: number(NFTA_SET_KEY_LEN)?,
            data_type: number(NFTA_SET_DATA_TYPE),
            data_length: number(NFTA_SET_DATA_LEN),
            timeout: milliseconds(attributes, NFTA_SET_TIMEOUT),
            size,
            count: number(NFTA_SET_COUNT),
            counter: counter(attributes, NFTA_SET_EXPR, NFTA_SET_EXPRESSIONS).is_some(),
            comment: comment(attributes, NFTA_SET_USERDATA, SET_COMMENT),
        })
    }
}

/// An element that borrows from the message of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundElement<'a> {
    pub key: &'a [u8],
    pub key_end: Option<&'a [u8]>,
    pub data: Option<FoundDatum<'a>>,
    pub interval_end: bool,
    pub counter: Option<Counter>,
    pub timeout: Option<Duration>,
    pub comment: Option<&'a str>,
}

/// The data of a map element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundDatum<'a> {
    Value(&'a [u8]),
    Verdict(Verdict<'a>),
}

/// The packets that a rule or element has matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

impl<'a> FoundElement<'a> {
    /// The elements of one message of a dump, except those without a key, which this crate never creates. `None` for any other
    /// message.
    pub fn all_from_wire(message: &Message<'a>) -> Option<impl Iterator<Item = Self> + use<'a>> {
        let attributes = body(message, NFT_MSG_NEWSETELEM)?;
        let list = attributes.find(NFTA_SET_ELEM_LIST_ELEMENTS).map(|list| list.nested());
        Some(list.into_iter().flatten().filter_map(|entry| Self::from_attributes(entry.nested())))
    }

    /// In one iteration, since elements are as numerous as endpoints.
    fn from_attributes(attributes: Attributes<'a>) -> Option<Self> {
        let mut element = Self {
            key: &[],
            key_end: None,
            data: None,
            interval_end: false,
            counter: None,
            timeout: None,
            comment: None,
        };
        let value = |attribute: Attribute<'a>| Some(attribute.nested().find(NFTA_DATA_VALUE)?.value);
        let time = |attribute: Attribute<'a>| attribute.be64().map(Duration::from_millis);
        for attribute in attributes {
            match attribute.kind {
                NFTA_SET_ELEM_KEY => element.key = value(attribute)?,
                NFTA_SET_ELEM_KEY_END => element.key_end = value(attribute),
                NFTA_SET_ELEM_DATA => element.data = FoundDatum::from_attributes(attribute.nested()),
                NFTA_SET_ELEM_FLAGS => {
                    element.interval_end = attribute.be32()? & NFT_SET_ELEM_INTERVAL_END != 0;
                }
                NFTA_SET_ELEM_EXPR => element.counter = counter_of(attribute.nested()),
                NFTA_SET_ELEM_EXPRESSIONS => element.counter = counter_among(attribute.nested()),
                NFTA_SET_ELEM_TIMEOUT => element.timeout = time(attribute),
                NFTA_SET_ELEM_USERDATA => {
                    element.comment = userdata::find_comment(attribute.value, userdata::COMMENT);
                }
                _ => {}
            }
        }
        (!element.key.is_empty()).then_some(element)
    }
}

impl<'a> FoundDatum<'a> {
    fn from_attributes(attributes: Attributes<'a>) -> Option<Self> {
        let attribute = attributes.into_iter().next()?;
        match attribute.kind {
            NFTA_DATA_VALUE => Some(Self::Value(attribute.value)),
            NFTA_DATA_VERDICT => {
                let verdict = attribute.nested();
                let chain = verdict.find(NFTA_VERDICT_CHAIN).and_then(|a| a.str());
                Verdict::from_wire(verdict.find(NFTA_VERDICT_CODE)?.be32()?, chain).map(Self::Verdict)
            }
            _ => None,
        }
    }
}

/// The counter of an object that has one expression or a list of them.
fn counter(attributes: Attributes<'_>, single: u16, list: u16) -> Option<Counter> {
    let single = attributes.find(single).and_then(|a| counter_of(a.nested()));
    single.or_else(|| counter_among(attributes.find(list)?.nested()))
}

fn counter_among(mut list: Attributes<'_>) -> Option<Counter> {
    list.find_map(|entry| counter_of(entry.nested()))
}

fn counter_of(expression: Attributes<'_>) -> Option<Counter> {
    if expression.find(NFTA_EXPR_NAME)?.str()? != "counter" {
        return None;
    }
    let data = expression.find(NFTA_EXPR_DATA)?.nested();
    let number = |kind| data.find(kind).and_then(|a| a.be64()).unwrap_or(0);
    Some(Counter { packets: number(NFTA_COUNTER_PACKETS), bytes: number(NFTA_COUNTER_BYTES) })
}

/// The attributes, if the message is of this kind.
fn body<'a>(message: &Message<'a>, kind: u8) -> Option<Attributes<'a>> {
    (message_of(message.header.kind)? == kind).then(|| message.attributes(FIXED))
}

pub(super) fn family(message: &Message<'_>) -> Option<Family> {
    let [family, ..] = *message.fixed::<FIXED>()?;
    Family::from_wire(family)
}

fn name(attributes: Attributes<'_>, kind: u16) -> Option<String> {
    attributes.find(kind)?.str().map(str::to_owned)
}

fn handle(attributes: Attributes<'_>, kind: u16) -> u64 {
    attributes.find(kind).and_then(|a| a.be64()).unwrap_or(0)
}

fn comment(attributes: Attributes<'_>, kind: u16, entry: u8) -> Option<String> {
    userdata::find_comment(attributes.find(kind)?.value, entry).map(str::to_owned)
}

fn milliseconds(attributes: Attributes<'_>, kind: u16) -> Option<Duration> {
    attributes.find(kind)?.be64().map(Duration::from_millis)
}

/// Runs every decoder of this module over one message; see [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn decode_all(message: &Message<'_>) {
    let _ = (
        Generation::from_wire(message),
        FoundTable::from_wire(message),
        FoundChain::from_wire(message),
        FoundRule::from_wire(message).map(|rule| rule.expression_names().count()),
        FoundSet::from_wire(message),
        FoundElement::all_from_wire(message).map(Iterator::count),
        super::events::Notification::from_wire(message),
        super::describe::describe(message, message.header.sequence.checked_sub(1)),
    );
}
