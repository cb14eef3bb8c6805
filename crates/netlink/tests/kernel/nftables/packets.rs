//! The effect of rules and elements on packets.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use netlink::Family::{self, Ipv4, Ipv6};
use netlink::nftables::*;
use netlink::testing::{in_fresh_netns, receive, run};

use super::program::*;
use super::{FAMILIES, commit};

/// Sends one datagram to an address of this namespace. Ignores errors.
fn send_datagram(to: IpAddr, port: u16) {
    run("ip link set lo up");
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let _ = UdpSocket::bind((any, 0)).unwrap().send_to(b"hello", (to, port));
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Ipv4 => [127, 0, 0, 1].into(),
        Ipv6 => [0, 0, 0, 0, 0, 0, 0, 1].into(),
    }
}

fn output_chain(family: Family) -> Batch {
    let mut batch = program(family);
    let hook = Hook { kind: ChainKind::Filter, point: HookPoint::Output, priority: 0, policy: None };
    batch.add_chain(&Chain { name: "filter-output", hook: Some(hook), comment: None });
    batch
}

#[test]
fn elements_count_the_packets_that_match_them() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            let mut batch = output_chain(family);
            let mut expressions = load(family, &FRONTEND);
            expressions.push(Expression::Lookup { set: "frontends".into(), key: Register::FIRST });
            batch.add_rule(&Rule {
                chain: "filter-output",
                expressions: &expressions,
                comment: None,
                fingerprint: None,
            });
            batch.add_elements("frontends", [Element::new(frontend(loopback(family), 17, 5353))]);
            commit(&batch);
            for port in [5353, 5353, 5354] {
                send_datagram(loopback(family), port);
            }
            let mut connection = NftablesSocket::open().unwrap();
            let counters = connection.elements(family, TABLE, "frontends", |element| element.counter);
            let packets: Vec<_> = counters.unwrap().into_iter().map(|c| c.unwrap().packets).collect();
            assert_eq!(packets, [2]);
        }
    });
}

#[test]
fn a_packet_adds_an_element_to_the_affinity_map() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            let mut batch = output_chain(family);
            let mut expressions = is_protocol(17).to_vec();
            expressions.extend(learn_affinity(family));
            batch.add_rule(&Rule {
                chain: "filter-output",
                expressions: &expressions,
                comment: None,
                fingerprint: None,
            });
            commit(&batch);
            let client = loopback(family);
            send_datagram(client, 5353);
            let port = 5353_u16.to_be_bytes();
            let key = Value::concatenation(&[&octets(client), &octets(client), &[17], &port]);
            let seen = NftablesSocket::open().unwrap().elements(family, TABLE, "affinity", |element| {
                assert_eq!(element.key, key.as_bytes());
                assert_eq!(element.data, Some(FoundDatum::Value(endpoint(client, 5353).as_bytes())));
                assert_eq!(element.timeout, Some(Duration::from_secs(10800)));
            });
            assert_eq!(seen.unwrap().len(), 1, "{family}");
        }
    });
}

#[test]
fn a_datagram_is_translated_by_a_map() {
    in_fresh_netns(|| {
        run("ip link set lo up");
        for family in FAMILIES {
            let mut batch = program(family);
            batch.flush_chain("filter-input"); // it drops
            let hook = Hook { kind: ChainKind::Nat, point: HookPoint::Output, priority: -100, policy: None };
            batch.add_chain(&Chain { name: "nat-output", hook: Some(hook), comment: None });
            let expressions = [Expression::Verdict(Verdict::Jump("services"))];
            batch.add_rule(&Rule {
                chain: "nat-output",
                expressions: &expressions,
                comment: None,
                fingerprint: None,
            });
            let server = UdpSocket::bind((loopback(family), 0)).unwrap();
            let backend = server.local_addr().unwrap();
            batch.add_elements("frontends", [Element::new(frontend(loopback(family), 17, 53))]);
            batch.add_elements(
                "endpoints",
                (0..4).map(|number| {
                    Element::pair(
                        slot(loopback(family), 17, 53, number),
                        endpoint(backend.ip(), backend.port()),
                    )
                }),
            );
            commit(&batch);
            send_datagram(loopback(family), 53);
            assert_eq!(receive(&server).0, 5, "{family}");
        }
    });
}
