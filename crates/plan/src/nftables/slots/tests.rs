use std::collections::BTreeSet;

use model::names::Port;
use proptest::prelude::*;

use super::*;

fn endpoint(number: u8) -> Endpoint {
    Endpoint { ip: [10, 0, 0, number].into(), local: false, port: Port::from_api(80).unwrap() }
}

fn endpoints(numbers: impl IntoIterator<Item = u8>) -> Arc<[Endpoint]> {
    numbers.into_iter().map(endpoint).collect()
}

#[test]
fn tables_of_different_widths_share_no_slot() {
    let mut next = 0;
    for table in tables() {
        assert_eq!(table.first, next);
        next += table.count;
    }
}

#[test]
fn every_number_of_endpoints_has_the_smallest_table_that_holds_it() {
    for (endpoints, width) in
        [(1, 1), (2, 2), (8, 8), (9, 12), (12, 12), (13, 16), (1_000, 1_024), (65_536, 65_536)]
    {
        assert_eq!(table(endpoints).map(|table| table.count), Some(width), "{endpoints}");
    }
    assert_eq!(table(0), None);
    assert_eq!(table(65_537), None);
}

/// How many of all that chance may draw, each equally likely, hit each slot.
fn hits(endpoints: usize) -> Vec<u32> {
    let table = table(endpoints).unwrap();
    let draws = draws().into_iter().filter(|draw| draw.first == table.first);
    let draws: Vec<usize> = draws.map(|draw| draw.count as usize).collect();
    let mut hits = vec![0; endpoints];
    for mut chance in 0..draws.iter().product() {
        let numbers = draws.iter().map(|count| {
            let number = chance % count;
            chance /= count;
            number
        });
        let hit = numbers.into_iter().find(|number| *number < endpoints);
        hits[hit.unwrap()] += 1;
    }
    hits
}

#[test]
fn shares_are_what_chance_gives() {
    for endpoints in 1..=24 {
        let (shares, hits) = (shares(endpoints), hits(endpoints));
        let all = f64::from(hits.iter().sum::<u32>());
        assert_eq!(shares.len(), endpoints);
        for (slot, (share, hits)) in shares.iter().zip(&hits).enumerate() {
            assert!(
                (share - f64::from(*hits) / all).abs() < 1e-12,
                "slot {slot} of {endpoints}: {share} {hits}"
            );
        }
    }
}

#[test]
fn nothing_is_left_over() {
    for endpoints in (0..600).chain([1_025, 8_193, 16_385, 65_536]) {
        let sum: f64 = shares(endpoints).iter().sum();
        let want = if endpoints == 0 { 0.0 } else { 1.0 };
        assert!((sum - want).abs() < 1e-9, "{endpoints}: {sum}");
    }
}

#[test]
fn connections_are_spread_evenly() {
    for endpoints in (1..300).chain([1_000, 1_025, 3_000, 4_096]) {
        let shares = shares(endpoints);
        let fair = 1.0 / endpoints as f64;
        let worst = shares.iter().map(|share| (share / fair - 1.0).abs()).fold(0.0, f64::max);
        let allowed = if endpoints <= 8 { 1e-9 } else { 0.04 };
        assert!(worst < allowed, "{endpoints} endpoints: off by {worst}");
    }
}

#[test]
fn whoever_has_a_slot_keeps_it() {
    for (before, wanted, after) in [
        (vec![], vec![1, 2, 3], vec![1, 2, 3]),
        (vec![1, 2, 3], vec![1, 2, 3, 4], vec![1, 2, 3, 4]),
        (vec![3, 1, 2], vec![1, 2, 3], vec![3, 1, 2]),
        (vec![1, 2, 3, 4], vec![2, 3, 4], vec![4, 2, 3]),
        (vec![1, 2, 3], vec![1, 3, 9], vec![1, 9, 3]),
        (vec![1, 2, 3], vec![], vec![]),
        (vec![1, 1, 2], vec![1, 2, 3], vec![1, 3, 2]),
    ] {
        assert_eq!(assign(&endpoints(before.clone()), &endpoints(wanted)), endpoints(after), "{before:?}");
    }
}

proptest! {
    #[test]
    fn every_endpoint_has_one_slot_and_one_change_moves_at_most_two(
        before in proptest::collection::btree_set(0u8..40, 0..30),
        gone in 0u8..40,
        come in 40u8..60,
    ) {
        let seats = assign(&[], &endpoints(before.iter().copied()));
        let wanted: BTreeSet<u8> = before.iter().copied().filter(|e| *e != gone).chain([come]).collect();
        let after = assign(&seats, &endpoints(wanted.iter().copied()));
        let seated: BTreeSet<_> = after.iter().map(|e| e.ip).collect();
        prop_assert_eq!(after.len(), wanted.len());
        prop_assert_eq!(seated, endpoints(wanted).iter().map(|e| e.ip).collect::<BTreeSet<_>>());
        let moved = seats.iter().zip(&*after).filter(|(a, b)| a != b).count();
        prop_assert!(moved <= 2, "{} moved", moved);
    }
}
