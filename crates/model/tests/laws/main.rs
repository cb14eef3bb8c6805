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

use std::sync::Arc;

use model::address::Family;
use model::api;
use model::backlog::Backlog;
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

    /// A worker that takes the newest event of each object now and then, instead of every event at once, sees the same cluster
    /// each time. Lists may break off before their end, and events may be taken in the middle of one.
    #[test]
    fn a_backlog_leaves_out_only_what_makes_no_difference(
        family in family(),
        ops in history(),
        broken_off in any::<u64>(),
        taken_after in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut objects = Objects::default();
        let mut events = Vec::new();
        for (number, op) in ops.iter().enumerate() {
            let mut its = objects.apply(op);
            if matches!(op, Op::Relist(..)) && broken_off >> (number % 64) & 1 == 1 {
                // The source lists again at once, as it does after an error.
                let again = its.clone();
                its.truncate(1 + its.len() / 2);
                its.extend(again);
            }
            events.extend(its);
        }
        let taken_after: Vec<usize> = taken_after.iter().map(|at| at.index(events.len().max(1))).collect();
        let (mut every, mut newest, mut backlog) = (Store::new(family), Store::new(family), Backlog::default());
        for (number, event) in events.iter().enumerate() {
            every.apply_all(std::slice::from_ref(event));
            backlog.push(event.clone().into());
            if taken_after.contains(&number) || number + 1 == events.len() {
                let updates = backlog.take();
                prop_assert!(backlog.is_empty());
                updates.iter().for_each(|update| drop(newest.cluster.apply_update(update)));
                let (changes, same) = (every.take(), newest.take());
                prop_assert_eq!(changes.routings, same.routings);
                prop_assert_eq!(changes.new_frontends.len(), same.new_frontends.len());
                prop_assert_eq!(every.cluster.is_complete(), newest.cluster.is_complete());
                prop_assert_eq!(every.view(), newest.view());
            }
        }
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

fn slice(port: i64, triggered: &str) -> Arc<Event> {
    let mut slice = api::EndpointSlice { address_type: "IPv4".into(), ..api::EndpointSlice::default() };
    (slice.metadata.namespace, slice.metadata.name) = ("ns".into(), "web-1".into());
    slice.metadata.labels.service_name = Some("web".into());
    slice.metadata.annotations.last_change_trigger_time = Some(triggered.into());
    slice.ports =
        vec![api::EndpointPort { name: Some(String::new()), port: Some(port), ..Default::default() }];
    Arc::new(Event::SliceApplied(slice.into()))
}

#[test]
fn a_backlog_grows_with_the_cluster_and_not_with_what_happens_to_it() {
    let mut backlog = Backlog::default();
    for port in 1..=1_000 {
        if port % 100 == 0 {
            backlog.push(Event::Listing(Kind::EndpointSlice).into());
        }
        backlog.push(slice(port, "2026-11-15T11:00:00Z"));
        if port % 300 == 0 {
            backlog.push(Event::Listed(Kind::EndpointSlice).into());
        }
        assert!(backlog.len() <= 2, "{port}: {}", backlog.len());
    }
}

#[test]
fn what_a_newer_event_replaces_is_counted_and_its_wait_is_measured() {
    let mut store = Store::new(Family::V4);
    let mut backlog = Backlog::default();
    for (port, triggered) in [(1, "11:00:01"), (2, "11:00:02"), (3, "11:00:03")] {
        backlog.push(slice(port, &format!("2026-11-15T{triggered}Z")));
    }
    for update in backlog.take() {
        store.cluster.apply_update(&update);
    }
    assert_eq!(store.cluster.counts().endpoint_changes, 3);
    let times = store.cluster.take_changes().trigger_times;
    let times: Vec<String> = times[0].1.iter().map(ToString::to_string).collect();
    assert_eq!(times, ["2026-11-15T11:00:01Z", "2026-11-15T11:00:02Z", "2026-11-15T11:00:03Z"]);
}
