//! Reads large rulesets, and rulesets that change meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink::Family::Ipv4;
use netlink::nftables::*;
use netlink::socket::{NetlinkProtocol, Request, Socket};
use netlink::testing::in_fresh_netns;

use super::program::*;
use super::{FAMILIES, commit, table_with};

#[test]
fn elements_are_read_as_written() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            commit(&program(family));
            let mut connection = NftablesSocket::open().unwrap();
            let service = ip(family, 10);
            let pair = Element {
                comment: Some("web"),
                ..Element::pair(slot(service, 6, 80, 1), endpoint(ip(family, 200), 8080))
            };
            let range_key = |last| {
                Value::concatenation(&[
                    &octets(service),
                    &[6],
                    &80_u16.to_be_bytes(),
                    &octets(ip(family, last)),
                ])
            };
            let range = Element { key_end: Some(range_key(255)), ..Element::new(range_key(128)) };
            let timed = Element { timeout: Some(Duration::from_secs(600)), ..Element::new(ip(family, 7)) };
            let verdict = Element {
                data: Some(Datum::Verdict(Verdict::Goto("reject-chain"))),
                ..Element::new(frontend(service, 17, 53))
            };
            let mut batch = Batch::new(family, TABLE);
            batch.add_elements("endpoints", [pair]);
            batch.add_elements("allowed-sources", [range]);
            batch.add_elements("recent", [timed]);
            batch.add_elements("no-endpoints", [verdict]);
            connection.commit(&batch).unwrap();

            let seen = connection.elements(family, TABLE, "endpoints", |element| {
                assert_eq!(element.key, slot(service, 6, 80, 1).as_bytes());
                let data = endpoint(ip(family, 200), 8080);
                assert_eq!(element.data, Some(FoundDatum::Value(data.as_bytes())));
                assert_eq!(element.comment, Some("web"));
                assert_eq!(element.counter, Some(Counter::default()));
            });
            assert_eq!(seen.unwrap().len(), 1);
            let seen = connection.elements(family, TABLE, "allowed-sources", |element| {
                assert_eq!(element.key, range_key(128).as_bytes());
                assert_eq!(element.key_end, Some(range_key(255).as_bytes()));
            });
            assert_eq!(seen.unwrap().len(), 1);
            let seen = connection.elements(family, TABLE, "recent", |element| {
                assert_eq!(element.timeout, Some(Duration::from_secs(600)));
            });
            assert_eq!(seen.unwrap().len(), 1);
            let seen = connection.elements(family, TABLE, "no-endpoints", |element| {
                assert_eq!(element.data, Some(FoundDatum::Verdict(Verdict::Goto("reject-chain"))));
            });
            assert_eq!(seen.unwrap().len(), 1);

            let mut deletion = Batch::new(family, TABLE);
            deletion.delete_elements("endpoints", [pair]);
            deletion.delete_elements("allowed-sources", [range]);
            deletion.flush_set("recent");
            connection.commit(&deletion).unwrap();
            for set in ["endpoints", "allowed-sources", "recent"] {
                assert_eq!(connection.elements(family, TABLE, set, |_| ()).unwrap(), [], "{set}");
            }
        }
    });
}

#[test]
fn a_batch_can_have_a_hundred_thousand_elements() {
    in_fresh_netns(|| {
        let mut connection = NftablesSocket::open().unwrap();
        connection.commit(&program(Ipv4)).unwrap();
        let slots = || {
            (0..100_000_u32).map(|number| {
                let [_, a, b, c] = number.to_be_bytes();
                let service: IpAddr = [10, 96, a, b].into();
                Element::pair(slot(service, 6, 80, c.into()), endpoint([10, a, b, c].into(), 8080))
            })
        };
        let started = Instant::now();
        let mut batch = Batch::new(Ipv4, TABLE);
        batch.add_elements("endpoints", slots());
        let encoded = started.elapsed();
        connection.commit(&batch).unwrap();
        let committed = started.elapsed() - encoded;
        let keys = connection.elements(Ipv4, TABLE, "endpoints", |element| element.key.to_vec());
        let read = started.elapsed() - encoded - committed;
        println!("{} bytes: encoded {encoded:?}, committed {committed:?}, read {read:?}", batch.len());

        let by_key = connection.elements_at(Ipv4, TABLE, "endpoints", slots().map(|slot| slot.key), |_| ());
        assert_eq!(by_key.unwrap().len(), 100_000);

        let keys: BTreeSet<_> = keys.unwrap().into_iter().collect();
        let want: BTreeSet<_> = slots().map(|element| element.key.as_bytes().to_vec()).collect();
        assert_eq!(keys.len(), 100_000);
        assert!(keys == want);

        batch = Batch::new(Ipv4, TABLE);
        batch.delete_elements("endpoints", slots());
        connection.commit(&batch).unwrap();
        assert_eq!(connection.elements(Ipv4, TABLE, "endpoints", |_| ()).unwrap(), []);
    });
}

#[test]
fn a_dump_that_changes_meanwhile_starts_again() {
    in_fresh_netns(|| {
        let mut writer = table_with(&[]);
        let chains = |write: fn(&mut Batch, &str)| {
            let mut batch = Batch::new(Ipv4, TABLE);
            (0..3_000).for_each(|number| write(&mut batch, &format!("chain-{number}")));
            batch
        };
        writer.commit(&chains(|b, name| b.add_chain(&Chain { name, hook: None, comment: None }))).unwrap();

        let mut seen = 0;
        let request = Request { kind: 0x0a04, flags: 0, fixed: &[Ipv4.to_wire(), 0, 0, 0] };
        let found = Socket::open(NetlinkProtocol::Netfilter).unwrap().dump(
            request,
            |_| {},
            |message| {
                seen += 1;
                if seen == 1 {
                    writer.commit(&chains(Batch::delete_chain)).unwrap();
                }
                Some(message.header.kind)
            },
        );
        assert_eq!(found.unwrap(), []);
        assert!(seen > 0, "the first dump was dropped");
    });
}

#[test]
fn a_dump_of_elements_that_change_meanwhile_starts_again() {
    in_fresh_netns(|| {
        let mut reader = table_with(&[Set::new("s", &[Field::Mark])]);
        let number = |number: u32| Element::new(number.to_ne_bytes());
        let mut batch = Batch::new(Ipv4, TABLE);
        batch.add_elements("s", (0..10_000).map(number));
        reader.commit(&batch).unwrap();

        let mut writer = NftablesSocket::open().unwrap();
        let mut seen = 0;
        let found = reader.elements(Ipv4, TABLE, "s", |_| {
            seen += 1;
            if seen == 1 {
                let mut change = Batch::new(Ipv4, TABLE);
                change.delete_elements("s", (0..5_000).map(number));
                writer.commit(&change).unwrap();
            }
        });
        assert_eq!(found.unwrap().len(), 5_000);
        assert!(seen > 5_000, "the first dump was dropped");

        let mut seen = 0;
        let refused = reader.retrying_for(Duration::ZERO).elements(Ipv4, TABLE, "s", |_| {
            seen += 1;
            if seen == 1 {
                let mut change = Batch::new(Ipv4, TABLE);
                change.delete_elements("s", [number(5_000)]);
                writer.commit(&change).unwrap();
            }
        });
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ResourceBusy, "no time for another attempt");
    });
}

#[test]
fn a_connection_stays_in_its_namespace() {
    let (give, take) = std::sync::mpsc::channel();
    in_fresh_netns(move || give.send(table_with(&[])).unwrap());
    in_fresh_netns(move || {
        assert_eq!(NftablesSocket::open().unwrap().tables(Ipv4).unwrap(), []);
        assert_eq!(take.recv().unwrap().tables(Ipv4).unwrap().len(), 1);
    });
}

#[test]
fn elements_are_looked_up_by_key() {
    in_fresh_netns(|| {
        let data = Some(MapData::Fields(&[Field::Mark]));
        let mut connection = table_with(&[Set { data, ..Set::new("m", &[Field::Mark]) }]);
        let pair = |number: u32| Element::pair(number.to_ne_bytes(), (number + 1).to_ne_bytes());
        let mut batch = Batch::new(Ipv4, TABLE);
        batch.add_elements("m", (0..2000).map(pair));
        connection.commit(&batch).unwrap();
        assert!(matches!(connection.sets(Ipv4, TABLE).unwrap()[0].count, None | Some(2000)));

        let mut find = |keys: Vec<u32>| {
            let keys = keys.into_iter().map(|number| Value::from(number.to_ne_bytes()));
            let read = |element: FoundElement<'_>| {
                let Some(FoundDatum::Value(data)) = element.data else { panic!("{element:?}") };
                u32::from_ne_bytes(data.try_into().unwrap())
            };
            connection.elements_at(Ipv4, TABLE, "m", keys, read).unwrap()
        };
        let some = |range: std::ops::Range<u32>| range.map(Some).collect::<Vec<_>>();
        assert_eq!(find((0..2000).collect()), some(1..2001));
        assert_eq!(find(vec![]), []);
        let with_gaps = [3000, 0, 1, 3001, 3002, 2, 1999, 2000];
        assert_eq!(find(with_gaps.into()), [None, Some(1), Some(2), None, None, Some(3), Some(2000), None]);
        let mut expected = some(1501..2001);
        expected.resize(600, None);
        assert_eq!(find((1500..2100).collect()), expected);
        assert_eq!(find(vec![0]), [Some(1)], "a missing key leaves no answers on the socket");
    });
}

#[test]
fn a_dump_of_a_missing_set_is_not_found() {
    in_fresh_netns(|| {
        let mut connection = NftablesSocket::open().unwrap();
        let missing = connection.elements(Ipv4, TABLE, "endpoints", |_| ()).unwrap_err();
        assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        assert_eq!(connection.sets(Ipv4, TABLE).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        assert_eq!(connection.chains(Ipv4, TABLE).unwrap(), []);
        assert_eq!(connection.rules(Ipv4, TABLE).unwrap(), []);
    });
}
