//! The statements of rules. The same statements are sent to the kernel, printed, and followed by `interpreter`, so that the three
//! cannot disagree.

use std::borrow::Cow;
use std::fmt;

use ipnet::IpNet;
use model::address::Family;
use model::hashing::ClientHash;

use crate::mark::Mark;
use crate::nftables::hashing::CLIENT_SEED;
use crate::nftables::sets::{Clients, EndpointList, LookupBy, Set};
use crate::nftables::slots::{HASH_RANGE, SlotRange};

/// A rule. The kernel evaluates its statements in order, and stops at the first that does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRule {
    pub statements: Vec<Statement>,
    pub comment: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// The first packet of a connection.
    StateNew,
    /// A connection whose destination was translated, not necessarily by us.
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
    /// Uses the endpoint list of the frontend for these clients; no match for a destination without one.
    List(LookupBy, Clients, ListUse),
    /// Session affinity; no match for a frontend without it.
    Affinity(LookupBy, Affinity),
    Masquerade,
    Jump(Cow<'static, str>),
    Goto(&'static str),
    Return,
    Reject,
    Drop,
}

/// A statement about the endpoint list of a frontend. Each starts with the same lookup in [`Set::Lists`], since a rule cannot pass
/// a value to the next one.
///
/// The syntax of `nft` cannot express that the value of a map is part of another key, and `nft` aborts when it lists such a
/// rule. So the program hides these lookups: the listing shows `meta mark` instead of each id and number of seconds, and
/// omits lookups of which it would show nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListUse {
    /// Only the lookup.
    Has,
    /// Goes to the first chain of the frontend.
    GotoFirst,
    /// Jumps to the chain that draws a slot of the list.
    JumpDraw,
    /// Translates to the endpoint in a random slot of this range; no match if the slot is empty.
    Dnat(SlotRange),
    /// Translates to the endpoint in the slot that the client is hashed to.
    HashDnat(ClientHash),
}

/// A statement of session affinity. Each starts with the same lookup in [`Set::Sticky`], as explained at [`ListUse`]. Without a
/// list, it uses that of the frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// Only the lookup. After the translation, it uses the original destination.
    Has,
    /// Translates to the client's endpoint in [`Set::Affinity`], if the list still has it.
    Dnat(Option<EndpointList>),
    /// The list still has the client's endpoint in [`Set::Affinity`]. After the translation.
    IsValid(EndpointList),
    /// Deletes the client from [`Set::Affinity`]. After the translation.
    Delete(EndpointList),
    /// Goes to the chain that updates [`Set::Affinity`] with the frontend's timeout. After the translation.
    GotoUpdate,
    /// Adds the client and its endpoint to [`Set::Affinity`] with this timeout in seconds, or renews the timeout, if the list has
    /// the endpoint. After the translation.
    Update(EndpointList, u32),
}

/// A field of a packet or of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketField {
    Source,
    SourcePort,
    Destination,
    Protocol,
    DestinationPort,
    /// The destination before it was translated.
    OriginalDestination,
    OriginalDestinationPort,
}

/// The fields of a frontend, with the destination before or after it was translated.
pub const fn frontend_fields(by: LookupBy, is_translated: bool) -> &'static [PacketField] {
    use PacketField::{Destination, DestinationPort, OriginalDestination, OriginalDestinationPort, Protocol};
    match (by, is_translated) {
        (LookupBy::Address, false) => &[Destination, Protocol, DestinationPort],
        (LookupBy::Address, true) => &[OriginalDestination, Protocol, OriginalDestinationPort],
        (LookupBy::NodePort, false) => &[Protocol, DestinationPort],
        (LookupBy::NodePort, true) => &[Protocol, OriginalDestinationPort],
    }
}

/// What is hashed of a client.
pub const fn hash_fields(hash: ClientHash) -> &'static [PacketField] {
    match hash {
        ClientHash::Address => &[PacketField::Source],
        ClientHash::AddressAndPort => &[PacketField::Source, PacketField::SourcePort],
    }
}

/// An interface, by its name or by a prefix of its name.
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
            Self::List(by, clients, what) => what.show(*by, *clients, family),
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

impl ListUse {
    fn show(self, by: LookupBy, clients: Clients, family: Family) -> String {
        let ip = protocol_name(family);
        match self {
            Self::Has => String::new(),
            Self::GotoFirst => format!("meta mark vmap @{}", Set::FirstChains(by).name()),
            Self::JumpDraw => format!("meta mark vmap @{}", Set::DrawChains(by, clients).name()),
            Self::Dnat(SlotRange { count, first }) => {
                let offset = if first == 0 { String::new() } else { format!(" offset {first}") };
                let endpoints = Set::Endpoints.name();
                format!("dnat {ip} to meta mark . numgen random mod {count}{offset} map @{endpoints}")
            }
            Self::HashDnat(hash) => {
                let client: Vec<String> = hash_fields(hash).iter().map(|field| field.show(family)).collect();
                let (client, endpoints) = (client.join(" . "), Set::Endpoints.name());
                let SlotRange { count, first } = HASH_RANGE;
                let hash = format!("jhash {client} mod {count} seed {CLIENT_SEED:#x} offset {first}");
                format!("dnat {ip} to meta mark . {hash} map @{endpoints}")
            }
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
            Self::SourcePort => "th sport".into(),
            Self::Destination => format!("{ip} daddr"),
            Self::Protocol => "meta l4proto".into(),
            Self::DestinationPort => "th dport".into(),
            Self::OriginalDestination => format!("ct original {ip} daddr"),
            Self::OriginalDestinationPort => "ct original proto-dst".into(),
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
