//! Laws that hold for any history of the cluster.
//!
//! Histories use few names, addresses and ports, so that they collide: slices change their Service, endpoints are in several
//! slices, families mix, objects are recreated before their deletion is taken.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod garbage;
mod histories;
mod invariants;
mod naive;
mod store;

use std::collections::HashSet;
use std::sync::Arc;

use model::address::Family;
use model::api;
use model::backlog::Backlog;
use model::cluster::Changes;
use model::event::{Event, Kind};
use model::names::NamespacedName;
use proptest::prelude::*;

use histories::{Objects, Op, family, history, objects};
use store::{Store, View};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The state depends only on the current objects, not on the history or on when changes were taken. The sum of the changes
    /// is the state: see [`Store::take`].
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

    /// Changes that are taken before the lists have ended are part of the same sum.
    #[test]
    fn changes_may_be_taken_early(family in family(), ops in history()) {
        let mut store = Store::new(family);
        let mut objects = Objects::default();
        for op in &ops {
            store.apply_all(&objects.apply(op));
            if matches!(op, Op::Take) {
                store.take_early();
            }
        }
        store.take_early();
        store.take();
        prop_assert_eq!(store.view(), View::of(family, &objects));
    }

    /// Compares with a transcription of the specification that ignores cost.
    #[test]
    fn the_store_agrees_with_a_naive_implementation_of_the_specification(family in family(), ops in history()) {
        let mut store = Store::new(family);
        let mut objects = Objects::default();
        for op in &ops {
            store.apply_all(&objects.apply(op));
        }
        store.take();
        prop_assert_eq!(naive::described(&store.view()), naive::expected(family, &objects));
    }

    #[test]
    fn applying_the_same_objects_again_is_no_change(family in family(), objects in objects()) {
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

    /// Applying the newest event of each object now and then gives the same state as applying every event at once. Lists may end
    /// early, and events may be taken in the middle of one.
    #[test]
    fn a_backlog_drops_only_events_that_make_no_difference(
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
    fn a_list_without_an_object_is_equivalent_to_its_deletion(family in family(), ops in history(), kept in any::<u32>()) {
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
    fn nothing_is_left_after_all_objects_are_deleted(family in family(), ops in history(), take_before in any::<bool>()) {
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
    fn what_is_undone_before_changes_are_taken_is_no_change(family in family(), before in objects(), ops in history()) {
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

    /// Names, numbers and addresses that no API server would accept do not panic, and the routings keep their invariants:
    /// see [`Store::take`].
    #[test]
    fn invalid_objects_do_not_break_invariants(family in family(), events in prop::collection::vec(garbage::event(), 1..30)) {
        let mut store = Store::new(family);
        for event in &events {
            store.cluster.apply(event);
            if matches!(event, Event::Listed(_)) {
                store.take();
            }
        }
        store.take();
    }
}

#[test]
fn every_service_event_and_every_slice_event_of_the_family_is_counted() {
    let mut store = Store::new(Family::V4);
    let mut objects = Objects::crowded();
    let applied = objects.events();
    let deleted = [Kind::Service, Kind::EndpointSlice].map(|kind| objects.deletions(kind, 0)).concat();
    store.apply_all(&applied);
    store.apply_all(&deleted);

    let mut slices = HashSet::new();
    let (mut service_changes, mut endpoint_changes) = (0, 0);
    for event in applied.iter().chain(&deleted) {
        if let Event::ServiceApplied(_) | Event::ServiceDeleted(_) = event {
            service_changes += 1;
        }
        let is_counted = match event {
            Event::SliceApplied(slice) if is_counted(slice) => {
                slices.insert(NamespacedName::new(&slice.metadata.namespace, &slice.metadata.name))
            }
            Event::SliceDeleted(name) => slices.contains(name),
            Event::SliceApplied(_)
            | Event::Listing(_)
            | Event::Listed(_)
            | Event::ServiceApplied(_)
            | Event::ServiceDeleted(_)
            | Event::NodeApplied(_)
            | Event::NodeDeleted
            | Event::ServiceCidrApplied(_)
            | Event::ServiceCidrDeleted(_) => false,
        };
        endpoint_changes += u64::from(is_counted);
    }
    assert!(service_changes > 0 && endpoint_changes > 0);
    let counts = store.cluster.counts();
    assert_eq!((counts.service_changes, counts.endpoint_changes), (service_changes, endpoint_changes));
}

fn is_counted(slice: &api::EndpointSlice) -> bool {
    slice.address_type == "IPv4"
        && slice.metadata.labels.service_name.as_deref().is_some_and(|name| !name.is_empty())
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
fn the_number_of_objects_bounds_a_backlog() {
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
fn superseded_events_are_counted_and_their_latency_is_measured() {
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
