//! What rules are made of. The same words are sent to the kernel and printed, so the two cannot disagree.

use std::fmt;

use ipnet::IpNet;
use model::address::Family;

use crate::mark::Mark;
use crate::nftables::sets::Set;
use crate::nftables::slots::Draw;

/// A rule: matches from left to right, then what to do. A word that does not match ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub words: Vec<Word>,
    pub comment: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The first packet of a connection.
    StateNew,
    /// A connection whose destination was translated, by whomever.
    StatusDnat,
    In(Vec<Field>, Set),
    NotIn(Vec<Field>, Set),
    /// The field, an address, lies in the prefix.
    Within(Field, IpNet),
    NotWithin(Field, IpNet),
    /// The field is an address of this node.
    IsLocal(Field),
    FromInterface(Interface),
    NotFromInterface(Interface),
    /// Any of the mark's bits is set.
    Marked(Mark),
    SetMark(Mark),
    ClearMark(Mark),
    /// Sends the connection to what the map has for the key; no match if it has nothing.
    Dnat(Vec<Field>, Set),
    /// Remembers, or renews what is remembered: key, map, seconds, data.
    Learn(Vec<Field>, Set, u32, Vec<Field>),
    Masquerade,
    Jump(&'static str),
    Goto(&'static str),
    Reject,
    Drop,
}

/// What of a packet, or of its connection, is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Source,
    Destination,
    Protocol,
    DestinationPort,
    /// The destination before it was translated.
    OriginalDestination,
    OriginalDestinationPort,
    /// A number drawn by chance.
    Slot(Draw),
}

/// An interface by its name, or by how its name begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interface {
    Named(String),
    Prefixed(String),
}

impl Rule {
    /// The rule as `nft list` prints it.
    pub fn show(&self, family: Family) -> String {
        let words: Vec<_> = self.words.iter().map(|word| word.show(family)).collect();
        match self.comment {
            Some(comment) => format!("{} comment \"{comment}\"", words.join(" ")),
            None => words.join(" "),
        }
    }
}

impl Word {
    fn show(&self, family: Family) -> String {
        let ip = protocol_name(family);
        let concat = |fields: &[Field]| {
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
            Self::IsLocal(Field::Source) => "fib saddr type local".into(),
            Self::IsLocal(_) => "fib daddr type local".into(),
            Self::FromInterface(name) => format!("iifname {name}"),
            Self::NotFromInterface(name) => format!("iifname != {name}"),
            Self::Marked(mark) => format!("meta mark & {mark} != 0x00000000"),
            Self::SetMark(mark) => format!("meta mark set meta mark | {mark}"),
            Self::ClearMark(mark) => format!("meta mark set meta mark ^ {mark}"),
            Self::Dnat(key, map) => format!("dnat {ip} to {} map @{}", concat(key), map.name()),
            Self::Learn(key, map, seconds, data) => {
                let (key, data) = (concat(key), concat(data));
                format!("update @{} {{ {key} timeout {} : {data} }}", map.name(), show_time(*seconds))
            }
            Self::Masquerade => "masquerade fully-random".into(),
            Self::Jump(chain) => format!("jump {chain}"),
            Self::Goto(chain) => format!("goto {chain}"),
            Self::Reject => "reject".into(),
            Self::Drop => "drop".into(),
        }
    }
}

impl Field {
    fn show(self, family: Family) -> String {
        let ip = protocol_name(family);
        match self {
            Self::Source => format!("{ip} saddr"),
            Self::Destination => format!("{ip} daddr"),
            Self::Protocol => "meta l4proto".into(),
            Self::DestinationPort => "th dport".into(),
            Self::OriginalDestination => format!("ct original {ip} daddr"),
            Self::OriginalDestinationPort => "ct original proto-dst".into(),
            Self::Slot(Draw { count, first: 0 }) => format!("numgen random mod {count}"),
            Self::Slot(Draw { count, first }) => format!("numgen random mod {count} offset {first}"),
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
