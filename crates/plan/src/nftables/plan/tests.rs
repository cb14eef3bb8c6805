use std::collections::BTreeMap;
use std::net::IpAddr;

use model::names::{NamespacedName, Port, Protocol};
use model::routing::Traffic;
use model::service::Addresses;
use proptest::prelude::*;

use super::*;

/// A table made of a map. It refuses what the kernel refuses.
#[derive(Debug, Default, PartialEq)]
struct FakeTable(BTreeMap<(Set, crate::nftables::sets::Key), Option<(IpAddr, Port)>>);

impl FakeTable {
    fn commit(&mut self, steps: &Steps) {
        self.0.retain(|(set, _), _| !steps.empty.contains(set));
        for element in &steps.delete {
            let had = self.0.remove(&(element.set, element.key));
            assert_eq!(had, Some(element.data), "deleting what is not there: {element:?}");
        }
        for element in &steps.add {
            let had = self.0.insert((element.set, element.key), element.data);
            assert_eq!(had, None, "adding what is there: {element:?}");
        }
    }

    fn holding(elements: &[Element]) -> Self {
        let mut table = Self::default();
        table.commit(&Steps { add: elements.to_vec(), ..Steps::default() });
        table
    }

    fn elements(&self) -> Vec<Element> {
        self.0.iter().map(|((set, key), data)| Element { set: *set, key: *key, data: *data }).collect()
    }
}

fn port(number: u16) -> Port {
    Port::from_api(number.into()).unwrap()
}

fn name(number: u8) -> ServicePortName {
    ServicePortName {
        service: NamespacedName::new("ns", &format!("s{number}")),
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

fn endpoints(numbers: &BTreeSet<u8>, local: bool) -> Arc<[Endpoint]> {
    numbers.iter().map(|n| Endpoint { ip: [10, 1, 0, *n].into(), local, port: port(8080) }).collect()
}

prop_compose! {
    /// Few addresses and ports, so that services get into each other's way.
    fn routing()(
        cluster_ip in 1u8..4,
        external in proptest::collection::vec(1u8..4, 0..3),
        balancer in proptest::collection::vec(1u8..4, 0..2),
        node_port in proptest::option::of(30_000u16..30_003),
        cluster in proptest::collection::btree_set(1u8..30, 0..12),
        local in proptest::collection::btree_set(1u8..4, 0..3),
        affinity in proptest::option::of(prop_oneof![Just(60u32), Just(10_800)]),
        internal_local in any::<bool>(),
        external_local in any::<bool>(),
        ranges in any::<bool>(),
    ) -> Arc<Routing> {
        let policy = |wants_local: bool| match (wants_local, cluster.is_empty() && local.is_empty()) {
            (_, true) => Traffic::RejectNoEndpoints,
            (true, _) if local.is_empty() => Traffic::DropNoLocalEndpoints,
            (true, _) => Traffic::ToLocal,
            (false, _) if cluster.is_empty() => Traffic::RejectNoEndpoints,
            (false, _) => Traffic::ToCluster,
        };
        let at = |net: u8| move |n: &u8| IpAddr::from([192, 0, net, *n]);
        Arc::new(Routing {
            protocol: Protocol::Tcp,
            port: port(80),
            node_port: node_port.map(port),
            addresses: Arc::new(Addresses {
                cluster_ip: [10, 96, 0, cluster_ip].into(),
                external_ips: external.iter().map(at(2)).collect(),
                load_balancer_ips: balancer.iter().map(at(3)).collect(),
                source_ranges: if ranges { ["10.0.0.0/8", "10.1.0.0/16"].map(|r| r.parse().unwrap()).into() } else { [].into() },
            }),
            affinity,
            internal: policy(internal_local),
            external: policy(external_local),
            cluster: endpoints(&cluster, false),
            local: endpoints(&local, true),
            preserves_client: external_local,
            ranges_admit_node: ranges,
            is_externally_accessible: true,
            health_check_node_port: None,
            serving: Arc::default(),
        })
    }
}

fn routings(plan: &Plan) -> Vec<Changed> {
    plan.units.iter().map(|(name, unit)| (name.clone(), Some(unit.routing.clone()))).collect()
}

fn changes() -> impl Strategy<Value = Vec<Changed>> {
    let change = (0u8..5, proptest::option::weighted(0.7, routing()));
    proptest::collection::btree_map(0u8..5, change, 1..4)
        .prop_map(|changes| changes.into_values().map(|(n, routing)| (name(n), routing)).collect())
        .prop_map(|mut changes: Vec<Changed>| {
            changes.sort_by(|a, b| a.0.cmp(&b.0));
            changes.dedup_by(|a, b| a.0 == b.0);
            changes
        })
}

proptest! {
    #[test]
    fn steps_lead_from_each_state_to_the_next(passes in proptest::collection::vec(changes(), 1..8)) {
        let mut plan = Plan::default();
        let mut table = FakeTable::default();
        for pass in passes {
            table.commit(&plan.replace(pass));
            prop_assert_eq!(&table, &FakeTable::holding(&plan.elements()));
        }
    }

    #[test]
    fn a_restart_with_nothing_changed_has_nothing_to_do(passes in proptest::collection::vec(changes(), 1..8)) {
        let mut plan = Plan::default();
        let mut table = FakeTable::default();
        for pass in passes {
            table.commit(&plan.replace(pass));
        }
        let mut successor = Plan::default();
        successor.accept(routings(&plan));
        let found = Held { elements: table.elements(), unclear: Vec::new() };
        let wanted = successor.elements();
        prop_assert_eq!(successor.steps_from(found, wanted), Steps::default());
        prop_assert_eq!(table, FakeTable::holding(&successor.elements()));
    }

    #[test]
    fn a_restart_leads_to_what_is_wanted_whatever_was_missed_and_whatever_could_be_read(
        before in changes(),
        missed in changes(),
        unclear in proptest::sample::subsequence(Set::fixed().collect::<Vec<_>>(), 0..6),
    ) {
        let mut plan = Plan::default();
        let mut table = FakeTable::default();
        table.commit(&plan.replace(before));
        plan.accept(missed);

        let mut successor = Plan::default();
        successor.accept(routings(&plan));
        let elements = table.elements().into_iter().filter(|element| !unclear.contains(&element.set)).collect();
        let wanted = successor.elements();
        table.commit(&successor.steps_from(Held { elements, unclear }, wanted));
        prop_assert_eq!(table, FakeTable::holding(&successor.elements()));
    }

    #[test]
    fn the_order_of_changes_does_not_matter_to_who_gets_what(change in changes()) {
        let (mut forwards, mut backwards) = (Plan::default(), Plan::default());
        let contested = forwards.accept(change.clone());
        prop_assert_eq!(contested, backwards.accept(change.into_iter().rev().collect()));
        prop_assert_eq!(forwards.elements(), backwards.elements());
    }

    #[test]
    fn the_same_routing_again_is_no_step(change in changes()) {
        let mut plan = Plan::default();
        plan.replace(change.clone());
        let again = plan.replace(change);
        prop_assert!(again.is_empty(), "{:?}", again);
    }

    #[test]
    fn nothing_is_left_of_nothing(passes in proptest::collection::vec(changes(), 1..8)) {
        let mut plan = Plan::default();
        let mut table = FakeTable::default();
        for pass in passes {
            table.commit(&plan.replace(pass));
        }
        table.commit(&plan.replace((0..5).map(|n| (name(n), None)).collect()));
        prop_assert_eq!(table, FakeTable::default());
        prop_assert!(plan.units.is_empty() && plan.claims.is_empty() && plan.shared.is_empty());
    }
}

#[test]
fn a_frontend_that_two_ask_for_goes_to_the_first_by_name_and_is_handed_over() {
    let routing = |endpoint: u8| {
        Arc::new(Routing {
            protocol: Protocol::Tcp,
            port: port(80),
            node_port: None,
            addresses: Arc::new(Addresses {
                cluster_ip: [10, 96, 0, 1].into(),
                external_ips: [].into(),
                load_balancer_ips: [].into(),
                source_ranges: [].into(),
            }),
            affinity: None,
            internal: Traffic::ToCluster,
            external: Traffic::ToCluster,
            cluster: endpoints(&[endpoint].into(), false),
            local: Arc::default(),
            preserves_client: false,
            ranges_admit_node: false,
            is_externally_accessible: false,
            health_check_node_port: None,
            serving: Arc::default(),
        })
    };
    let target = |plan: &Plan| plan.elements().iter().find_map(|element| element.data).unwrap().0.to_string();
    let frontend = Frontend { ip: Some([10, 96, 0, 1].into()), protocol: Protocol::Tcp, port: port(80) };
    let mut plan = Plan::default();
    plan.replace(vec![(name(2), Some(routing(2)))]);
    assert_eq!(target(&plan), "10.1.0.2");
    let steps = plan.replace(vec![(name(1), Some(routing(1)))]);
    assert_eq!(steps.contested, [(frontend, vec![name(1), name(2)])]);
    assert_eq!(target(&plan), "10.1.0.1");
    let steps = plan.replace(vec![(name(2), Some(routing(9)))]);
    assert!(steps.is_empty(), "not its turn: {steps:?}");
    plan.replace(vec![(name(1), None)]);
    assert_eq!(target(&plan), "10.1.0.9");
    assert_eq!(plan.owner(&frontend), Some(&name(2)));
}
