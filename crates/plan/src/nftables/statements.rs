//! What rules are made of. The same statements are sent to the kernel, printed, and interpreted by `run`, so that the three cannot disagree.

use std::fmt;

use ipnet::IpNet;
use model::address::Family;

use crate::mark::Mark;
use crate::nftables::sets::{EndpointList, LookupBy, Set};
use crate::nftables::slots::SlotRange;

/// A rule: matches from left to right, then what to do. A statement that does not match ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRule {
    pub statements: Vec<Statement>,
    pub comment: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// The first packet of a connection.
    StateNew,
    /// A connection whose destination was translated, by whomever.
    StatusDnat,
    In(Vec<PacketField>, Set),
    NotIn(Vec<PacketField>, Set),
    /// The field, an address, lies in the prefix.
    Within(PacketField, IpNet),
    NotWithin(PacketField, IpNet),
    /// The field is an address of this node.
    IsLocal(PacketField),
    FromInterface(Interface),
    NotFromInterface(Interface),
    /// Any of the mark's bits is set.
    Marked(Mark),
    SetMark(Mark),
    ClearMark(Mark),
    /// Sends the connection to what the map has for the key; no match if it has nothing.
    Dnat(Vec<PacketField>, Set),
    /// Session affinity. What is done for a frontend that has it; no match for one that has not.
    Affinity(LookupBy, Affinity),
    Masquerade,
    Jump(&'static str),
    Goto(&'static str),
    Return,
    Reject,
    Drop,
}

/// What session affinity does. Each begins with the same lookup, in [`Set::Sticky`], since rules cannot hand anything on
/// to the next one. Where it is about a list and none is given, it is the one that the frontend uses.
///
/// What a map gives cannot be written in the language of `nft` where it is part of another key, and listing it makes `nft`
/// abort. So the program hides it: the listing has `meta mark` in the place of every id and number of seconds, and nothing
/// at all for lookups of which nothing else is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// Nothing more: the frontend has it. After the translation it is looked for as the client saw it.
    Has,
    /// Sends the connection where the client went before, if that is still an endpoint of the list.
    Dnat(Option<EndpointList>),
    /// The client went somewhere before that is still an endpoint of the list. After the translation.
    IsValid(EndpointList),
    /// Forgets where the client went before. After the translation.
    Delete(EndpointList),
    /// Goes to the chain that learns with the frontend's timeout. After the translation.
    GotoUpdate,
    /// Remembers for so many seconds where the client went, or renews that, if it is an endpoint of the list. After the
    /// translation.
    Update(EndpointList, u32),
}

/// What of a packet, or of its connection, is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketField {
    Source,
    Destination,
    Protocol,
    DestinationPort,
    /// The destination before it was translated.
    OriginalDestination,
    OriginalDestinationPort,
    /// A number drawn by chance.
    Slot(SlotRange),
}

/// An interface by its name, or by how its name begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interface {
    Named(String),
    Prefixed(String),
}

impl ProgramRule {
    /// The rule as `nft list` prints it.
    pub fn show(&self, family: Family) -> String {
        let statements: Vec<_> = self.statements.iter().map(|statement| statement.show(family)).collect();
        let statements: Vec<_> = statements.into_iter().filter(|statement| !statement.is_empty()).collect();
        match self.comment {
            Some(comment) => format!("{} comment \"{comment}\"", statements.join(" ")),
            None => statements.join(" "),
        }
    }
}

impl Statement {
    fn show(&self, family: Family) -> String {
        let ip = protocol_name(family);
        let concat = |fields: &[PacketField]| {
            let fields: Vec<_> = fields.iter().map(|field| field.show(family)).collect();
            fields.join(" . ")
        };
        match self {
            Self::StateNew => "ct state new".into(),
            Self::StatusDnat => "ct status dnat".into(),
            Self::In(fields, set) => format!("{} @{}", concat(fields), set.name()),
            Self::NotIn(fields, set) => format!("{} != @{}", concat(fields), set.name()),
            Self::Within(field, net) => format!("{} {}", field.show(family), show_net(*net)),
            Self::NotWithin(field, net) => format!("{} != {}", field.show(family), show_net(*net)),
            Self::IsLocal(PacketField::Source) => "fib saddr type local".into(),
            Self::IsLocal(_) => "fib daddr type local".into(),
            Self::FromInterface(name) => format!("iifname {name}"),
            Self::NotFromInterface(name) => format!("iifname != {name}"),
            Self::Marked(mark) => format!("meta mark & {mark} != 0x00000000"),
            Self::SetMark(mark) => format!("meta mark set meta mark | {mark}"),
            Self::ClearMark(mark) => format!("meta mark set meta mark ^ {mark}"),
            Self::Dnat(key, map) => format!("dnat {ip} to {} map @{}", concat(key), map.name()),
            Self::Affinity(by, what) => what.show(*by, family),
            Self::Masquerade => "masquerade fully-random".into(),
            Self::Jump(chain) => format!("jump {chain}"),
            Self::Goto(chain) => format!("goto {chain}"),
            Self::Return => "return".into(),
            Self::Reject => "reject".into(),
            Self::Drop => "drop".into(),
        }
    }
}

impl Affinity {
    /// The list, unless it is the one that the frontend uses.
    pub fn list(self) -> Option<EndpointList> {
        match self {
            Self::Has | Self::GotoUpdate => None,
            Self::Dnat(list) => list,
            Self::IsValid(list) | Self::Delete(list) | Self::Update(list, _) => Some(list),
        }
    }

    fn show(self, by: LookupBy, family: Family) -> String {
        let ip = protocol_name(family);
        let id = match self.list() {
            None => "meta mark".to_owned(),
            Some(EndpointList::Cluster) => format!("meta mark & {:#010x}", !EndpointList::BIT),
            Some(EndpointList::Local) => format!("meta mark | {:#010x}", EndpointList::BIT),
        };
        let affinity = Set::Affinity.name();
        let (key, data) = (format!("{id} . {ip} saddr"), format!("meta l4proto . {ip} daddr . th dport"));
        match self {
            Self::Has | Self::IsValid(_) => String::new(),
            Self::Dnat(_) => {
                format!("dnat {ip} to {ip} daddr . th dport . {id} map @{}", Set::StickyEndpoints.name())
            }
            Self::Delete(_) => format!("delete @{affinity} {{ {key} : {data} }}"),
            Self::GotoUpdate => format!("{id} vmap @{}", Set::Timeouts(by).name()),
            Self::Update(_, seconds) => {
                format!("update @{affinity} {{ {key} timeout {} : {data} }}", show_time(seconds))
            }
        }
    }
}

impl PacketField {
    fn show(self, family: Family) -> String {
        let ip = protocol_name(family);
        match self {
            Self::Source => format!("{ip} saddr"),
            Self::Destination => format!("{ip} daddr"),
            Self::Protocol => "meta l4proto".into(),
            Self::DestinationPort => "th dport".into(),
            Self::OriginalDestination => format!("ct original {ip} daddr"),
            Self::OriginalDestinationPort => "ct original proto-dst".into(),
            Self::Slot(SlotRange { count, first: 0 }) => format!("numgen random mod {count}"),
            Self::Slot(SlotRange { count, first }) => format!("numgen random mod {count} offset {first}"),
        }
    }
}

pub(super) fn protocol_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

fn show_net(net: IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

/// `3h`, `1h30m`, `90s` is `1m30s`.
fn show_time(seconds: u32) -> String {
    let parts =
        [(seconds / 86_400, "d"), (seconds / 3_600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect()
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(f, "\"{name}\""),
            Self::Prefixed(prefix) => write!(f, "\"{prefix}*\""),
        }
    }
}
