//! The kinds of rules and sets of the nftables mode, in one small table per family.

use std::net::IpAddr;
use std::time::Duration;

use netlink::Family;
use netlink::nftables::*;

pub(super) const TABLE: &str = "kube-proxy";

fn address(family: Family) -> Field {
    match family {
        Family::Ipv4 => Field::Ipv4Address,
        Family::Ipv6 => Field::Ipv6Address,
    }
}

/// Loads fields into consecutive registers, beginning with `Register::FIRST`.
struct Loads {
    registers: Registers,
    expressions: Vec<Expression<'static>>,
    family: Family,
}

/// A part of a key.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Source,
    Destination,
    Protocol,
    Port,
    OriginalDestination,
    OriginalPort,
    Slot(u32),
}

impl Loads {
    fn new(family: Family) -> Self {
        Self { registers: Registers::default(), expressions: Vec::new(), family }
    }

    /// Returns the register of the first part.
    fn load(&mut self, parts: &[Part]) -> Register {
        let length = address(self.family).length();
        let mut first = None;
        for part in parts {
            let bytes = match part {
                Part::Source | Part::Destination | Part::OriginalDestination => length,
                Part::Protocol => 1,
                Part::Port | Part::OriginalPort => 2,
                Part::Slot(_) => 4,
            };
            let to = self.registers.take(bytes);
            first = first.or(Some(to));
            let original = Some(Direction::Original);
            self.expressions.push(match *part {
                Part::Source => Expression::source_address(self.family, to),
                Part::Destination => Expression::destination_address(self.family, to),
                Part::Protocol => Expression::Meta { key: MetaKey::L4Protocol, to },
                Part::Port => Expression::destination_port(to),
                Part::OriginalDestination => {
                    let key = match self.family {
                        Family::Ipv4 => ConntrackKey::DestinationIpv4,
                        Family::Ipv6 => ConntrackKey::DestinationIpv6,
                    };
                    Expression::Conntrack { key, direction: original, to }
                }
                Part::OriginalPort => {
                    Expression::Conntrack { key: ConntrackKey::DestinationPort, direction: original, to }
                }
                Part::Slot(modulus) => {
                    Expression::Numgen { generator: NumberGenerator::Random, modulus, offset: 0, to }
                }
            });
        }
        first.unwrap()
    }
}

pub(super) fn load(family: Family, parts: &[Part]) -> Vec<Expression<'static>> {
    let mut loads = Loads::new(family);
    loads.load(parts);
    loads.expressions
}

pub(super) const FRONTEND: [Part; 3] = [Part::Destination, Part::Protocol, Part::Port];

pub(super) fn bits(key: ConntrackKey, bit: u32) -> [Expression<'static>; 3] {
    let to = Register::FIRST;
    let (mask, zero) = (bit.to_ne_bytes().into(), 0_u32.to_ne_bytes().into());
    [
        Expression::Conntrack { key, direction: None, to },
        Expression::Bitwise { from: to, to, mask, xor: zero },
        Expression::Compare { from: to, comparison: Comparison::NotEqual, value: zero },
    ]
}

pub(super) fn is_protocol(protocol: u8) -> [Expression<'static>; 2] {
    let to = Register::FIRST;
    [
        Expression::Meta { key: MetaKey::L4Protocol, to },
        Expression::Compare { from: to, comparison: Comparison::Equal, value: [protocol].into() },
    ]
}

pub(super) fn dnat_by(map: &'static str, key: &[Part], family: Family) -> Vec<Expression<'static>> {
    let port = Register::at(address(family).length() / 4);
    let mut expressions = load(family, key);
    expressions.push(Expression::LookupData { map: map.into(), key: Register::FIRST, to: Register::FIRST });
    expressions.push(Expression::Nat {
        kind: NatKind::Destination,
        family,
        address: Register::FIRST,
        port: Some(port),
        flags: NatFlags::None,
    });
    expressions
}

/// `update @affinity { saddr . ct original daddr . l4proto . ct original proto-dst timeout 3h : daddr . dport }`
pub(super) fn learn_affinity(family: Family) -> Vec<Expression<'static>> {
    let mut loads = Loads::new(family);
    let key = loads.load(&[Part::Source, Part::OriginalDestination, Part::Protocol, Part::OriginalPort]);
    let data = loads.load(&[Part::Destination, Part::Port]);
    loads.expressions.push(Expression::Dynamic {
        operation: DynamicOperation::Update,
        set: "affinity".into(),
        key,
        data: Some(data),
        timeout: Some(Duration::from_secs(10800)),
        with: &[],
    });
    loads.expressions
}

pub(super) fn frontend(address: IpAddr, protocol: u8, port: u16) -> Value {
    Value::concatenation(&[&octets(address), &[protocol], &port.to_be_bytes()])
}

pub(super) fn slot(address: IpAddr, protocol: u8, port: u16, slot: u32) -> Value {
    Value::concatenation(&[&octets(address), &[protocol], &port.to_be_bytes(), &slot.to_ne_bytes()])
}

pub(super) fn endpoint(address: IpAddr, port: u16) -> Value {
    Value::concatenation(&[&octets(address), &port.to_be_bytes()])
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

pub(super) fn ip(family: Family, last: u8) -> IpAddr {
    match family {
        Family::Ipv4 => [10, 96, 0, last].into(),
        Family::Ipv6 => [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into(),
    }
}

/// Sets and maps like those of the nftables mode.
pub(super) fn sets(family: Family) -> Vec<Set<'static>> {
    let a = address(family);
    let leak = |fields: &[Field]| -> &'static [Field] { fields.to_vec().leak() };
    let endpoint = MapData::Fields(leak(&[a, Field::Port]));
    let index = Field::Index { modulus: 65536 };
    vec![
        Set {
            data: Some(endpoint),
            counter: true,
            comment: Some("slots"),
            ..Set::new("endpoints", leak(&[a, Field::Protocol, Field::Port, index]))
        },
        Set {
            data: Some(endpoint),
            counter: true,
            ..Set::new("node-port-endpoints", leak(&[Field::Protocol, Field::Port, index]))
        },
        Set { counter: true, ..Set::new("frontends", leak(&[a, Field::Protocol, Field::Port])) },
        Set {
            data: Some(endpoint),
            dynamic: true,
            timeouts: true,
            ..Set::new("affinity", leak(&[a, a, Field::Protocol, Field::Port]))
        },
        Set::new("sticky-10800", leak(&[a, Field::Protocol, Field::Port, a, Field::Port])),
        Set { interval: true, ..Set::new("allowed-sources", leak(&[a, Field::Protocol, Field::Port, a])) },
        Set::new("hairpin", leak(&[a, a])),
        Set { interval: true, comment: Some("pods"), ..Set::new("cluster-cidrs", leak(&[a])) },
        Set {
            data: Some(MapData::Verdict),
            ..Set::new("no-endpoints", leak(&[a, Field::Protocol, Field::Port]))
        },
        Set { timeout: Some(Duration::from_secs(5)), size: Some(100), ..Set::new("recent", leak(&[a])) },
        Set::new("marks", leak(&[Field::Mark])),
    ]
}

const fn hook(kind: ChainKind, point: HookPoint, priority: i32) -> Option<Hook> {
    Some(Hook { kind, point, priority, policy: Some(Policy::Accept) })
}

pub(super) const CHAINS: [Chain<'static>; 6] = [
    Chain { name: "nat-prerouting", hook: hook(ChainKind::Nat, HookPoint::Prerouting, -100), comment: None },
    Chain { name: "nat-postrouting", hook: hook(ChainKind::Nat, HookPoint::Postrouting, 100), comment: None },
    Chain { name: "filter-input", hook: hook(ChainKind::Filter, HookPoint::Input, 0), comment: None },
    Chain { name: "pick-4", hook: None, comment: Some("chooses one of four slots") },
    Chain { name: "reject-chain", hook: None, comment: None },
    Chain { name: "services", hook: None, comment: None },
];

/// Chain, expressions, comment.
pub(super) fn rules(family: Family) -> Vec<(&'static str, Vec<Expression<'static>>, Option<&'static str>)> {
    let first = Register::FIRST;
    let mask = |value: u32| Value::from(value.to_ne_bytes());
    let compare = |comparison, value| Expression::Compare { from: first, comparison, value };
    let with = |mut list: Vec<Expression<'static>>, more: &[Expression<'static>]| {
        list.extend_from_slice(more);
        list
    };
    let lookup = |set: &'static str| Expression::Lookup { set: set.into(), key: first };
    vec![
        ("nat-prerouting", vec![Expression::Verdict(Verdict::Jump("services"))], None),
        (
            "services",
            with(
                load(family, &FRONTEND),
                &[lookup("frontends"), Expression::Verdict(Verdict::Goto("pick-4"))],
            ),
            Some("the only lookup most packets pay for"),
        ),
        (
            "services",
            vec![
                Expression::Fib {
                    source: false,
                    destination: true,
                    result: FibResult::AddressType,
                    to: first,
                },
                compare(Comparison::Equal, mask(FibResult::LOCAL)),
                Expression::Meta { key: MetaKey::Mark, to: first },
                Expression::Bitwise { from: first, to: first, mask: mask(!0x4000), xor: mask(0x4000) },
                Expression::SetMeta { key: MetaKey::Mark, from: first },
            ],
            None,
        ),
        (
            "pick-4",
            dnat_by("affinity", &[Part::Source, Part::Destination, Part::Protocol, Part::Port], family),
            None,
        ),
        ("pick-4", dnat_by("endpoints", &[&FRONTEND[..], &[Part::Slot(4)]].concat(), family), None),
        (
            "pick-4",
            dnat_by("node-port-endpoints", &[Part::Protocol, Part::Port, Part::Slot(4)], family),
            None,
        ),
        (
            "nat-postrouting",
            with(
                bits(ConntrackKey::Status, ConntrackKey::STATUS_DNAT).to_vec(),
                &with(
                    load(family, &[Part::Source, Part::Destination]),
                    &[lookup("hairpin"), Expression::Masquerade { flags: NatFlags::FullyRandom }],
                ),
            ),
            None,
        ),
        (
            "nat-postrouting",
            with(
                bits(ConntrackKey::State, ConntrackKey::STATE_NEW).to_vec(),
                &with(
                    is_protocol(6).to_vec(),
                    &with(
                        with(
                            load(
                                family,
                                &[
                                    Part::OriginalDestination,
                                    Part::Protocol,
                                    Part::OriginalPort,
                                    Part::Destination,
                                    Part::Port,
                                ],
                            ),
                            &[lookup("sticky-10800")],
                        ),
                        &learn_affinity(family),
                    ),
                ),
            ),
            None,
        ),
        (
            "filter-input",
            with(
                load(family, &[Part::Destination, Part::Protocol, Part::Port, Part::Source]),
                &[
                    Expression::LookupMissing { set: "allowed-sources".into(), key: first },
                    Expression::Counter,
                    Expression::Verdict(Verdict::Drop),
                ],
            ),
            None,
        ),
        (
            "filter-input",
            with(
                load(family, &FRONTEND),
                &[Expression::LookupVerdict { map: "no-endpoints".into(), key: first }],
            ),
            None,
        ),
        ("reject-chain", vec![Expression::Reject(RejectWith::PortUnreachable(family))], None),
    ]
}

/// The whole table, without elements.
pub(super) fn program(family: Family) -> Batch {
    let mut batch = Batch::new(family, TABLE);
    batch.add_table(&Table { ownership: Ownership::Shared, comment: Some("rules for kube-proxy") });
    for set in sets(family) {
        batch.add_set(&set);
    }
    for chain in CHAINS {
        batch.add_chain(&chain);
    }
    for (number, (chain, expressions, comment)) in (1..).zip(rules(family)) {
        batch.add_rule(&Rule { chain, expressions: &expressions, comment, fingerprint: Some(number) });
    }
    batch
}
