use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

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
    for range in slot_ranges().chain([HASH_RANGE]) {
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
        assert_eq!(
            assign(&endpoints(before.clone()), &endpoints(desired), &[]),
            endpoints(after),
            "{before:?}"
        );
    }
}

proptest! {
    #[test]
    fn every_endpoint_has_one_slot_and_one_change_moves_at_most_two(
        before in proptest::collection::btree_set(0u8..40, 0..30),
        removed in 0u8..40,
        added in 40u8..60,
    ) {
        let slots = assign(&[], &endpoints(before.iter().copied()), &[]);
        let desired: BTreeSet<u8> = before.iter().copied().filter(|e| *e != removed).chain([added]).collect();
        let after = assign(&slots, &endpoints(desired.iter().copied()), &[]);
        let assigned: BTreeSet<_> = after.iter().map(|e| e.ip).collect();
        prop_assert_eq!(after.len(), desired.len());
        prop_assert_eq!(assigned, endpoints(desired).iter().map(|e| e.ip).collect::<BTreeSet<_>>());
        let moved = slots.iter().zip(&*after).filter(|(a, b)| a != b).count();
        prop_assert!(moved <= 2, "{} moved", moved);
    }
}

/// The number of slots of each endpoint.
fn count(slots: &[Endpoint]) -> BTreeMap<IpAddr, u32> {
    let mut counts = BTreeMap::new();
    slots.iter().for_each(|endpoint| *counts.entry(endpoint.ip).or_default() += 1);
    counts
}

#[test]
fn weights_are_exact_if_few_slots_suffice() {
    for (weights, want) in [
        (vec![1, 2, 5], vec![1, 2, 5]),
        (vec![100, 200, 500], vec![1, 2, 5]),
        (vec![300, 100], vec![3, 1]),
        (vec![65_535, 65_535], vec![1, 1]),
        (vec![7], vec![1]),
        (vec![15, 1], vec![15, 1]),
        (vec![1, 3, 13], vec![30, 90, 392]),
        (vec![65_535, 1, 1], vec![510, 1, 1]),
        (vec![1, 511], vec![1, 511]),
    ] {
        assert_eq!(slot_counts(&weights), want, "{weights:?}");
    }
}

#[test]
fn any_number_of_weighted_endpoints_fills_its_slots() {
    for (endpoints, slots) in
        [(33, 768), (1_000, 16_384), (5_000, 65_536), (60_000, 65_536), (65_536, 65_536)]
    {
        let mut weights = vec![1; endpoints];
        weights[7] = Weight::MAX;
        let counts = slot_counts(&weights);
        assert_eq!(counts.iter().sum::<u32>(), slots, "{endpoints}");
        assert!(counts.iter().all(|count| *count >= 1), "{endpoints}");
        assert_eq!(counts.iter().max(), Some(&counts[7]), "{endpoints}");
    }
    let too_many = endpoints_of(MAX_SLOTS + 2);
    let mut weights = vec![1; MAX_SLOTS + 2];
    weights[7] = 9;
    assert_eq!(assign(&[], &too_many, &weights).len(), MAX_SLOTS);
}

fn endpoints_of(count: usize) -> Arc<[Endpoint]> {
    let ip = |number: u32| std::net::Ipv4Addr::from(0x0a00_0000 + number).into();
    (0..).map(|number| Endpoint { ip: ip(number), ..endpoint(0) }).take(count).collect()
}

proptest! {
    #[test]
    fn shares_are_within_one_slot_of_the_weights(weights in proptest::collection::vec(1u16.., 2..300)) {
        let counts = slot_counts(&weights);
        let slots: u32 = counts.iter().sum();
        let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        prop_assert_eq!(slot_range(slots as usize).map(|range| range.count), Some(slots), "no slot is empty");
        let exact: Vec<f64> = weights.iter().map(|weight| f64::from(slots) * f64::from(*weight) / sum).collect();
        // One whose share is less than a slot gets one, at the expense of the others.
        let has_small = exact.iter().any(|exact| *exact < 1.0);
        for (exact, count) in exact.iter().zip(&counts) {
            prop_assert!(*count >= 1);
            prop_assert!(has_small || (f64::from(*count) - exact).abs() < 1.0, "{} {}", count, exact);
        }
    }

    #[test]
    fn a_change_of_weight_moves_no_more_slots_than_it_must(
        mut weights in proptest::collection::vec(1u16..1_000, 2..60),
        at in any::<prop::sample::Index>(),
        weight in 1u16..1_000,
    ) {
        let all = endpoints(0..u8::try_from(weights.len()).unwrap());
        let before = assign(&[], &all, &weights);
        let counted = slot_counts(&weights);
        *at.get_mut(&mut weights) = weight;
        let after = assign(&before, &all, &weights);
        let desired = slot_counts(&weights);
        prop_assert_eq!(count(&after), all.iter().map(|endpoint| endpoint.ip).zip(desired.iter().copied()).collect::<BTreeMap<_, _>>());
        if before.len() == after.len() {
            let moved = before.iter().zip(&*after).filter(|(a, b)| a != b).count();
            let gained: u32 = counted.iter().zip(&desired).map(|(a, b)| b.saturating_sub(*a)).sum();
            prop_assert_eq!(moved, gained as usize);
        }
    }
}
