use proptest::prelude::*;

use crate::Family;
use crate::message::{Header, Message, Messages};
use crate::nftables::*;

type Written = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>, bool, Option<String>);

fn element() -> impl Strategy<Value = Written> {
    let value = || prop::collection::vec(any::<u8>(), 1..=64);
    let comment = prop::option::of("[^\0]{1,40}");
    (value(), prop::option::of(value()), prop::option::of(value()), any::<bool>(), comment)
}

fn to_element(written: &Written) -> Element<'_> {
    let (key, key_end, data, interval_end, comment) = written;
    let value = |bytes: &Vec<u8>| Value::from_slice(bytes).unwrap();
    Element {
        key_end: key_end.as_ref().map(value),
        data: data.as_ref().map(|data| Datum::Value(value(data))),
        interval_end: *interval_end,
        comment: comment.as_deref(),
        ..Element::new(value(key))
    }
}

fn found(element: FoundElement<'_>) -> Written {
    let data = element.data.map(|data| match data {
        FoundDatum::Value(value) => value.to_vec(),
        FoundDatum::Verdict(verdict) => panic!("{verdict:?}"),
    });
    (
        element.key.to_vec(),
        element.key_end.map(<[u8]>::to_vec),
        data,
        element.interval_end,
        element.comment.map(str::to_owned),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_number_of_elements_is_read_as_written(
        written in prop::collection::vec(element(), 0..200),
        times in 1_usize..20,
    ) {
        let mut batch = Batch::new(Family::Ipv6, "t");
        batch.add_elements("s", (0..times).flat_map(|_| written.iter().map(to_element)));
        let read: Vec<_> = Messages::new(batch.as_bytes())
            .flat_map(|message| FoundElement::all_from_wire(&message).unwrap())
            .map(found)
            .collect();
        prop_assert_eq!(read, vec![written; times].concat());
    }

    #[test]
    fn sets_are_read_as_written(interval: bool, dynamic: bool, counter: bool, index: bool, map: bool) {
        let key = if index {
            vec![Field::Ipv4Address, Field::Index { modulus: 7 }]
        } else {
            vec![Field::Ipv6Address]
        };
        let data = map.then_some(MapData::Fields(&[Field::Port]));
        let set = Set { interval, dynamic, counter, data, comment: Some("c"), ..Set::new("s", &key) };
        let mut batch = Batch::new(Family::Ipv4, "t");
        batch.add_set(&set);
        let message = Messages::new(batch.as_bytes()).next().unwrap();
        let found = FoundSet::from_wire(&message).unwrap();
        prop_assert!(set.agrees_with(&found), "{:?}", found);
        prop_assert_eq!(found.comment.as_deref(), Some("c"));
        let other = Set { counter: !counter, ..set };
        prop_assert!(!other.agrees_with(&found));
    }

    #[test]
    fn chains_are_read_as_written(priority: i32, drop: bool, comment in prop::option::of("[a-z ]{1,30}")) {
        let policy = Some(if drop { Policy::Drop } else { Policy::Accept });
        let hook = Some(Hook { kind: ChainKind::Nat, point: HookPoint::Output, priority, policy });
        let mut batch = Batch::new(Family::Ipv6, "t");
        batch.add_chain(&Chain { name: "c", hook, comment: comment.as_deref() });
        let message = Messages::new(batch.as_bytes()).next().unwrap();
        let found = FoundChain::from_wire(&message).unwrap();
        prop_assert_eq!((found.hook, found.comment), (hook, comment));
    }
}

/// What the kernel has sent.
fn corpus() -> Vec<Vec<u8>> {
    fuzz::corpus("netlink-nftables").unwrap().into_iter().map(|(_, bytes)| bytes).collect()
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(
        kind in 0x0a00_u16..0x0a20,
        sequence: u32,
        body in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        decode_all(&Message { header: Header { kind, flags: 0, sequence, port: 0 }, body: &body });
    }

    #[test]
    fn damaged_messages_do_not_panic(
        mut bytes in prop::sample::select(corpus()),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        length: prop::sample::Index,
    ) {
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        bytes.truncate(length.index(bytes.len()) + 1);
        for message in Messages::new(&bytes) {
            decode_all(&message);
        }
    }
}
