//! Words become the expressions that the kernel runs.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use model::address::Family;
use netlink::nftables::{
    self as nft, Base, Comparison, ConntrackKey, Direction, DynamicOperation, Expression, FibResult, MetaKey,
    NatFlags, NatKind, NumberGenerator, Register, Registers, RejectWith, Value, Verdict,
};
use plan::mark::Mark;
use plan::nftables::program::{Chain, HookKind, HookPoint};
use plan::nftables::sets::{Nature, Set, Type};
use plan::nftables::words::{Field, Interface, Rule, Word};

use crate::wire_family;

/// Tells a rule of ours from any other, and from what an older version of us would have written. The kernel keeps it.
pub fn fingerprint(rule: &Rule, family: Family) -> u64 {
    // Bump when the same words come to be compiled differently.
    const COMPILER: u32 = 1;
    let mut hasher = DefaultHasher::new();
    (COMPILER, rule.show(family)).hash(&mut hasher);
    hasher.finish()
}

/// Adds a rule to the end of its chain.
pub fn add_rule(batch: &mut nft::Batch, chain: &str, rule: &Rule, family: Family) {
    let names: Vec<Cow<'static, str>> = rule.words.iter().map(set_name).collect();
    let mut expressions = Vec::new();
    for (word, name) in rule.words.iter().zip(&names) {
        compile(word, name, family, &mut expressions);
    }
    let fingerprint = Some(fingerprint(rule, family));
    batch.add_rule(&nft::Rule { chain, expressions: &expressions, comment: rule.comment, fingerprint });
}

pub fn hook(chain: &Chain) -> Option<nft::Hook> {
    chain.hook.map(|hook| nft::Hook {
        kind: match hook.kind {
            HookKind::Filter => nft::ChainKind::Filter,
            HookKind::Nat => nft::ChainKind::Nat,
        },
        point: match hook.point {
            HookPoint::Prerouting => nft::HookPoint::Prerouting,
            HookPoint::Input => nft::HookPoint::Input,
            HookPoint::Forward => nft::HookPoint::Forward,
            HookPoint::Output => nft::HookPoint::Output,
            HookPoint::Postrouting => nft::HookPoint::Postrouting,
        },
        priority: hook.priority,
        policy: None,
    })
}

/// Calls `with` with the declaration of a set.
pub fn declare<T>(set: Set, family: Family, with: impl FnOnce(&nft::Set<'_>) -> T) -> T {
    /// Enough for every client of a busy node; the kernel would stop at 65,535.
    const MOST_CLIENTS: u32 = 1 << 20;
    let fields = |types: &[Type]| types.iter().map(|kind| field(*kind, family)).collect::<Vec<_>>();
    let (key, data) = (fields(&set.key()), fields(set.data()));
    let nature = set.nature();
    let name = set.name();
    with(&nft::Set {
        data: (!data.is_empty()).then_some(nft::MapData::Fields(&data)),
        interval: nature == Nature::Ranges,
        dynamic: nature == Nature::Learning,
        timeouts: nature == Nature::Learning,
        size: (nature == Nature::Learning).then_some(MOST_CLIENTS),
        counter: nature == Nature::Counting,
        comment: Some(set.comment()),
        ..nft::Set::new(&name, &key)
    })
}

fn field(kind: Type, family: Family) -> nft::Field {
    match (kind, family) {
        (Type::Address, Family::V4) => nft::Field::Ipv4Address,
        (Type::Address, Family::V6) => nft::Field::Ipv6Address,
        (Type::Protocol, _) => nft::Field::Protocol,
        (Type::Port, _) => nft::Field::Port,
        // The type of slots has no name; any modulus stands for it in listings.
        (Type::Slot, _) => nft::Field::Index { modulus: 65_536 },
    }
}

fn set_name(word: &Word) -> Cow<'static, str> {
    match word {
        Word::In(_, set) | Word::NotIn(_, set) | Word::Dnat(_, set) | Word::Learn(_, set, _, _) => set.name(),
        Word::StateNew
        | Word::StatusDnat
        | Word::Within(..)
        | Word::NotWithin(..)
        | Word::IsLocal(_)
        | Word::FromInterface(_)
        | Word::NotFromInterface(_)
        | Word::Marked(_)
        | Word::SetMark(_)
        | Word::ClearMark(_)
        | Word::Masquerade
        | Word::Jump(_)
        | Word::Goto(_)
        | Word::Reject
        | Word::Drop => Cow::Borrowed(""),
    }
}

fn compile<'a>(word: &'a Word, set: &'a str, family: Family, out: &mut Vec<Expression<'a>>) {
    const FIRST: Register = Register::FIRST;
    match word {
        Word::StateNew => any_bit(ConntrackKey::State, ConntrackKey::STATE_NEW, out),
        Word::StatusDnat => any_bit(ConntrackKey::Status, ConntrackKey::STATUS_DNAT, out),
        Word::In(fields, _) => {
            let key = load(fields, family, &mut Registers::default(), out);
            out.push(Expression::Lookup { set: set.into(), key });
        }
        Word::NotIn(fields, _) => {
            let key = load(fields, family, &mut Registers::default(), out);
            out.push(Expression::LookupMissing { set: set.into(), key });
        }
        Word::Within(field, net) => within(*field, *net, Comparison::Equal, family, out),
        Word::NotWithin(field, net) => within(*field, *net, Comparison::NotEqual, family, out),
        Word::IsLocal(field) => {
            let source = *field == Field::Source;
            out.push(Expression::Fib {
                source,
                destination: !source,
                result: FibResult::AddressType,
                to: FIRST,
            });
            out.push(equal(FibResult::LOCAL.to_ne_bytes().into()));
        }
        Word::FromInterface(interface) => from_interface(interface, Comparison::Equal, out),
        Word::NotFromInterface(interface) => from_interface(interface, Comparison::NotEqual, out),
        Word::Marked(mark) => {
            out.push(Expression::Meta { key: MetaKey::Mark, to: FIRST });
            out.push(bits(mark.get(), 0));
            out.push(Expression::Compare {
                from: FIRST,
                comparison: Comparison::NotEqual,
                value: [0; 4].into(),
            });
        }
        Word::SetMark(mark) => rewrite_mark(!mark.get(), *mark, out),
        Word::ClearMark(mark) => rewrite_mark(u32::MAX, *mark, out),
        Word::Dnat(fields, _) => {
            let key = load(fields, family, &mut Registers::default(), out);
            out.push(Expression::LookupData { map: set.into(), key, to: FIRST });
            let mut registers = Registers::default();
            let address = registers.take(address_length(family));
            let port = Some(registers.take(2));
            let family = wire_family(family);
            out.push(Expression::Nat {
                kind: NatKind::Destination,
                family,
                address,
                port,
                flags: NatFlags::None,
            });
        }
        Word::Learn(key, _, seconds, data) => {
            let mut registers = Registers::default();
            let key = load(key, family, &mut registers, out);
            let data = Some(load(data, family, &mut registers, out));
            let timeout = Some(Duration::from_secs((*seconds).into()));
            let operation = DynamicOperation::Update;
            out.push(Expression::Dynamic { operation, set: set.into(), key, data, timeout, with: &[] });
        }
        Word::Masquerade => out.push(Expression::Masquerade { flags: NatFlags::FullyRandom }),
        Word::Jump(chain) => out.push(Expression::Verdict(Verdict::Jump(chain))),
        Word::Goto(chain) => out.push(Expression::Verdict(Verdict::Goto(chain))),
        Word::Reject => out.push(Expression::Reject(RejectWith::PortUnreachable(wire_family(family)))),
        Word::Drop => out.push(Expression::Verdict(Verdict::Drop)),
    }
}

/// Loads fields one after the other and returns where the first one lies.
fn load(
    fields: &[Field],
    family: Family,
    registers: &mut Registers,
    out: &mut Vec<Expression<'_>>,
) -> Register {
    let mut first = None;
    for field in fields {
        let to = registers.take(length(*field, family));
        first.get_or_insert(to);
        out.push(match field {
            Field::Source => Expression::source_address(wire_family(family), to),
            Field::Destination => Expression::destination_address(wire_family(family), to),
            Field::Protocol => Expression::Meta { key: MetaKey::L4Protocol, to },
            Field::DestinationPort => Expression::Payload { base: Base::Transport, offset: 2, length: 2, to },
            Field::OriginalDestination => {
                let key = match family {
                    Family::V4 => ConntrackKey::DestinationIpv4,
                    Family::V6 => ConntrackKey::DestinationIpv6,
                };
                Expression::Conntrack { key, direction: Some(Direction::Original), to }
            }
            Field::OriginalDestinationPort => Expression::Conntrack {
                key: ConntrackKey::DestinationPort,
                direction: Some(Direction::Original),
                to,
            },
            Field::Slot(draw) => Expression::Numgen {
                generator: NumberGenerator::Random,
                modulus: draw.count,
                offset: draw.first,
                to,
            },
        });
    }
    first.unwrap_or(Register::FIRST)
}

fn length(field: Field, family: Family) -> u32 {
    match field {
        Field::Source | Field::Destination | Field::OriginalDestination => address_length(family),
        Field::Protocol => 1,
        Field::DestinationPort | Field::OriginalDestinationPort => 2,
        Field::Slot(_) => 4,
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

fn within(field: Field, net: IpNet, comparison: Comparison, family: Family, out: &mut Vec<Expression<'_>>) {
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

/// A whole name is compared with the zeros that fill it up, the beginning of one without.
fn from_interface(interface: &Interface, comparison: Comparison, out: &mut Vec<Expression<'_>>) {
    const LONGEST: usize = 16;
    out.push(Expression::Meta { key: MetaKey::InputName, to: Register::FIRST });
    let value = match interface {
        Interface::Named(name) => {
            let mut full = [0; LONGEST];
            for (to, from) in full.iter_mut().zip(name.as_bytes().iter().take(LONGEST - 1)) {
                *to = *from;
            }
            Value::from(full)
        }
        Interface::Prefixed(prefix) => {
            let prefix = prefix.as_bytes();
            Value::from_slice(prefix.get(..LONGEST - 1).unwrap_or(prefix))
                .unwrap_or(Value::from([0; LONGEST]))
        }
    };
    out.push(Expression::Compare { from: Register::FIRST, comparison, value });
}
