use model::names::{NamespacedName, ServicePortName};
use proptest::prelude::*;

use super::*;
use crate::nftables::desired::Changed;
use crate::nftables::desired::tests::{FakeTable, changes, settings};

/// What becomes of one sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Commits,
    /// The kernel refuses the steps, or they are lost.
    Fails,
    /// The kernel commits, but its answer is lost.
    AnswerLost,
    /// A foreign writer empties a set before, and is noticed.
    Drift(Set),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Commits),
        1 => Just(Fate::Fails),
        1 => Just(Fate::AnswerLost),
        1 => proptest::sample::select(Set::fixed().collect::<Vec<_>>()).prop_map(Fate::Drift),
    ]
}

fn of(routings: Vec<Changed>) -> Changes {
    Changes { routings, ..Changes::default() }
}

/// One sync that reads back where it has to, up to the commit.
fn steps(plan: &mut Plan, table: &FakeTable, changes: Changes) -> Steps {
    plan.steps(changes).unwrap_or_else(|| plan.steps_from(table.held(&[])))
}

proptest! {
    #[test]
    fn whatever_fails_on_the_way_a_sync_that_commits_leads_to_the_desired_state(
        history in proptest::collection::vec((changes(), fate()), 1..8),
    ) {
        let mut plan = Plan::new(settings());
        let mut table = FakeTable::default();
        let mut is_known = false;
        for (change, fate) in history {
            let mut is_damaged = false;
            if let Fate::Drift(set) = fate {
                let before = table.clone();
                table.0.retain(|(of, _), _| *of != set);
                is_damaged = table != before;
                plan.distrust();
            }
            let steps = steps(&mut plan, &table, of(change));
            prop_assert_eq!(steps.is_full, !is_known || matches!(fate, Fate::Drift(_)));
            if is_known {
                prop_assert_eq!(steps.has_drifted, is_damaged, "whatever changed at the same time");
            }
            if fate != Fate::Fails {
                table.commit(&steps);
                prop_assert_eq!(&table, &FakeTable::holding(&plan.desired().elements()));
            }
            is_known = !matches!(fate, Fate::Fails | Fate::AnswerLost);
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
    let mut plan = Plan::new(settings());
    let cidrs = vec!["10.96.0.0/12".parse().unwrap()];
    let everything = Changes { service_cidrs: Some(cidrs), ..Changes::default() };
    assert!(plan.move_to(vec!["192.0.2.1".parse().unwrap(), "127.0.0.1".parse().unwrap()]));
    assert_eq!(plan.steps(everything), None, "nothing is known of the kernel");
    for _ in 0..2 {
        let steps = plan.steps_from(Held { generation: Some(7), table: HeldTable::Absent });
        assert_eq!(steps.generation, Some(7));
        assert!(steps.table.is_some() && steps.is_full && !steps.has_drifted);
        assert_eq!(steps.service_cidrs, Some(plan.desired().cidr_boundaries()));
        assert_eq!(steps.node_port_ips, Some(["192.0.2.1".parse().unwrap()].into()), "loopback can't serve");
    }
    plan.settle();
    assert!(plan.steps(Changes::default()).unwrap().is_empty());
    plan.settle();
    assert!(plan.move_to(vec!["192.0.2.2".parse().unwrap()]));
    assert!(!plan.move_to(vec!["192.0.2.2".parse().unwrap()]), "no news");
    let steps = plan.steps(Changes::default()).unwrap();
    assert_eq!(steps.node_port_ips, Some(["192.0.2.2".parse().unwrap()].into()));
    assert!(!steps.is_full);
}

#[test]
fn a_table_that_was_replaced_while_addresses_changed_has_drifted() {
    let mut plan = Plan::new(settings());
    plan.steps_from(Held { generation: None, table: HeldTable::Absent });
    plan.settle();
    plan.distrust();
    plan.move_to(vec!["192.0.2.2".parse().unwrap()]);
    let steps = plan.steps_from(FakeTable::default().held(&[]));
    assert!(!steps.has_drifted && !steps.is_empty(), "the set lacks only what is new");
    let steps = plan.steps_from(Held { generation: None, table: HeldTable::Foreign });
    assert!(steps.has_drifted);
    let steps = plan.steps_from(FakeTable::default().held(&[]));
    assert!(steps.has_drifted, "not forgotten when the commit failed");
}

#[test]
fn a_udp_frontend_that_came_back_has_not_counted_from_the_start() {
    let name = ServicePortName {
        service: NamespacedName::new("ns", "dns"),
        port: "".into(),
        protocol: Protocol::Udp,
    };
    let mut routing = std::sync::Arc::into_inner(crate::nftables::desired::tests::plain(
        [10, 96, 0, 10],
        &[],
        model::service::Created::UNKNOWN,
        1,
    ))
    .unwrap();
    routing.protocol = Protocol::Udp;
    let routing = std::sync::Arc::new(routing);
    let at = Destination::Address("10.96.0.10:80".parse().unwrap());
    let mut plan = Plan::new(settings());
    assert_eq!(plan.counted_from_start(at), None, "nothing was committed yet");
    plan.steps(of(vec![(name.clone(), Some(routing.clone()))]));
    plan.steps_from(Held { generation: None, table: HeldTable::Absent });
    plan.settle();
    assert!(plan.counted_from_start(at).is_some());
    // Whether the kernel took it or not.
    plan.steps(of(vec![(name, None)])).unwrap();
    assert_eq!(plan.counted_from_start(at), None);
}
