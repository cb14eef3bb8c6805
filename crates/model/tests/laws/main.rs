//! What holds for any history of the cluster, however odd.
//!
//! Histories are made of few names, addresses and ports so that they collide: slices change their Service, endpoints
//! stand in several slices, families mix, objects come back before anyone noticed that they were gone.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests stop at what they did not expect")]

mod garbage;
mod histories;
mod invariants;
mod naive;
mod store;

use model::address::Family;
use model::cluster::{Changes, Counts};
use model::event::{Event, Kind};
use proptest::prelude::*;

use histories::{Objects, Op, family, history, objects};
use store::{Store, View};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// However the cluster came to be as it is, and whenever changes were taken on the way, what there is now depends
    /// only on how it is. What was said along the way adds up to it, and nothing was said that was not so: see
    /// [`Store::take`].
    #[test]
    fn only_the_final_state_matters(family in family(), ops in history()) {
        let mut store = Store::new(family);
        let mut objects = Objects::default();
        for op in &ops {
            store.apply_all(&objects.apply(op));
            if matches!(op, Op::Take) {
                store.take();
            }
        }
        store.take();
        prop_assert_eq!(store.view(), View::of(family, &objects));
    }

    /// The specification's own words, transcribed without any thought for cost.
    #[test]
    fn the_store_agrees_with_the_specification_read_naively(family in family(), ops in history()) {
        let mut store = Store::new(family);
        let mut objects = Objects::default();
        for op in &ops {
            store.apply_all(&objects.apply(op));
        }
        store.take();
        prop_assert_eq!(naive::said(&store.view()), naive::expected(family, &objects));
    }

    #[test]
    fn the_same_state_again_is_no_change(family in family(), objects in objects()) {
        let mut store = Store::new(family);
        store.apply_all(&objects.events());
        store.take();
        let before = store.view();
        store.apply_all(&objects.events());
        prop_assert!(!store.cluster.has_changes());
        prop_assert_eq!(store.cluster.pending(), (0, 0));
        prop_assert_eq!(store.take(), Changes::default());
        prop_assert_eq!(store.view(), before);
    }

    #[test]
    fn the_order_of_arrival_does_not_matter(
        family in family(),
        (objects, events) in objects().prop_flat_map(|objects| {
            let events = Just(objects.events()).prop_shuffle();
            (Just(objects), events)
        }),
        taken_at in any::<prop::sample::Index>(),
    ) {
        let mut store = Store::new(family);
        let middle = taken_at.index(events.len() + 1);
        store.apply_all(&events[..middle]);
        store.take();
        store.apply_all(&events[middle..]);
        store.take();
        prop_assert_eq!(store.view(), View::of(family, &objects));
    }

    #[test]
    fn what_a_new_list_leaves_out_is_as_good_as_deleted(family in family(), ops in history(), kept in any::<u32>()) {
        let (mut listed, mut deleted) = (Store::new(family), Store::new(family));
        let mut objects = Objects::default();
        for op in &ops {
            let events = objects.apply(op);
            listed.apply_all(&events);
            deleted.apply_all(&events);
        }
        let mut same = objects.clone();
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr] {
            deleted.apply_all(&same.deletions(kind, kept));
            listed.apply_all(&objects.apply(&Op::Relist(kind, kept)));
        }
        prop_assert_eq!(&objects, &same);
        prop_assert_eq!(listed.cluster.pending(), deleted.cluster.pending());
        prop_assert_eq!(listed.take(), deleted.take());
        prop_assert_eq!(listed.view(), deleted.view());
    }

    #[test]
    fn nothing_is_left_of_a_cluster_that_is_gone(family in family(), ops in history(), take_before in any::<bool>()) {
        let mut store = Store::new(family);
        let mut objects = Objects::default();
        for op in &ops {
            store.apply_all(&objects.apply(op));
            if matches!(op, Op::Take) {
                store.take();
            }
        }
        if take_before {
            store.take();
        }
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr] {
            store.apply_all(&objects.deletions(kind, 0));
        }
        store.take();
        prop_assert_eq!(store.view(), View::default());
        prop_assert_eq!(store.cluster.pending(), (0, 0));
        prop_assert!(!store.cluster.has_changes());
        let shown = format!("{:?}", store.cluster);
        for left in ["svc-", "slice-", "cidr-"] {
            prop_assert!(!shown.contains(left), "{} is left in {}", left, shown);
        }
    }

    #[test]
    fn what_is_undone_before_anyone_asks_is_no_change(family in family(), before in objects(), ops in history()) {
        let mut store = Store::new(family);
        store.apply_all(&before.events());
        store.take();
        let mut now = before.clone();
        for op in &ops {
            store.apply_all(&now.apply(op));
        }
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr] {
            store.apply_all(&now.clone().deletions(kind, 0));
        }
        store.apply_all(&before.events());
        prop_assert_eq!(store.cluster.pending(), (0, 0));
        prop_assert_eq!(store.take(), Changes::default());
    }

    /// Names, numbers and addresses that no API server would let through: each is skipped or read, none is fatal, and
    /// what is served of them is sound.
    #[test]
    fn garbage_is_survived(family in family(), events in prop::collection::vec(garbage::event(), 1..30)) {
        let mut store = Store::new(family);
        for event in &events {
            store.cluster.apply(event);
            if matches!(event, Event::Listed(_)) {
                store.take();
            }
        }
        store.take();
        for note in events.iter().flat_map(|event| store.cluster.apply(event)) {
            prop_assert!(!note.to_string().is_empty());
        }
    }
}

#[test]
fn cumulative_counts_only_grow() {
    let mut store = Store::new(Family::V4);
    let mut last = Counts::default();
    for event in Objects::crowded().events() {
        store.cluster.apply(&event);
        let counts = store.cluster.counts();
        assert!(
            counts.service_changes >= last.service_changes
                && counts.endpoint_changes >= last.endpoint_changes
        );
        last = counts;
    }
    assert!(last.service_changes > 0 && last.endpoint_changes > 0);
}
