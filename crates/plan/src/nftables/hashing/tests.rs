use std::collections::BTreeMap;

use model::names::Port;

use super::*;

fn endpoints(count: u32) -> Vec<Endpoint> {
    let ip = |number: u32| std::net::Ipv4Addr::from(0x0a00_0000 + number).into();
    (1..=count)
        .map(|number| Endpoint { ip: ip(number), local: false, port: Port::from_api(8080).unwrap() })
        .collect()
}

fn counts(slots: &[Endpoint]) -> BTreeMap<IpAddr, usize> {
    let mut counts = BTreeMap::new();
    slots.iter().for_each(|endpoint| *counts.entry(endpoint.ip).or_default() += 1);
    counts
}

/// How many of 1,000 clients of the other endpoints get another one when an endpoint goes.
fn moved_of_thousand(before: &[Endpoint], gone: usize) -> usize {
    let mut after = before.to_vec();
    let gone = after.remove(gone);
    let (before, after) = (fill(before, &[]), fill(&after, &[]));
    let others = || before.iter().zip(&after).filter(|(before, _)| **before != gone);
    1_000 * others().filter(|(before, after)| before != after).count() / others().count()
}

// The examples in Jenkins' lookup3.c.
#[test]
fn hashes_are_those_of_lookup3() {
    let text = b"Four score and seven years ago";
    for (bytes, seed, hash) in [
        (&b""[..], 0, 0xdead_beef),
        (b"", 0xdead_beef, 0xbd5b_7dde),
        (text, 0, 0x1777_0551),
        (text, 1, 0xcd62_8161),
    ] {
        assert_eq!(jenkins(bytes, seed), hash);
    }
}

#[test]
fn all_slots_are_filled_evenly() {
    for count in [1, 2, 3, 100, 1_000, 16_381] {
        let slots = fill(&endpoints(count), &[]);
        assert_eq!(slots.len(), 16_381);
        let counts = counts(&slots);
        assert_eq!(counts.len(), count as usize);
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        assert!(most - least <= 1, "{count}: {least} {most}");
    }
    assert_eq!(fill(&[], &[]), []);
    assert_eq!(counts(&fill(&endpoints(20_000), &[])).len(), 16_381, "the others get none");
}

#[test]
fn slots_are_filled_in_proportion_to_weights() {
    let weights = [1, 2, 5, 65_535];
    let counts = self::counts(&fill(&endpoints(3), &weights[..3]));
    let counts: Vec<usize> = counts.into_values().collect();
    for (count, weight) in counts.iter().zip(weights) {
        let exact = 16_381 * usize::from(weight) / 8;
        assert!(count.abs_diff(exact) <= 2, "{count} {exact}");
    }
    let counts: Vec<usize> = self::counts(&fill(&endpoints(4), &weights)).into_values().collect();
    assert_eq!(counts, [1, 1, 2, 16_377]);
}

#[test]
fn few_clients_move_when_an_endpoint_goes() {
    for (count, most) in [(2, 0), (10, 10), (100, 20), (1_000, 20)] {
        let all = endpoints(count);
        let worst = (0..10).map(|at| moved_of_thousand(&all, at * all.len() / 10)).max();
        assert!(worst <= Some(most), "{count} endpoints: {worst:?}");
    }
}
