//! Compiles statements to the expressions that the kernel runs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use model::address::Family;
use model::hashing::ClientHash;
use netlink::nftables::{
    self as nft, Base, Comparison, ConntrackKey, Direction, DynamicOperation, Expression, FibResult, MetaKey,
    NatFlags, NatKind, NumberGenerator, Register, Registers, RejectWith, Value, Verdict,
};
use plan::mark::Mark;
use plan::nftables::hashing::CLIENT_SEED;
use plan::nftables::program::{HookKind, PacketHook, ProgramChain};
use plan::nftables::sets::{Clients, EndpointList, LookupBy, Set, SetKind, Type};
use plan::nftables::slots::{HASH_RANGE, SlotRange};
use plan::nftables::statements::{
    Affinity, Interface, ListUse, PacketField, ProgramRule, Statement, frontend_fields, hash_fields,
};

use crate::wire_family;

/// Distinguishes a rule of ours from all others, including those of other versions of this program. The kernel stores it with
/// the rule.
pub fn fingerprint(rule: &ProgramRule, family: Family) -> u64 {
    // Increment it when the same statements compile to other expressions.
    const COMPILER: u32 = 2;
    let mut hasher = DefaultHasher::new();
    // `show` does not print all of a statement.
    (COMPILER, rule.show(family), format!("{:?}", rule.statements)).hash(&mut hasher);
    hasher.finish()
}

/// Adds a rule to the end of its chain.
pub fn add_rule(batch: &mut nft::Batch, chain: &str, rule: &ProgramRule, family: Family) {
    let mut expressions = Vec::new();
    for statement in &rule.statements {
        compile(statement, family, &mut expressions);
    }
    let fingerprint = Some(fingerprint(rule, family));
    batch.add_rule(&nft::Rule { chain, expressions: &expressions, comment: rule.comment, fingerprint });
}

pub fn hook(chain: &ProgramChain) -> Option<nft::Hook> {
    chain.hook.map(|hook| nft::Hook {
        kind: match hook.kind {
            HookKind::Filter => nft::ChainKind::Filter,
            HookKind::Nat => nft::ChainKind::Nat,
        },
        point: match hook.point {
            PacketHook::Prerouting => nft::HookPoint::Prerouting,
            PacketHook::Input => nft::HookPoint::Input,
            PacketHook::Forward => nft::HookPoint::Forward,
            PacketHook::Output => nft::HookPoint::Output,
            PacketHook::Postrouting => nft::HookPoint::Postrouting,
        },
        priority: hook.priority,
        policy: None,
    })
}

/// Calls `with` with the declaration of a set.
pub fn declare<T>(set: Set, family: Family, with: impl FnOnce(&nft::Set<'_>) -> T) -> T {
    /// Enough for all clients of a busy node. The kernel's default is 65,535.
    const MAX_CLIENTS: u32 = 1 << 20;
    let fields = |types: &[Type]| types.iter().map(|kind| field(*kind, family)).collect::<Vec<_>>();
    let (key, data) = (fields(&set.key()), fields(set.data()));
    let kind = set.kind();
    with(&nft::Set {
        data: match set.data() {
            [] => None,
            [Type::Verdict] => Some(nft::MapData::Verdict),
            _ => Some(nft::MapData::Fields(&data)),
        },
        interval: kind == SetKind::Ranges,
        dynamic: kind == SetKind::Dynamic,
        timeouts: kind == SetKind::Dynamic,
        size: (kind == SetKind::Dynamic).then_some(MAX_CLIENTS),
        counter: kind == SetKind::Counting,
        comment: Some(set.comment()),
        ..nft::Set::new(set.name(), &key)
    })
}

fn field(kind: Type, family: Family) -> nft::Field {
    match (kind, family) {
        (Type::Address, Family::V4) => nft::Field::Ipv4Address,
        (Type::Address, Family::V6) => nft::Field::Ipv6Address,
        (Type::Protocol, _) => nft::Field::Protocol,
        (Type::Port, _) => nft::Field::Port,
        // Slots have a type without a name, which listings show as a `numgen` with some modulus.
        (Type::Slot, _) => nft::Field::Index { modulus: 65_536 },
        // A verdict is not a field. No caller passes one.
        (Type::Number | Type::Verdict, _) => nft::Field::Mark,
    }
}

fn compile<'a>(statement: &'a Statement, family: Family, out: &mut Vec<Expression<'a>>) {
    const FIRST: Register = Register::FIRST;
    match statement {
        Statement::StateNew => any_bit(ConntrackKey::State, ConntrackKey::STATE_NEW, out),
        Statement::StatusDnat => any_bit(ConntrackKey::Status, ConntrackKey::STATUS_DNAT, out),
        Statement::In(fields, set) => {
            let key = load(fields, family, &mut Registers::default(), out);
            out.push(Expression::Lookup { set: set.name().into(), key });
        }
        Statement::NotIn(fields, set) => {
            let key = load(fields, family, &mut Registers::default(), out);
            out.push(Expression::LookupMissing { set: set.name().into(), key });
        }
        Statement::Within(field, net) => within(*field, *net, Comparison::Equal, family, out),
        Statement::NotWithin(field, net) => within(*field, *net, Comparison::NotEqual, family, out),
        Statement::IsLocal(field) => {
            let source = *field == PacketField::Source;
            out.push(Expression::Fib {
                source,
                destination: !source,
                result: FibResult::AddressType,
                to: FIRST,
            });
            out.push(equal(FibResult::LOCAL.to_ne_bytes().into()));
        }
        Statement::FromInterface(interface) => from_interface(interface, Comparison::Equal, out),
        Statement::NotFromInterface(interface) => from_interface(interface, Comparison::NotEqual, out),
        Statement::Marked(mark) => {
            out.push(Expression::Meta { key: MetaKey::Mark, to: FIRST });
            out.push(bits(mark.get(), 0));
            out.push(Expression::Compare {
                from: FIRST,
                comparison: Comparison::NotEqual,
                value: [0; 4].into(),
            });
        }
        Statement::SetMark(mark) => rewrite_mark(!mark.get(), *mark, out),
        Statement::ClearMark(mark) => rewrite_mark(u32::MAX, *mark, out),
        Statement::List(by, clients, what) => use_list(*by, *clients, *what, family, out),
        Statement::Affinity(by, what) => AffinityRegisters::new(*by, *what, family).compile(*what, out),
        Statement::Masquerade => out.push(Expression::Masquerade { flags: NatFlags::FullyRandom }),
        Statement::Jump(chain) => out.push(Expression::Verdict(Verdict::Jump(chain))),
        Statement::Goto(chain) => out.push(Expression::Verdict(Verdict::Goto(chain))),
        Statement::Return => out.push(Expression::Verdict(Verdict::Return)),
        Statement::Reject => out.push(Expression::Reject(RejectWith::PortUnreachable(wire_family(family)))),
        Statement::Drop => out.push(Expression::Verdict(Verdict::Drop)),
    }
}

/// Translates the destination to the address and port that a map has put into the first registers.
fn dnat_from_first(family: Family, out: &mut Vec<Expression<'_>>) {
    let mut registers = Registers::default();
    let address = registers.take(address_length(family));
    let port = Some(registers.take(2));
    let family = wire_family(family);
    out.push(Expression::Nat { kind: NatKind::Destination, family, address, port, flags: NatFlags::None });
}

/// Looks up the endpoint list of a frontend, and uses it. The map stores its data in the first four registers: service port,
/// list, first chain, chain that draws a slot. As [`AffinityRegisters`] explains, `nft` shows what was loaded before.
fn use_list(by: LookupBy, clients: Clients, what: ListUse, family: Family, out: &mut Vec<Expression<'_>>) {
    let mut registers = Registers::default();
    let mut take = || registers.take(4);
    let (service_port, list, first, draw) = (take(), take(), take(), take());
    let shown = match what {
        ListUse::Has => None,
        ListUse::GotoFirst => Some(first),
        ListUse::JumpDraw => Some(draw),
        ListUse::Dnat(_) | ListUse::HashDnat(_) => Some(list),
    };
    out.extend(shown.map(|to| Expression::Meta { key: MetaKey::Mark, to }));
    let key = load(frontend_fields(by, false), family, &mut frontend_registers(), out);
    let map = Set::Lists(by, clients).name().into();
    out.push(Expression::LookupData { map, key, to: service_port });
    match what {
        ListUse::Has => {}
        ListUse::GotoFirst => {
            out.push(Expression::LookupVerdict { map: Set::FirstChains(by).name().into(), key: first });
        }
        ListUse::JumpDraw => {
            let map = Set::DrawChains(by, clients).name().into();
            out.push(Expression::LookupVerdict { map, key: draw });
        }
        ListUse::Dnat(SlotRange { count: modulus, first: offset }) => {
            let (generator, to) = (NumberGenerator::Random, first);
            out.push(Expression::Numgen { generator, modulus, offset, to });
            dnat_to_slot(list, family, out);
        }
        ListUse::HashDnat(hash) => {
            // In the registers of the frontend, which has been looked up.
            let from = load(hash_fields(hash), family, &mut frontend_registers(), out);
            out.push(hash_of(hash, from, first, family));
            dnat_to_slot(list, family, out);
        }
    }
}

/// Translates the destination to the endpoint in a slot. The slot is in the register after that of its list.
fn dnat_to_slot(list: Register, family: Family, out: &mut Vec<Expression<'_>>) {
    let map = Set::Endpoints.name().into();
    out.push(Expression::LookupData { map, key: list, to: Register::FIRST });
    dnat_from_first(family, out);
}

fn hash_of(hash: ClientHash, from: Register, to: Register, family: Family) -> Expression<'static> {
    // A port takes a whole register, the rest of which is zero.
    let length = hash_fields(hash).iter().map(|field| length(*field, family).next_multiple_of(4)).sum();
    let SlotRange { count: modulus, first: offset } = HASH_RANGE;
    Expression::Hash { from, length, modulus, seed: CLIENT_SEED, offset, to }
}

/// A rule that the kernel refuses if it cannot hash.
pub fn hash_probe(family: Family) -> Vec<Expression<'static>> {
    let hash = ClientHash::Address;
    let mut out = Vec::new();
    let from = load(hash_fields(hash), family, &mut Registers::default(), &mut out);
    out.push(hash_of(hash, from, Register::FIRST, family));
    out
}

/// An IPv6 frontend takes the last six of the sixteen registers.
fn frontend_registers() -> Registers {
    let mut registers = Registers::default();
    registers.take(4 * 10);
    registers
}

/// The registers that the rules of session affinity use:
///
/// ```text
///   protocol  address  port  list  client  (unused)  frontend
///             └── key of sticky-endpoints ──┘
///                           └─ key of affinity
///   └── data of affinity ──┘
///                     └─ data of sticky: service port, list, seconds
/// ```
///
/// When it lists rules, `nft` tracks what was last stored *at* each register, and aborts when a key covers a register at which a
/// map stored its data. So every map stores its data at a register that no key covers: 32 bits before the part of the data that
/// is used. For the registers after that, `nft` shows what was loaded there before; those loads serve only the listing.
struct AffinityRegisters {
    by: LookupBy,
    family: Family,
    /// Whether the destination has been translated.
    is_translated: bool,
    list: Option<EndpointList>,
    protocol: Register,
    address: Register,
    port: Register,
    id: Register,
    client: Register,
    /// Space for a frontend, and later for the data of an endpoint that only has to exist.
    frontend: Registers,
}

impl AffinityRegisters {
    fn new(by: LookupBy, what: Affinity, family: Family) -> Self {
        let mut registers = Registers::default();
        let mut take = |length| registers.take(length);
        let length = address_length(family);
        let (protocol, address, port, id, client) = (take(1), take(length), take(2), take(4), take(length));
        // It overlaps with the client, which is loaded later.
        let frontend = frontend_registers();
        let is_translated = !matches!(what, Affinity::Dnat(_));
        Self { by, family, is_translated, list: what.list(), protocol, address, port, id, client, frontend }
    }

    fn compile(&self, what: Affinity, out: &mut Vec<Expression<'_>>) {
        match what {
            Affinity::Has => self.look_up_frontend(self.id, out),
            Affinity::GotoUpdate => {
                // The map stores the seconds in the register of the client.
                self.look_up_frontend(self.client, out);
                let map = Set::Timeouts(self.by).name().into();
                out.push(Expression::LookupVerdict { map, key: self.client });
            }
            Affinity::Dnat(_) => {
                self.load(out);
                self.look_up_client(out);
                self.look_up_endpoint(Register::FIRST, out);
                dnat_from_first(self.family, out);
            }
            Affinity::IsValid(_) => {
                self.load(out);
                self.look_up_client(out);
                self.look_up_endpoint(Register::FIRST, out);
            }
            Affinity::Delete(_) => {
                self.load(out);
                self.change(DynamicOperation::Delete, None, out);
            }
            Affinity::Update(_, seconds) => {
                self.load(out);
                let mut registers = self.frontend;
                registers.take(4);
                self.look_up_endpoint(registers.take(0), out);
                self.change(DynamicOperation::Update, Some(Duration::from_secs(seconds.into())), out);
            }
        }
    }

    /// Loads the list, the client, and the endpoint that is the destination of the packet.
    fn load(&self, out: &mut Vec<Expression<'_>>) {
        self.look_up_frontend(self.id, out);
        let bits = |mask, xor| {
            let value = |bits: u32| Value::from(bits.to_ne_bytes());
            Expression::Bitwise { from: self.id, to: self.id, mask: value(mask), xor: value(xor) }
        };
        match self.list {
            None => {}
            Some(EndpointList::Cluster) => out.push(bits(!EndpointList::BIT, 0)),
            Some(EndpointList::Local) => out.push(bits(!EndpointList::BIT, EndpointList::BIT)),
        }
        let family = wire_family(self.family);
        out.push(Expression::source_address(family, self.client));
        out.push(Expression::Meta { key: MetaKey::L4Protocol, to: self.protocol });
        out.push(Expression::destination_address(family, self.address));
        out.push(Expression::destination_port(self.port));
    }

    /// `shown` is the register that the listing shows as `meta mark`.
    fn look_up_frontend(&self, shown: Register, out: &mut Vec<Expression<'_>>) {
        out.push(Expression::Meta { key: MetaKey::Mark, to: shown });
        let fields = frontend_fields(self.by, self.is_translated);
        let key = load(fields, self.family, &mut self.frontend.clone(), out);
        out.push(Expression::LookupData { map: Set::Sticky(self.by).name().into(), key, to: self.port });
    }

    fn look_up_client(&self, out: &mut Vec<Expression<'_>>) {
        let map = Set::Affinity.name().into();
        out.push(Expression::LookupData { map, key: self.id, to: self.protocol });
    }

    fn look_up_endpoint(&self, to: Register, out: &mut Vec<Expression<'_>>) {
        let map = Set::StickyEndpoints.name().into();
        out.push(Expression::LookupData { map, key: self.address, to });
    }

    fn change(&self, operation: DynamicOperation, timeout: Option<Duration>, out: &mut Vec<Expression<'_>>) {
        let (set, key, data) = (Set::Affinity.name().into(), self.id, Some(self.protocol));
        out.push(Expression::Dynamic { operation, set, key, data, timeout, with: &[] });
    }
}

/// Loads fields into consecutive registers and returns the first one.
fn load(
    fields: &[PacketField],
    family: Family,
    registers: &mut Registers,
    out: &mut Vec<Expression<'_>>,
) -> Register {
    let mut first = None;
    for field in fields {
        let to = registers.take(length(*field, family));
        first.get_or_insert(to);
        out.push(match field {
            PacketField::Source => Expression::source_address(wire_family(family), to),
            PacketField::Destination => Expression::destination_address(wire_family(family), to),
            PacketField::Protocol => Expression::Meta { key: MetaKey::L4Protocol, to },
            PacketField::SourcePort => {
                Expression::Payload { base: Base::Transport, offset: 0, length: 2, to }
            }
            PacketField::DestinationPort => {
                Expression::Payload { base: Base::Transport, offset: 2, length: 2, to }
            }
            PacketField::OriginalDestination => {
                let key = match family {
                    Family::V4 => ConntrackKey::DestinationIpv4,
                    Family::V6 => ConntrackKey::DestinationIpv6,
                };
                Expression::Conntrack { key, direction: Some(Direction::Original), to }
            }
            PacketField::OriginalDestinationPort => Expression::Conntrack {
                key: ConntrackKey::DestinationPort,
                direction: Some(Direction::Original),
                to,
            },
        });
    }
    first.unwrap_or(Register::FIRST)
}

fn length(field: PacketField, family: Family) -> u32 {
    match field {
        PacketField::Source | PacketField::Destination | PacketField::OriginalDestination => {
            address_length(family)
        }
        PacketField::Protocol => 1,
        PacketField::SourcePort | PacketField::DestinationPort | PacketField::OriginalDestinationPort => 2,
    }
}

fn address_length(family: Family) -> u32 {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

fn any_bit(key: ConntrackKey, bit: u32, out: &mut Vec<Expression<'_>>) {
    out.push(Expression::Conntrack { key, direction: None, to: Register::FIRST });
    out.push(bits(bit, 0));
    out.push(Expression::Compare {
        from: Register::FIRST,
        comparison: Comparison::NotEqual,
        value: [0; 4].into(),
    });
}

fn bits<'a>(mask: u32, xor: u32) -> Expression<'a> {
    let (mask, xor) = (mask.to_ne_bytes().into(), xor.to_ne_bytes().into());
    Expression::Bitwise { from: Register::FIRST, to: Register::FIRST, mask, xor }
}

fn rewrite_mark(mask: u32, mark: Mark, out: &mut Vec<Expression<'_>>) {
    out.push(Expression::Meta { key: MetaKey::Mark, to: Register::FIRST });
    out.push(bits(mask, mark.get()));
    out.push(Expression::SetMeta { key: MetaKey::Mark, from: Register::FIRST });
}

fn equal<'a>(value: Value) -> Expression<'a> {
    Expression::Compare { from: Register::FIRST, comparison: Comparison::Equal, value }
}

fn within(
    field: PacketField,
    net: IpNet,
    comparison: Comparison,
    family: Family,
    out: &mut Vec<Expression<'_>>,
) {
    load(&[field], family, &mut Registers::default(), out);
    if net.prefix_len() < net.max_prefix_len() {
        let zero = match net.addr() {
            IpAddr::V4(_) => Value::from([0; 4]),
            IpAddr::V6(_) => Value::from([0; 16]),
        };
        let (from, to) = (Register::FIRST, Register::FIRST);
        out.push(Expression::Bitwise { from, to, mask: net.netmask().into(), xor: zero });
    }
    out.push(Expression::Compare { from: Register::FIRST, comparison, value: net.network().into() });
}

/// Compares a whole name with its padding of zeros, and a prefix without padding.
fn from_interface(interface: &Interface, comparison: Comparison, out: &mut Vec<Expression<'_>>) {
    // include/uapi/linux/if.h
    const IFNAMSIZ: usize = 16;
    out.push(Expression::Meta { key: MetaKey::InputName, to: Register::FIRST });
    let value = match interface {
        Interface::Named(name) => {
            let mut full = [0; IFNAMSIZ];
            for (to, from) in full.iter_mut().zip(name.as_bytes().iter().take(IFNAMSIZ - 1)) {
                *to = *from;
            }
            Value::from(full)
        }
        Interface::Prefixed(prefix) => {
            let prefix = prefix.as_bytes();
            Value::from_slice(prefix.get(..IFNAMSIZ - 1).unwrap_or(prefix))
                .unwrap_or(Value::from([0; IFNAMSIZ]))
        }
    };
    out.push(Expression::Compare { from: Register::FIRST, comparison, value });
}
