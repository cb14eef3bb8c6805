use model::address::Family;
use proptest::prelude::*;

use super::*;
use crate::nftables::desired::RoutingChange;
use crate::nftables::desired::tests::{FakeTable, changes, settings};
use crate::nftables::sets::Balancer;

/// How one sync ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncEnd {
    Commits,
    /// The kernel rejects the steps, or they are lost.
    Fails,
    /// The kernel commits, but its answer is lost.
    AnswerLost,
    /// A foreign writer empties a set before, and is noticed.
    Drift(Set),
}

fn end() -> impl Strategy<Value = SyncEnd> {
    prop_oneof![
        4 => Just(SyncEnd::Commits),
        1 => Just(SyncEnd::Fails),
        1 => Just(SyncEnd::AnswerLost),
        1 => proptest::sample::select(Set::fixed(Balancer::Slots)).prop_map(SyncEnd::Drift),
    ]
}

fn of(routings: Vec<RoutingChange>) -> Changes {
    Changes { routings, ..Changes::default() }
}

/// The steps of one sync, which reads the kernel back if it has to.
fn steps(plan: &mut NftablesPlan, table: &FakeTable, changes: Changes) -> Steps {
    plan.steps(changes).unwrap_or_else(|| plan.steps_from(table.actual(&[])))
}

proptest! {
    #[test]
    fn after_any_failures_a_sync_that_commits_leads_to_the_desired_state(
        history in proptest::collection::vec((changes(), end()), 1..8),
    ) {
        let mut plan = NftablesPlan::new(settings());
        let mut table = FakeTable::default();
        let mut is_known = false;
        for (change, end) in history {
            let mut is_damaged = false;
            if let SyncEnd::Drift(set) = end {
                let before = table.clone();
                table.0.retain(|(of, _), _| *of != set);
                is_damaged = table != before;
                plan.suspect_drift();
            }
            let steps = steps(&mut plan, &table, of(change));
            prop_assert_eq!(steps.is_full, !is_known || matches!(end, SyncEnd::Drift(_)));
            if is_known {
                prop_assert_eq!(steps.has_drifted, is_damaged, "whatever changed at the same time");
            }
            if end != SyncEnd::Fails {
                table.commit(&steps);
                prop_assert_eq!(&table, &FakeTable::holding(&plan.desired().elements()));
            }
            is_known = !matches!(end, SyncEnd::Fails | SyncEnd::AnswerLost);
            if is_known {
                plan.settle();
            }
        }
        table.commit(&steps(&mut plan, &table, Changes::default()));
        plan.settle();
        prop_assert_eq!(&table, &FakeTable::holding(&plan.desired().elements()));
        let again = plan.steps(Changes::default()).unwrap();
        prop_assert!(again.is_empty(), "{:?}", again);
    }
}

#[test]
fn what_a_failed_commit_should_have_written_is_in_the_steps_of_the_next() {
    let mut plan = NftablesPlan::new(settings());
    let cidrs = vec!["10.96.0.0/12".parse().unwrap()];
    let everything = Changes { service_cidrs: Some(cidrs), ..Changes::default() };
    plan.set_node_port_ips(vec!["192.0.2.1".parse().unwrap(), "127.0.0.1".parse().unwrap()]);
    assert_eq!(plan.steps(everything), None, "nothing is known of the kernel");
    for _ in 0..2 {
        let steps = plan.steps_from(ActualState { generation: Some(7), table: ActualTable::Absent });
        assert_eq!(steps.generation, Some(7));
        assert!(steps.table.is_some() && steps.is_full && !steps.has_drifted);
        assert_eq!(steps.service_cidrs, Some(plan.desired().cidr_boundaries()));
        assert_eq!(steps.node_port_ips, Some(["192.0.2.1".parse().unwrap()].into()), "loopback can't serve");
    }
    plan.settle();
    assert!(plan.steps(Changes::default()).unwrap().is_empty());
    plan.settle();
    plan.set_node_port_ips(vec!["192.0.2.2".parse().unwrap()]);
    plan.set_node_port_ips(vec!["192.0.2.2".parse().unwrap()]);
    let steps = plan.steps(Changes::default()).unwrap();
    assert_eq!(
        steps.node_port_ips,
        Some(["192.0.2.2".parse().unwrap()].into()),
        "the first call changed them"
    );
    assert!(!steps.is_full);
    plan.settle();
    plan.set_node_port_ips(vec!["192.0.2.2".parse().unwrap()]);
    assert_eq!(plan.steps(Changes::default()).unwrap().node_port_ips, None, "no news");
}

#[test]
fn a_table_that_was_replaced_while_addresses_changed_has_drifted() {
    let mut plan = NftablesPlan::new(settings());
    plan.steps_from(ActualState { generation: None, table: ActualTable::Absent });
    plan.settle();
    plan.suspect_drift();
    plan.set_node_port_ips(vec!["192.0.2.2".parse().unwrap()]);
    let steps = plan.steps_from(FakeTable::default().actual(&[]));
    assert!(!steps.has_drifted && !steps.is_empty(), "the set lacks only what is new");
    let steps = plan.steps_from(ActualState { generation: None, table: ActualTable::Foreign });
    assert!(steps.has_drifted);
    let steps = plan.steps_from(FakeTable::default().actual(&[]));
    assert!(steps.has_drifted, "the drift is still reported after a failed commit");
}

#[test]
fn a_udp_frontend_that_was_deleted_has_not_counted_from_the_start() {
    let (name, routing) = testkit::routing(
        Family::V4,
        "service ns/dns 10.96.0.10 p:80/UDP\nslice ns/dns-1 of dns p:8080/UDP | 10.1.0.1",
    );
    let at = Destination::Address("10.96.0.10:80".parse().unwrap());
    let mut plan = NftablesPlan::new(settings());
    assert_eq!(plan.counted_from_start(at), None, "nothing was committed yet");
    plan.steps(of(vec![(name.clone(), Some(routing.clone()))]));
    plan.steps_from(ActualState { generation: None, table: ActualTable::Absent });
    plan.settle();
    assert!(plan.counted_from_start(at).is_some());
    // Whether or not the kernel commits the steps.
    plan.steps(of(vec![(name, None)])).unwrap();
    assert_eq!(plan.counted_from_start(at), None);
}
