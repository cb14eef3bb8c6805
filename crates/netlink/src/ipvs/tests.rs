//! The bytes are recorded: requests that Linux 5.10 and 6.12 accepted, and answers of 6.12.

use super::*;
use crate::message::Messages;

const TCP: u8 = 6;
const UDP: u8 = 17;

fn key(protocol: u8, address: &str) -> IpvsServiceKey {
    IpvsServiceKey { protocol, address: address.parse().unwrap() }
}

fn service(flags: u32, timeout: u32) -> IpvsService {
    IpvsService { scheduler: "rr".into(), flags, timeout }
}

fn destination(address: &str, weight: u32) -> IpvsDestination {
    IpvsDestination { address: address.parse().unwrap(), weight }
}

/// The message after its header.
fn encoded(fixed: &[u8], body: impl FnOnce(&mut Buffer)) -> String {
    let mut buffer = Buffer::new();
    let header = crate::message::Header { kind: 0x22, flags: 5, sequence: 1, port: 0 };
    buffer.message(header, fixed, body);
    let [message] = Messages::new(buffer.as_bytes()).collect::<Vec<_>>()[..] else { panic!("one message") };
    message.body.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decoded<T>(answer: &[u8], read: fn(&Message<'_>) -> Option<T>) -> Vec<T> {
    Messages::new(answer).filter_map(|message| read(&message)).collect()
}

#[test]
fn changes_are_encoded_as_recorded() {
    use IpvsChange::{
        DeleteDestination, DeleteService, NewDestination, NewService, SetDestination, SetService,
    };
    let v4 = key(TCP, "10.96.0.10:80");
    let v6 = key(UDP, "[fd00:10:96::a]:53");
    let v4_key = "240001800600010002000000060002000600000008000300 0a60000a 0600040000500000";
    let v6_key =
        "30000180060001000a000000060002001100000014000300 fd00001000960000000000000000000a 0600040000350000";
    let v4_service =
        "480001800600010002000000060002000600000008000300 0a60000a 0600040000500000 0700060072720000";
    let v6_service =
        "54000180060001000a000000060002001100000014000300 fd00001000960000000000000000000a 0600040000350000
        0700060072720000";
    for (change, want) in [
        (
            NewService(v4, service(0, 0)),
            format!("01010000 {v4_service} 0c00070000000000ffffffff 0800080000000000 08000900ffffffff"),
        ),
        (
            SetService(v4, service(1, 10_800)),
            format!("02010000 {v4_service} 0c00070001000000ffffffff 08000800302a0000 08000900ffffffff"),
        ),
        (
            NewService(v6, service(0, 0)),
            format!("01010000 {v6_service} 0c00070000000000ffffffff 0800080000000000 0800090080000000"),
        ),
        (DeleteService(v4), format!("03010000 {v4_key}")),
        (
            NewDestination(v4, destination("10.244.1.11:8080", 1)),
            format!(
                "05010000 {v4_key} 3c000280 08000100 0af4010b 060002001f900000 0800030000000000 0800040001000000
                 0800050000000000 0800060000000000 06000b0002000000"
            ),
        ),
        (
            SetDestination(v4, destination("10.244.1.11:8080", 0)),
            format!(
                "06010000 {v4_key} 3c000280 08000100 0af4010b 060002001f900000 0800030000000000 0800040000000000
                 0800050000000000 0800060000000000 06000b0002000000"
            ),
        ),
        (
            NewDestination(v6, destination("[fd00:10:244:1::11]:8081", 1)),
            format!(
                "05010000 {v6_key} 48000280 14000100 fd000010024400010000000000000011 060002001f910000
                 0800030000000000 0800040001000000 0800050000000000 0800060000000000 06000b000a000000"
            ),
        ),
        (
            DeleteDestination(v6, "[fd00:10:244:1::11]:8081".parse().unwrap()),
            format!(
                "07010000 {v6_key} 20000280 14000100 fd000010024400010000000000000011 060002001f910000"
            ),
        ),
    ] {
        let want: String = want.split_whitespace().collect();
        assert_eq!(encoded(change.fixed(), |m| change.to_wire(m)), want, "{change:?}");
    }
}

#[test]
fn timeouts_are_encoded_as_recorded() {
    let timeouts = IpvsTimeouts { tcp: 900, tcp_fin: 0, udp: 300 };
    assert_eq!(
        encoded(&IPVS_CMD_SET_CONFIG, |m| timeouts.to_wire(m)),
        "0c010000080004008403000008000500000000000800060 02c010000".replace(' ', "")
    );
}

#[test]
fn virtual_servers_are_decoded_and_those_with_a_firewall_mark_are_not() {
    let answer = include_bytes!("../../../../fuzz/corpus/netlink-ipvs/services");
    let found = |scheduler: &str, flags, timeout| IpvsService { scheduler: scheduler.into(), flags, timeout };
    let mut services = decoded(answer, IpvsService::from_wire);
    services.sort_by_key(|(key, _)| *key);
    assert_eq!(
        services,
        [
            (key(TCP, "10.96.0.10:80"), found("rr", 1, 10_800)),
            (key(UDP, "[fd00:10:96::a]:53"), found("mh", 0x10, 0)),
            (key(132, "10.96.0.10:80"), found("lc", 0, 0)),
        ]
    );
}

#[test]
fn real_servers_are_decoded() {
    let none = IpvsConnections::default();
    let answer = include_bytes!("../../../../fuzz/corpus/netlink-ipvs/destinations-ipv4");
    assert_eq!(
        decoded(answer, IpvsDestination::from_wire),
        [(destination("10.244.1.12:8080", 0), none), (destination("10.244.1.11:8080", 1), none)]
    );
    let answer = include_bytes!("../../../../fuzz/corpus/netlink-ipvs/destinations-ipv6");
    assert_eq!(
        decoded(answer, IpvsDestination::from_wire),
        [(destination("[fd00:10:244:1::11]:5353", 1), none)]
    );
}

#[test]
fn connections_are_those_of_the_64_bit_statistics_if_there_are_any() {
    let total = |wide: bool| {
        let mut buffer = Buffer::new();
        let header = crate::message::Header { kind: 0x22, flags: 0, sequence: 1, port: 0 };
        buffer.message(header, &[], |m| {
            m.nest(IPVS_DEST_ATTR_STATS, |m| m.ne32(IPVS_STATS_ATTR_CONNS, 5));
            if wide {
                let connections = 5_000_000_000_u64.to_ne_bytes();
                m.nest(IPVS_DEST_ATTR_STATS64, |m| m.bytes(IPVS_STATS_ATTR_CONNS, &connections));
            }
        });
        total_connections(Messages::new(buffer.as_bytes()).next().unwrap().attributes(0))
    };
    assert_eq!(total(true), Some(5_000_000_000));
    assert_eq!(total(false), Some(5));
}

#[test]
fn settings_are_decoded() {
    let timeouts = include_bytes!("../../../../fuzz/corpus/netlink-ipvs/timeouts");
    assert_eq!(
        decoded(timeouts, IpvsTimeouts::from_wire),
        [IpvsTimeouts { tcp: 900, tcp_fin: 120, udp: 300 }]
    );
    let info = include_bytes!("../../../../fuzz/corpus/netlink-ipvs/info");
    let version = 1 << 16 | 2 << 8 | 1;
    assert_eq!(decoded(info, IpvsInfo::from_wire), [IpvsInfo { version, connection_buckets: 4_096 }]);
    let family = include_bytes!("../../../../fuzz/corpus/netlink-ipvs/family");
    assert_eq!(generic::family_id(&Messages::new(family).next().unwrap()), Some(34));
}
