use std::collections::BTreeMap;
use std::net::IpAddr;

use model::address::Family;
use model::hashing::ClientHash;
use model::names::{NamespacedName, Port, Protocol};
use model::routing::{ListWeights, Traffic};
use model::service::{Addresses, Created};
use proptest::prelude::*;

use super::*;
use crate::mark::Mark;
use crate::nftables::claims::ContentionChange;
use crate::nftables::frontend_chains::FrontendChain;
use crate::nftables::sets::{Clients, ListOfFrontend};
use crate::nftables::slots::{HASH_RANGE, MAX_SLOTS, slot_range};

/// A table made of a map. It rejects what the kernel rejects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FakeTable(pub BTreeMap<(Set, crate::nftables::sets::ElementKey), Option<Data>>);

impl FakeTable {
    pub fn commit(&mut self, steps: &Steps) {
        if steps.table.is_some() {
            self.0.clear();
        }
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

    pub fn holding(elements: &[Element]) -> Self {
        let mut table = Self::default();
        table.commit(&Steps { add: elements.to_vec(), ..Steps::default() });
        table
    }

    pub fn elements(&self) -> Vec<Element> {
        self.0.iter().map(|((set, key), data)| Element { set: *set, key: *key, data: *data }).collect()
    }

    /// What a read-back finds that cannot read these sets.
    pub fn actual(&self, unreadable: &[Set]) -> ActualState {
        let mut elements = self.elements();
        elements.retain(|element| !unreadable.contains(&element.set));
        let ids = elements.iter().filter(|element| matches!(element.set, Set::Lists(..))).copied().collect();
        let timeouts = timeouts(&self.elements());
        let content = TableContent {
            timeouts,
            ids,
            elements,
            unreadable: unreadable.to_vec(),
            ..TableContent::default()
        };
        ActualState { generation: None, table: ActualTable::Ours(content) }
    }
}

pub fn settings() -> ProgramSettings {
    ProgramSettings {
        family: Family::V4,
        balancer: Balancer::Slots,
        mark: Mark::from_bit(14).unwrap(),
        masquerade_all: false,
        from_pod: None,
        node_ports_everywhere: false,
        can_hash: true,
    }
}

fn desired() -> DesiredTable {
    DesiredTable::new(settings())
}

fn port(number: u16) -> Port {
    Port::from_api(number.into()).unwrap()
}

pub fn name(number: u8) -> ServicePortName {
    ServicePortName {
        service: NamespacedName::new("ns", &format!("s{number}")),
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

/// The creation time of a Service, in this second.
fn second(number: u8) -> Created {
    Created::from_api(&format!("2026-11-16T10:00:{number:02}Z")).unwrap()
}

fn endpoints(numbers: &BTreeSet<u8>, local: bool) -> Arc<[Endpoint]> {
    numbers.iter().map(|n| Endpoint { ip: [10, 1, 0, *n].into(), local, port: port(8080) }).collect()
}

prop_compose! {
    /// Few addresses and ports, so that Services claim the same frontends.
    fn routing()(
        cluster_ip in 1u8..4,
        created in proptest::option::of(0u8..2),
        external in proptest::collection::vec((96u8..98, 1u8..4), 0..3),
        balancer in proptest::collection::vec(1u8..4, 0..2),
        node_port in proptest::option::of(30_000u16..30_003),
        cluster in proptest::collection::btree_set(1u8..30, 0..12),
        local in proptest::collection::btree_set(1u8..4, 0..3),
        hash in proptest::option::weighted(0.01, Just(ClientHash::Address)),
        weights in proptest::option::weighted(0.2, proptest::collection::vec(1u16..4, 12)),
        affinity in proptest::option::of(prop_oneof![Just(60u32), Just(10_800)]),
        internal_local in any::<bool>(),
        external_local in any::<bool>(),
        ranges in any::<bool>(),
        protocol in prop_oneof![3 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp)],
        health_check in proptest::option::of(30_100u16..30_102),
    ) -> Arc<Routing> {
        let policy = |is_local: bool| match (is_local, cluster.is_empty() && local.is_empty()) {
            (_, true) => Traffic::RejectNoEndpoints,
            (true, _) if local.is_empty() => Traffic::DropNoLocalEndpoints,
            (true, _) => Traffic::ToLocal,
            (false, _) if cluster.is_empty() => Traffic::RejectNoEndpoints,
            (false, _) => Traffic::ToCluster,
        };
        // An external IP may be the cluster IP of another.
        let external = external.iter().map(|(net, n)| IpAddr::from([10, *net, 0, *n]));
        let balancer = balancer.iter().map(|n| IpAddr::from([192, 0, 3, *n]));
        Arc::new(Routing {
            protocol,
            port: port(80),
            node_port: node_port.map(port),
            addresses: Arc::new(Addresses {
                cluster_ip: [10, 96, 0, cluster_ip].into(),
                external_ips: external.collect(),
                load_balancer_ips: balancer.collect(),
                source_ranges: if ranges { ["10.0.0.0/8", "10.1.0.0/16"].map(|r| r.parse().unwrap()).into() } else { [].into() },
            }),
            created: created.map_or(Created::UNKNOWN, second),
            affinity,
            hash,
            internal: policy(internal_local),
            external: policy(external_local),
            cluster: endpoints(&cluster, false),
            local: endpoints(&local, true),
            weights: weights.map(|it| ListWeights {
                cluster: it.iter().copied().take(cluster.len()).collect(),
                local: it.iter().copied().take(local.len()).collect(),
            }.into()),
            preserves_client: external_local,
            ranges_admit_node: ranges,
            is_externally_accessible: true,
            health_check_node_port: health_check.map(port),
            serving: Arc::default(),
        })
    }
}

fn routings(plan: &DesiredTable) -> Vec<RoutingChange> {
    plan.units.iter().map(|(name, unit)| (name.clone(), Some(unit.routing.clone()))).collect()
}

fn ids(plan: &DesiredTable) -> BTreeMap<ServicePortName, u32> {
    plan.units.iter().map(|(name, unit)| (name.clone(), unit.id())).collect()
}

/// The frontend and the list of an element of [`Set::Lists`].
fn list_of(element: &Element) -> Option<(FrontendKey, ListOfFrontend)> {
    let (Set::Lists(by, _), Some(Data::List(list))) = (element.set, element.data) else { return None };
    let (frontend, _) = FrontendKey::from_key(element.key.as_bytes(), by, Family::V4)?;
    Some((frontend, list))
}

/// The frontend and the id of the service port of an element of [`Set::Lists`].
fn id_of(element: &Element) -> Option<(FrontendKey, u32)> {
    list_of(element).map(|(frontend, list)| (frontend, list.service_port()))
}

pub fn changes() -> impl Strategy<Value = Vec<RoutingChange>> {
    let change = (0u8..5, proptest::option::weighted(0.7, routing()));
    proptest::collection::btree_map(0u8..5, change, 1..4)
        .prop_map(|changes| changes.into_values().map(|(n, routing)| (name(n), routing)).collect())
        .prop_map(|mut changes: Vec<RoutingChange>| {
            changes.sort_by(|a, b| a.0.cmp(&b.0));
            changes.dedup_by(|a, b| a.0 == b.0);
            changes
        })
}

proptest! {
    #[test]
    fn steps_lead_from_each_state_to_the_next(syncs in proptest::collection::vec(changes(), 1..8)) {
        let mut plan = desired();
        let mut table = FakeTable::default();
        for sync in syncs {
            table.commit(&plan.replace(sync).0);
            prop_assert_eq!(&table, &FakeTable::holding(&plan.elements()));
        }
    }

    #[test]
    fn a_restart_with_nothing_changed_has_nothing_to_do(syncs in proptest::collection::vec(changes(), 1..8)) {
        let mut plan = desired();
        let mut table = FakeTable::default();
        for sync in syncs {
            table.commit(&plan.replace(sync).0);
        }
        let mut successor = desired();
        successor.accept(routings(&plan));
        let steps = successor.steps_from(&table.actual(&[]));
        prop_assert!(steps.is_empty(), "{:?}", steps);
        prop_assert_eq!(table, FakeTable::holding(&successor.elements()));
    }

    #[test]
    fn a_restart_leads_to_the_desired_state_from_any_state_that_could_be_read_in_part(
        before in changes(),
        missed in changes(),
        unreadable in proptest::sample::subsequence(Set::fixed(Balancer::Slots), 0..6),
    ) {
        let mut plan = desired();
        let mut table = FakeTable::default();
        table.commit(&plan.replace(before).0);
        plan.accept(missed);

        let mut successor = desired();
        successor.accept(routings(&plan));
        table.commit(&successor.steps_from(&table.actual(&unreadable)));
        prop_assert_eq!(table, FakeTable::holding(&successor.elements()));
    }

    #[test]
    fn the_order_of_changes_does_not_affect_the_elements(change in changes()) {
        let (mut forwards, mut backwards) = (desired(), desired());
        let contested = forwards.accept(change.clone());
        prop_assert_eq!(contested, backwards.accept(change.into_iter().rev().collect()));
        // Ids are assigned in the order of changes.
        backwards.adopt_ids(&forwards.elements());
        prop_assert_eq!(forwards.elements(), backwards.elements());
    }

    #[test]
    fn a_service_port_keeps_its_id(
        syncs in proptest::collection::vec(changes(), 1..8),
        last_id: u32,
    ) {
        let mut plan = DesiredTable { last_id: last_id & !1, ..desired() };
        let mut given = BTreeSet::new();
        for sync in syncs {
            let before = ids(&plan);
            plan.replace(sync);
            let after = ids(&plan);
            for (name, unit) in plan.units.iter() {
                prop_assert_eq!(unit.id() % 2, 0);
                let is_new = before.get(name) != after.get(name);
                prop_assert!(!is_new || after.get(name).is_none_or(|id| given.insert(*id)), "never twice");
                prop_assert!(!is_new || !before.contains_key(name) || !after.contains_key(name), "never changed");
            }
        }
    }

    #[test]
    fn a_successor_adopts_the_ids_in_the_kernel_and_assigns_none_of_them_again(
        before in changes(),
        missed in changes(),
        later in changes(),
    ) {
        let mut plan = desired();
        plan.accept(before);
        let found = plan.elements();
        plan.accept(missed);
        let mut successor = desired();
        successor.accept(routings(&plan));
        successor.adopt_ids(&found);
        let actual: BTreeMap<_, _> = found.iter().filter_map(id_of).collect();
        let now: BTreeMap<_, _> = successor.elements().iter().filter_map(id_of).collect();
        let by_id: BTreeMap<u32, BTreeSet<&ServicePortName>> = now.iter().fold(BTreeMap::new(), |mut all, (at, id)| {
            all.entry(*id).or_default().extend(successor.owner(at));
            all
        });
        prop_assert!(by_id.values().all(|owners| owners.len() == 1), "{:?}", by_id);
        for (name, id) in ids(&successor) {
            let kernel: BTreeSet<u32> =
                actual.iter().filter(|(at, _)| successor.owner(at) == Some(&name)).map(|(_, id)| *id).collect();
            let highest = actual.values().max().copied().unwrap_or_default();
            // If frontends moved between service ports, it may get the id of either, or a new one.
            prop_assert!(kernel.contains(&id) || id > highest);
            let alone = kernel.iter().next().filter(|_| kernel.len() == 1);
            let is_its = |id: &&u32| actual.iter().all(|(at, other)| other != *id || successor.owner(at).is_none_or(|it| *it == name));
            if let Some(kept) = alone.filter(is_its) {
                prop_assert_eq!(id, *kept);
            }
        }
        let before = ids(&successor);
        successor.replace(later);
        for (name, id) in ids(&successor) {
            prop_assert!(before.get(&name) == Some(&id) || actual.values().all(|actual| *actual < id));
        }
    }

    #[test]
    fn the_lists_in_use_have_slots_and_no_others_do(change in changes()) {
        let mut plan = desired();
        plan.accept(change);
        let elements = plan.elements();
        let lists = |set: Set| {
            let its = elements.iter().filter(move |element| element.set == set);
            let mut lists: BTreeMap<u32, Vec<_>> = BTreeMap::new();
            its.filter_map(|element| Some((element.list()?, element.endpoint()?)))
                .for_each(|(list, endpoint)| lists.entry(list).or_default().push(endpoint));
            lists.values_mut().for_each(|endpoints| endpoints.sort_unstable());
            lists
        };
        let slots = lists(Set::Endpoints);
        let used: BTreeMap<u32, Option<FrontendChain>> = elements
            .iter()
            .filter_map(list_of)
            .filter(|(_, list)| list.draw.is_some())
            .map(|(_, ListOfFrontend { list, draw, .. })| (list, draw))
            .collect();
        prop_assert!(used.keys().eq(slots.keys()), "{:?} {:?}", used, slots);
        for (list, draw) in &used {
            let range = match *draw {
                Some(FrontendChain::Draw(_, _, range)) => range,
                Some(FrontendChain::Hash(..)) => HASH_RANGE,
                _ => panic!("{draw:?}"),
            };
            let its = elements.iter().filter_map(Element::slot).filter(|(of, ..)| of == list);
            if range == HASH_RANGE {
                prop_assert_eq!(range.count as usize, slots[list].len());
            } else {
                prop_assert_eq!(Some(range), slot_range(slots[list].len()));
            }
            prop_assert_eq!(
                its.map(|(_, slot, _)| slot).collect::<BTreeSet<_>>(),
                (range.first..).take(slots[list].len()).collect()
            );
        }
        let sticky: BTreeSet<u32> = plan
            .units
            .iter()
            .filter(|(_, unit)| unit.routing.affinity.is_some())
            .flat_map(|(_, unit)| EndpointList::BOTH.map(|list| list.of(unit.id())))
            .collect();
        let mut may: BTreeMap<_, _> = slots.into_iter().filter(|(list, _)| sticky.contains(list)).collect();
        may.values_mut().for_each(Vec::dedup);
        prop_assert_eq!(lists(Set::StickyEndpoints), may, "clients stick to the endpoints in slots");
    }

    #[test]
    fn the_same_routing_again_needs_no_steps(change in changes()) {
        let mut plan = desired();
        plan.replace(change.clone());
        let (again, _) = plan.replace(change);
        prop_assert!(again.is_empty(), "{:?}", again);
    }

    #[test]
    fn nothing_is_left_after_all_service_ports_are_gone(syncs in proptest::collection::vec(changes(), 1..8)) {
        let mut plan = desired();
        let mut table = FakeTable::default();
        for sync in syncs {
            table.commit(&plan.replace(sync).0);
        }
        table.commit(&plan.replace((0..5).map(|n| (name(n), None)).collect()).0);
        prop_assert_eq!(table, FakeTable::default());
        prop_assert!(plan.units.is_empty() && plan.claims.is_empty() && plan.shared.is_empty());
    }
}

/// A service port at this cluster IP, with these external IPs and one endpoint.
pub fn plain(cluster_ip: [u8; 4], external: &[[u8; 4]], created: Created, endpoint: u8) -> Arc<Routing> {
    let external: Vec<String> = external.iter().map(|ip| IpAddr::from(*ip).to_string()).collect();
    let external =
        if external.is_empty() { String::new() } else { format!("external-ips={}", external.join(",")) };
    let lines = format!(
        "service ns/s {} p:80 {external}\nslice ns/s-1 of s p:8080 | 10.1.0.{endpoint}",
        IpAddr::from(cluster_ip)
    );
    let (_, mut routing) = testkit::routing(Family::V4, &lines);
    Arc::get_mut(&mut routing).unwrap().created = created;
    routing
}

#[test]
fn a_service_port_holds_its_slots_once_whatever_number_of_frontends_it_has() {
    let (_, routing) = testkit::routing(
        Family::V4,
        "service ns/s 10.96.0.1 NodePort p:80@30080 external-ips=198.51.100.1,198.51.100.2,198.51.100.3
         slice ns/s-1 of s p:8080 | 10.1.0.1 | 10.1.0.2 | 10.1.0.3 | 10.1.0.4 | 10.1.0.5",
    );
    let mut plan = desired();
    plan.replace(vec![(name(1), Some(routing))]);
    let elements = plan.elements();
    let count = |set: Set| elements.iter().filter(|element| element.set == set).count();
    use LookupBy::{Address, NodePort};
    assert_eq!(count(Set::Endpoints), 5);
    assert_eq!((count(Set::Frontends(Address)), count(Set::Frontends(NodePort))), (4, 1));
    let lists = [Address, NodePort].map(|by| count(Set::Lists(by, Clients::All)));
    assert_eq!(lists, [4, 1]);
    assert_eq!(elements.len(), 5 + 5 + 5 + count(Set::ClusterIps));
}

fn at(ip: [u8; 4]) -> FrontendKey {
    FrontendKey { ip: Some(ip.into()), protocol: Protocol::Tcp, port: port(80) }
}

fn contention(
    change: ContentionChange,
    winner: u8,
    others: &[u8],
    frontends: Vec<FrontendKey>,
) -> Contention {
    let others = others.iter().map(|number| name(*number).service).collect();
    Contention { change, winner: Some(name(winner).service), others, frontends }
}

#[test]
fn a_frontend_that_two_claim_goes_to_the_first_by_name_and_is_handed_over() {
    const IP: [u8; 4] = [10, 96, 0, 1];
    let routing = |endpoint: u8| plain(IP, &[], Created::UNKNOWN, endpoint);
    let target =
        |plan: &DesiredTable| plan.elements().iter().find_map(Element::endpoint).unwrap().0.to_string();
    let mut plan = desired();
    plan.replace(vec![(name(2), Some(routing(2)))]);
    assert_eq!(target(&plan), "10.1.0.2");
    let (_, contentions) = plan.replace(vec![(name(1), Some(routing(1)))]);
    assert_eq!(contentions, [contention(ContentionChange::Began, 1, &[2], vec![at(IP)])]);
    assert_eq!(target(&plan), "10.1.0.1");
    let unchanged = plan.replace(vec![(name(2), Some(routing(9)))]);
    assert_eq!(unchanged, (Steps::default(), Vec::new()), "not its turn, and no news");
    let (_, contentions) = plan.replace(vec![(name(1), None)]);
    assert_eq!(contentions, [contention(ContentionChange::Ended, 2, &[1], vec![at(IP)])]);
    assert_eq!(target(&plan), "10.1.0.9");
    assert_eq!(plan.owner(&at(IP)), Some(&name(2)));
}

#[test]
fn a_cluster_ip_comes_first_then_the_service_created_first_then_the_first_by_name() {
    const IP: [u8; 4] = [10, 96, 0, 9];
    let (early, late, unknown) = (second(1), second(2), Created::UNKNOWN);
    let external = |number: u8, created| Some(plain([10, 96, 0, number], &[IP], created, number));
    let cluster = |created| Some(plain(IP, &[], created, 9));
    // From the one that gets it to the last.
    let claims = [
        (name(9), cluster(late)),
        (name(5), external(5, early)),
        (name(6), external(6, early)),
        (name(1), external(1, late)),
        (name(0), external(0, unknown)),
        (name(2), external(2, unknown)),
    ];
    for start in 0..claims.len() {
        let mut plan = desired();
        let (first, second) = claims.split_at(start);
        plan.accept([second, first].concat());
        for (winner, _) in &claims {
            assert_eq!(plan.owner(&at(IP)), Some(winner), "from {start} on");
            plan.replace(vec![(winner.clone(), None)]);
        }
    }
}

#[test]
fn a_claim_ranks_anew_when_its_routing_changes() {
    const IP: [u8; 4] = [10, 96, 0, 9];
    let external = |number: u8, created| Some(plain([10, 96, 0, number], &[IP], created, number));
    let mut plan = desired();
    plan.replace(vec![(name(1), external(1, second(1))), (name(2), external(2, second(2)))]);
    let (_, contentions) = plan.replace(vec![(name(2), Some(plain(IP, &[], second(2), 2)))]);
    assert_eq!(contentions, [contention(ContentionChange::WinnerChanged, 2, &[1], vec![at(IP)])]);
    let (_, contentions) = plan.replace(vec![(name(2), external(2, second(2)))]);
    assert_eq!(contentions, [contention(ContentionChange::WinnerChanged, 1, &[2], vec![at(IP)])]);
    // Deleted and created again between two syncs.
    let (_, contentions) = plan.replace(vec![(name(1), external(1, second(3)))]);
    assert_eq!(contentions, [contention(ContentionChange::WinnerChanged, 2, &[1], vec![at(IP)])]);
}

#[test]
fn what_happens_to_many_frontends_of_the_same_services_is_one_contention() {
    let ips: Vec<[u8; 4]> = (1..=20).map(|n| [203, 0, 113, n]).collect();
    let all: Vec<FrontendKey> = ips.iter().map(|ip| at(*ip)).collect();
    let claimant =
        |number: u8, ips: &[[u8; 4]]| Some(plain([10, 96, 0, number], ips, second(number), number));
    let mut plan = desired();
    assert_eq!(plan.accept(vec![(name(1), claimant(1, &ips))]), []);
    let began = plan.accept(vec![(name(2), claimant(2, &ips))]);
    assert_eq!(began, [contention(ContentionChange::Began, 1, &[2], all.clone())]);
    let third = plan.accept(vec![(name(3), claimant(3, &ips[..2]))]);
    assert_eq!(third, [contention(ContentionChange::Began, 1, &[3], all[..2].to_vec())]);
    let ended = plan.accept(vec![(name(1), None)]);
    assert_eq!(
        ended,
        [
            contention(ContentionChange::WinnerChanged, 2, &[3], all[..2].to_vec()),
            contention(ContentionChange::Ended, 2, &[1], all[2..].to_vec()),
        ]
    );
    let ended = plan.accept(vec![(name(2), None), (name(3), None)]);
    let without_winner =
        Contention { winner: None, ..contention(ContentionChange::Ended, 0, &[2, 3], all[..2].to_vec()) };
    assert_eq!(ended, [without_winner]);
}

#[test]
fn a_change_costs_the_same_however_many_claim_its_frontends() {
    const IP: [u8; 4] = [203, 0, 113, 1];
    let claimant =
        |number: u8, endpoint: u8| Some(plain([10, 96, 0, number], &[IP], second(number), endpoint));
    let mut plan = desired();
    plan.accept((1..50).map(|number| (name(number), claimant(number, number))).collect());
    for number in [1, 20, 49] {
        let changes = vec![(name(number), claimant(number, 99))];
        let concerned = plan.concerned(&changes, &[at(IP)].into());
        assert!(concerned.contains(&name(number)) && concerned.len() <= 2, "{concerned:?}");
        let mut contended = Contended::new();
        plan.replace_routing(name(number), claimant(number, 99), None, &mut contended);
        assert!(contended.is_empty(), "no claim was added or withdrawn: {contended:?}");
    }
}

#[test]
fn endpoints_beyond_the_last_slot_are_counted() {
    const IP: [u8; 4] = [10, 96, 0, 1];
    let routing = |cluster: usize, local: usize| {
        let endpoint =
            |n: u32| Endpoint { ip: (0x0a01_0000 + n).to_be_bytes().into(), local: false, port: port(80) };
        let mut routing = plain(IP, &[], Created::UNKNOWN, 1);
        let fields = Arc::get_mut(&mut routing).unwrap();
        fields.cluster = (0..).map(endpoint).take(cluster).collect();
        fields.local = (0..).map(endpoint).take(local).collect();
        Some(routing)
    };
    let mut plan = desired();
    for (cluster, local, left_out) in [
        (MAX_SLOTS + 2, 1, 2),
        (MAX_SLOTS + 3, MAX_SLOTS + 3, 3),
        (1, MAX_SLOTS + 1, 1),
        (MAX_SLOTS, MAX_SLOTS, 0),
    ] {
        plan.replace(vec![(name(1), routing(cluster, local))]);
        assert_eq!(plan.left_out().get(&name(1)).copied().unwrap_or_default(), left_out);
        let used = plan.elements().iter().filter(|element| element.set == Set::Endpoints).count();
        assert_eq!(used, cluster.min(MAX_SLOTS));
    }
    assert!(plan.left_out().is_empty());
    plan.accept(vec![(name(1), routing(MAX_SLOTS + 1, 0)), (name(2), routing(1, 1))]);
    assert_eq!(plan.left_out(), &BTreeMap::from([(name(1), 1)]));
    plan.accept(vec![(name(1), None)]);
    assert!(plan.left_out().is_empty());
}
