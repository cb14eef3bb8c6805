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
fn slot_ranges_do_not_overlap() {
    let mut next = 0;
    for range in slot_ranges() {
        assert_eq!(range.first, next);
        next += range.count;
    }
}

#[test]
fn every_number_of_endpoints_has_the_smallest_slot_range_that_holds_it() {
    for (endpoints, size) in
        [(1, 1), (2, 2), (9, 9), (16, 16), (17, 24), (25, 32), (1_000, 1_024), (65_536, 65_536)]
    {
        assert_eq!(slot_range(endpoints).map(|range| range.count), Some(size), "{endpoints}");
    }
    assert_eq!(slot_range(0), None);
    assert_eq!(slot_range(65_537), None);
}

/// How many of all combinations of random numbers, each equally likely, hit each slot.
fn hits(endpoints: usize) -> Vec<u32> {
    let range = slot_range(endpoints).unwrap();
    let tries: Vec<usize> = random_slots(range).iter().map(|random| random.count as usize).collect();
    let mut hits = vec![0; endpoints];
    for mut combination in 0..tries.iter().product() {
        let numbers = tries.iter().map(|count| {
            let number = combination % count;
            combination /= count;
            number
        });
        let hit = numbers.into_iter().find(|number| *number < endpoints);
        hits[hit.unwrap()] += 1;
    }
    hits
}

#[test]
fn shares_are_what_random_numbers_give() {
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
fn shares_add_up_to_one() {
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
        let allowed = if endpoints <= 16 { 1e-9 } else { 0.04 };
        assert!(worst < allowed, "{endpoints} endpoints: off by {worst}");
    }
}

#[test]
fn an_endpoint_keeps_its_slot() {
    for (before, desired, after) in [
        (vec![], vec![1, 2, 3], vec![1, 2, 3]),
        (vec![1, 2, 3], vec![1, 2, 3, 4], vec![1, 2, 3, 4]),
        (vec![3, 1, 2], vec![1, 2, 3], vec![3, 1, 2]),
        (vec![1, 2, 3, 4], vec![2, 3, 4], vec![4, 2, 3]),
        (vec![1, 2, 3], vec![1, 3, 9], vec![1, 9, 3]),
        (vec![1, 2, 3], vec![], vec![]),
        (vec![1, 1, 2], vec![1, 2, 3], vec![1, 3, 2]),
    ] {
        assert_eq!(assign(&endpoints(before.clone()), &endpoints(desired)), endpoints(after), "{before:?}");
    }
}

proptest! {
    #[test]
    fn every_endpoint_has_one_slot_and_one_change_moves_at_most_two(
        before in proptest::collection::btree_set(0u8..40, 0..30),
        removed in 0u8..40,
        added in 40u8..60,
    ) {
        let slots = assign(&[], &endpoints(before.iter().copied()));
        let desired: BTreeSet<u8> = before.iter().copied().filter(|e| *e != removed).chain([added]).collect();
        let after = assign(&slots, &endpoints(desired.iter().copied()));
        let assigned: BTreeSet<_> = after.iter().map(|e| e.ip).collect();
        prop_assert_eq!(after.len(), desired.len());
        prop_assert_eq!(assigned, endpoints(desired).iter().map(|e| e.ip).collect::<BTreeSet<_>>());
        let moved = slots.iter().zip(&*after).filter(|(a, b)| a != b).count();
        prop_assert!(moved <= 2, "{} moved", moved);
    }
}
