use std::time::Duration;

use model::address::Family;
use model::cluster::Cluster;
use model::names::{Port, Protocol};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::ipvs::servers::{ActualReal, ActualVirtual, RealServer, VirtualServer};
use crate::nftables::desired::tests::{FakeTable, changes, name, settings};
use crate::nftables::sets::ElementKey;
use crate::nftables::steps::ActualTable;

/// A kernel made of maps. It rejects what the real one rejects.
#[derive(Clone, Debug, Default, PartialEq)]
struct FakeKernel {
    servers: ActualServers,
    table: FakeTable,
    node_port_ips: BTreeSet<IpAddr>,
}

impl FakeKernel {
    fn commit(&mut self, steps: &IpvsSteps) {
        self.apply(&steps.before);
        self.table.commit(&steps.table);
        if let Some(ips) = &steps.table.node_port_ips {
            self.node_port_ips.clone_from(ips);
        }
        self.apply(&steps.after);
    }

    fn apply(&mut self, steps: &[ServerStep]) {
        let ActualServers { virtual_servers, bound } = &mut self.servers;
        for step in steps {
            let accepted = match step.clone() {
                ServerStep::AddVirtual(at, server) => {
                    let new = ActualVirtual { server, real_servers: BTreeMap::new() };
                    virtual_servers.insert(at, new).is_none()
                }
                ServerStep::SetVirtual(at, server) => virtual_servers
                    .get_mut(&at)
                    .is_some_and(|it| std::mem::replace(&mut it.server, server) != it.server),
                ServerStep::DeleteVirtual(at) => virtual_servers.remove(&at).is_some(),
                ServerStep::AddReal(at, real, weight) => virtual_servers.get_mut(&at).is_some_and(|it| {
                    let new = ActualReal { weight, ..ActualReal::default() };
                    it.real_servers.insert(real, new).is_none()
                }),
                ServerStep::SetWeight(at, real, weight) => virtual_servers
                    .get_mut(&at)
                    .and_then(|it| it.real_servers.get_mut(&real))
                    .is_some_and(|it| std::mem::replace(&mut it.weight, weight) != weight),
                ServerStep::DeleteReal(at, real) => {
                    virtual_servers.get_mut(&at).is_some_and(|it| it.real_servers.remove(&real).is_some())
                }
                ServerStep::Bind(ip) => bound.insert(ip),
                ServerStep::Unbind(ip) => bound.remove(&ip),
            };
            assert!(accepted, "{step:?} of {steps:?}");
        }
    }

    fn actual(&self) -> ActualState {
        let mut actual = self.table.actual(&[]);
        if let ActualTable::Ours(content) = &mut actual.table {
            content.node_port_ips.clone_from(&self.node_port_ips);
        }
        actual
    }

    /// The virtual servers, without the real servers that only end their connections.
    fn serving(&self) -> BTreeMap<VirtualAddress, DesiredVirtual> {
        let virtual_servers = self.servers.virtual_servers.iter();
        let serving = virtual_servers.map(|(at, found)| {
            let real = found.real_servers.iter().filter(|(_, real)| real.weight > 0);
            let real_servers = real.map(|(real, found)| (*real, found.weight)).collect();
            (*at, DesiredVirtual { server: found.server.clone(), real_servers })
        });
        serving.collect()
    }

    fn is_as_desired(&self, plan: &IpvsPlan) -> Result<(), TestCaseError> {
        prop_assert_eq!(&self.table, &FakeTable::holding(&plan.desired().elements()));
        prop_assert_eq!(&self.serving(), &plan.servers().all());
        prop_assert_eq!(&self.servers.bound, &plan.desired().bound_ips().collect::<BTreeSet<_>>());
        let node_port_ips: BTreeSet<IpAddr> = plan.desired().node_port_ips().iter().copied().collect();
        prop_assert_eq!(&self.node_port_ips, &node_port_ips);
        Ok(())
    }

    /// Real servers with weight 0, which are those on the list of the plan.
    fn terminating(&self) -> BTreeSet<(VirtualAddress, RealServer)> {
        let virtual_servers = self.servers.virtual_servers.iter();
        let all = virtual_servers
            .flat_map(|(at, it)| it.real_servers.iter().map(move |(real, it)| (*at, *real, it)));
        all.filter(|(_, _, it)| it.weight == 0).map(|(at, real, _)| (at, real)).collect()
    }
}

fn plan() -> IpvsPlan {
    let settings_of_servers = ServerSettings::new("rr", vec!["203.0.113.0/24".parse().unwrap()]);
    IpvsPlan::new(settings(), settings_of_servers)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(text: &str, protocol: Protocol) -> VirtualAddress {
    let address: std::net::SocketAddr = text.parse().unwrap();
    VirtualAddress { ip: address.ip(), protocol, port: Port::from_api(address.port().into()).unwrap() }
}

fn tcp(text: &str) -> VirtualAddress {
    at(text, Protocol::Tcp)
}

fn real(text: &str) -> RealServer {
    let VirtualAddress { ip, port, .. } = tcp(text);
    RealServer { ip, port }
}

fn rr() -> VirtualServer {
    VirtualServer { scheduler: "rr".into(), flags: 0, timeout: 0 }
}

fn of(routings: Vec<RoutingChange>) -> Changes {
    Changes { routings, ..Changes::default() }
}

/// Addresses of the node, some of which Services have, too.
fn node_addresses() -> impl Strategy<Value = (Vec<IpAddr>, Vec<IpAddr>)> {
    const SOME: [&str; 5] = ["192.0.2.10", "198.51.100.10", "192.0.3.1", "10.97.0.1", "127.0.0.1"];
    btree_set(select(&SOME[..]), 0..5).prop_flat_map(|all| {
        let all: Vec<IpAddr> = all.into_iter().map(ip).collect();
        (Just(all.clone()), proptest::sample::subsequence(all.clone(), 0..=all.len()))
    })
}

/// How one sync ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncEnd {
    Commits,
    /// After the removals the kernel rejects the transaction.
    Fails,
    /// The last answer is lost.
    AnswerLost,
    /// A foreign writer deletes all virtual servers or addresses before, and is noticed.
    ServersDeleted,
    Unbound,
}

fn end() -> impl Strategy<Value = SyncEnd> {
    prop_oneof![
        5 => Just(SyncEnd::Commits),
        1 => Just(SyncEnd::Fails),
        1 => Just(SyncEnd::AnswerLost),
        1 => Just(SyncEnd::ServersDeleted),
        1 => Just(SyncEnd::Unbound),
    ]
}

fn steps(plan: &mut IpvsPlan, kernel: &FakeKernel, changes: Changes) -> IpvsSteps {
    plan.steps(changes).unwrap_or_else(|| plan.steps_from(&kernel.servers, kernel.actual()))
}

prop_compose! {
    /// A state that another program left. Some of its virtual servers are desired, some excluded.
    fn actual()(
        servers in btree_map(
            (select(&["10.96.0.1:80", "10.96.0.2:80", "192.0.3.1:80", "203.0.113.9:80", "9.9.9.9:9"][..]), select(&[Protocol::Tcp, Protocol::Udp][..])),
            (any::<bool>(), btree_map((1u8..30, 8080u16..8082), (0u32..3, 0u32..2), 0..6)),
            0..6,
        ),
        bound in btree_set(select(&["10.96.0.1", "192.0.3.1", "9.9.9.9"][..]), 0..3),
    ) -> ActualServers {
        let virtual_server = |(is_sticky, real): (bool, BTreeMap<(u8, u16), _>)| ActualVirtual {
            server: VirtualServer { flags: is_sticky.into(), timeout: if is_sticky { 60 } else { 0 }, ..rr() },
            real_servers: real.into_iter().map(|((n, port), (weight, active))| {
                let real = RealServer { ip: [10, 1, 0, n].into(), port: Port::from_api(port.into()).unwrap() };
                (real, ActualReal { weight, active, ..ActualReal::default() })
            }).collect(),
        };
        ActualServers {
            virtual_servers: servers.into_iter().map(|((text, protocol), it)| (at(text, protocol), virtual_server(it))).collect(),
            bound: bound.into_iter().map(ip).collect(),
        }
    }
}

proptest! {
    #[test]
    fn after_any_failures_a_sync_that_commits_leads_to_the_desired_state(
        history in vec((changes(), end(), proptest::option::weighted(0.3, node_addresses())), 1..8),
    ) {
        let mut plan = plan();
        let mut kernel = FakeKernel::default();
        let mut is_known = false;
        for (change, end, moved) in history {
            if let Some((all, node_port)) = moved {
                plan.set_node_addresses(&all, &node_port);
            }
            let before = kernel.clone();
            match end {
                SyncEnd::ServersDeleted => kernel.servers.virtual_servers.clear(),
                SyncEnd::Unbound => kernel.servers.bound.clear(),
                SyncEnd::Commits | SyncEnd::Fails | SyncEnd::AnswerLost => {}
            }
            let is_noticed = matches!(end, SyncEnd::ServersDeleted | SyncEnd::Unbound);
            if is_noticed {
                plan.suspect_drift();
            }
            let steps = steps(&mut plan, &kernel, of(change));
            prop_assert_eq!(steps.table.is_full, !is_known || is_noticed);
            if is_known {
                // What only ends its connections is not desired, so that nothing is missing without it.
                let is_damaged = kernel.serving() != before.serving() || kernel.servers.bound != before.servers.bound;
                prop_assert_eq!(steps.table.has_drifted, is_damaged);
            }
            if end == SyncEnd::Fails {
                kernel.apply(&steps.before);
            } else {
                kernel.commit(&steps);
                kernel.is_as_desired(&plan)?;
            }
            is_known = !matches!(end, SyncEnd::Fails | SyncEnd::AnswerLost);
            if is_known {
                plan.settle();
                let listed: BTreeSet<_> = plan.termination.addresses().flat_map(|at| plan.termination.of(at).map(|real| (*at, real))).collect();
                prop_assert_eq!(listed, kernel.terminating());
            }
        }
        kernel.commit(&steps(&mut plan, &kernel, Changes::default()));
        kernel.is_as_desired(&plan)?;
        plan.settle();
        let again = plan.steps(Changes::default()).unwrap();
        prop_assert!(again.is_empty(), "{:?}", again);
    }

    #[test]
    fn a_restart_leads_from_any_state_to_the_desired_one(
        servers in actual(),
        change in changes(),
        (all, node_port) in node_addresses(),
    ) {
        let excluded = servers.virtual_servers.get(&tcp("203.0.113.9:80")).cloned();
        let mut plan = plan();
        plan.set_node_addresses(&all, &node_port);
        let mut kernel = FakeKernel { servers, ..FakeKernel::default() };
        kernel.commit(&steps(&mut plan, &kernel, of(change)));
        plan.settle();
        prop_assert_eq!(kernel.servers.virtual_servers.get(&tcp("203.0.113.9:80")), excluded.as_ref());
        kernel.servers.virtual_servers.retain(|at, _| at.ip != tcp("203.0.113.9:80").ip);
        kernel.is_as_desired(&plan)?;
        // A successor has nothing to do.
        let mut successor = self::plan();
        successor.set_node_addresses(&all, &node_port);
        successor.steps(of(routings(&plan)));
        let again = successor.steps_from(&kernel.servers, kernel.actual());
        prop_assert!(again.is_empty(), "{:?}", again);
    }

    #[test]
    fn no_virtual_server_is_without_real_servers_while_it_has_old_and_new_ones(
        before in changes(),
        after in changes(),
    ) {
        let mut plan = plan();
        let mut kernel = FakeKernel::default();
        kernel.commit(&steps(&mut plan, &kernel, of(before)));
        plan.settle();
        let had = kernel.serving();
        let steps = steps(&mut plan, &kernel, of(after));
        let has = plan.servers().all();
        for number in 0..=steps.after.len() {
            let mut during = kernel.clone();
            during.commit(&IpvsSteps {
                before: steps.before.clone(),
                table: Steps::default(),
                after: steps.after[..number].to_vec(),
            });
            for (at, now) in during.serving() {
                let serves = |it: &BTreeMap<_, DesiredVirtual>| it.get(&at).is_some_and(|it| !it.real_servers.is_empty());
                let goes_on = serves(&had) && serves(&has);
                prop_assert!(!goes_on || !now.real_servers.is_empty(), "{:?}", at);
            }
        }
    }
}

fn routings(plan: &IpvsPlan) -> Vec<RoutingChange> {
    (0..5).filter_map(|n| Some((name(n), Some(plan.desired().unit(&name(n))?.routing.clone())))).collect()
}

/// A plan that syncs with a kernel.
struct Proxy {
    plan: IpvsPlan,
    kernel: FakeKernel,
    cluster: Cluster,
}

impl Proxy {
    fn new(objects: &str) -> Self {
        let cluster = Cluster::new(testkit::node(Family::V4));
        let mut proxy = Self { plan: plan(), kernel: FakeKernel::default(), cluster };
        proxy.plan.set_node_addresses(&[ip("192.0.2.10")], &[ip("192.0.2.10")]);
        proxy.sync(objects);
        proxy
    }

    fn sync(&mut self, objects: &str) -> IpvsSteps {
        for event in testkit::objects::events(objects) {
            self.cluster.apply(&event);
        }
        let steps = steps(&mut self.plan, &self.kernel, self.cluster.take_changes());
        self.kernel.commit(&steps);
        self.plan.settle();
        steps
    }

    /// What the caller of the plan does when the connections of terminating real servers have to be read.
    fn terminate(&mut self, now: Instant) -> Vec<ServerStep> {
        let due = self.plan.due(now);
        let found = self.kernel.servers.virtual_servers.iter().filter(|(at, _)| due.contains(at));
        let found = found.map(|(at, it)| (*at, it.real_servers.clone())).collect();
        let steps = self.plan.settle_termination(now, &found);
        self.kernel.apply(&steps);
        steps
    }

    fn connections(&mut self, at: VirtualAddress, to: RealServer, inactive: u32) {
        let found = self.kernel.servers.virtual_servers.get_mut(&at);
        found.unwrap().real_servers.get_mut(&to).unwrap().inactive = inactive;
    }
}

const WEB: &str = "service ns/web 10.96.0.10 p:80 external-ips=203.0.113.5
    slice ns/web-1 of web p:8080 | 10.1.0.1 local | 10.1.0.2";

#[test]
fn rules_come_before_what_they_apply_to_and_go_after_it() {
    let mut proxy = Proxy::new("");
    let steps = proxy.sync(WEB);
    assert_eq!(steps.before, []);
    let [cluster, external] = ["10.96.0.10:80", "203.0.113.5:80"].map(tcp);
    let [one, two] = ["10.1.0.1:8080", "10.1.0.2:8080"].map(real);
    let added = [
        ServerStep::AddVirtual(cluster, rr()),
        ServerStep::AddVirtual(external, rr()),
        ServerStep::AddReal(cluster, one, 1),
        ServerStep::AddReal(cluster, two, 1),
        ServerStep::AddReal(external, one, 1),
        ServerStep::AddReal(external, two, 1),
        ServerStep::Bind(cluster.ip),
        ServerStep::Bind(external.ip),
    ];
    assert_eq!(steps.after, added);
    let steps = proxy.sync("delete service ns/web");
    let removed = [
        ServerStep::Unbind(cluster.ip),
        ServerStep::Unbind(external.ip),
        ServerStep::DeleteVirtual(cluster),
        ServerStep::DeleteVirtual(external),
    ];
    assert_eq!((&steps.before[..], &steps.after[..]), (&removed[..], &[][..]));
}

/// Upstream's TestMultiPortServiceBindAddr.
#[test]
fn an_address_stays_bound_until_its_last_port_is_gone() {
    let mut proxy = Proxy::new("service ns/web 10.96.0.10 a:80 b:81");
    assert_eq!(proxy.kernel.servers.bound, [ip("10.96.0.10")].into());
    let steps = proxy.sync("service ns/web 10.96.0.10 b:81");
    assert_eq!(steps.before, [ServerStep::DeleteVirtual(tcp("10.96.0.10:80"))]);
    let steps = proxy.sync("delete service ns/web");
    assert_eq!(steps.before[0], ServerStep::Unbind(ip("10.96.0.10")));
}

#[test]
fn an_external_ip_that_is_the_nodes_own_is_served_but_not_bound() {
    let mut proxy = Proxy::new("service ns/web 10.96.0.10 p:80 external-ips=198.51.100.10");
    let external = ip("198.51.100.10");
    assert!(proxy.kernel.servers.bound.contains(&external));
    let both = [ip("192.0.2.10"), external];
    assert!(proxy.plan.set_node_addresses(&both, &[ip("192.0.2.10")]));
    assert!(!proxy.plan.set_node_addresses(&both, &[ip("192.0.2.10")]), "no news");
    let steps = proxy.sync("");
    assert_eq!((&steps.before[..], &steps.after[..]), (&[ServerStep::Unbind(external)][..], &[][..]));
    let element = Element::new(Set::BoundIps, ElementKey::EMPTY.address(external));
    assert_eq!((&steps.table.delete[..], &steps.table.add[..]), (&[element][..], &[][..]));
    assert!(proxy.plan.set_node_addresses(&[ip("192.0.2.10")], &[ip("192.0.2.10")]));
    assert_eq!(proxy.sync("").after, [ServerStep::Bind(external)]);
}

#[test]
fn a_node_port_has_a_virtual_server_at_each_address_and_binds_none() {
    let mut proxy = Proxy::new(
        "service ns/web 10.96.0.10 p:80@30080 NodePort
        service ns/other 10.96.0.11 p:30080 external-ips=198.51.100.10
        slice ns/web-1 of web p:8080 | 10.1.0.1",
    );
    let node_ips = ["192.0.2.10", "198.51.100.10", "127.0.0.1"].map(ip);
    proxy.plan.set_node_addresses(&node_ips, &node_ips);
    let steps = proxy.sync("");
    // The external IP of the other Service precedes the node port at that address.
    assert_eq!((&steps.before[..], &steps.after[..]), (&[ServerStep::Unbind(node_ips[1])][..], &[][..]));
    let steps = proxy.sync("delete service ns/other");
    let (at, to) = (tcp("198.51.100.10:30080"), real("10.1.0.1:8080"));
    assert_eq!(steps.after, [ServerStep::AddReal(at, to, 1)]);
    let node_port = |at: &&VirtualAddress| at.port == tcp("0.0.0.0:30080").port;
    let found = || proxy.kernel.servers.virtual_servers.keys().filter(node_port).map(|at| at.ip);
    assert_eq!(found().collect::<Vec<_>>(), node_ips[..2]);
    proxy.plan.set_node_addresses(&node_ips, &[]);
    let steps = proxy.sync("");
    let gone = node_ips[..2].iter().map(|ip| ServerStep::DeleteVirtual(VirtualAddress { ip: *ip, ..at }));
    assert_eq!(steps.before, gone.collect::<Vec<_>>());
}

#[test]
fn a_node_port_that_appears_with_a_new_address_is_served_there() {
    let mut proxy = Proxy::new("service ns/web 10.96.0.10 p:80");
    let ips = ["192.0.2.10", "198.51.100.10"].map(ip);
    proxy.plan.set_node_addresses(&ips, &ips[1..]);
    let steps = proxy.sync("service ns/web 10.96.0.10 p:80@30080 NodePort");
    assert_eq!(steps.after, [ServerStep::AddVirtual(tcp("198.51.100.10:30080"), rr())]);
}

#[test]
fn session_affinity_is_persistence_and_its_change_keeps_real_servers() {
    let mut proxy = Proxy::new(WEB);
    let steps = proxy.sync("service ns/web 10.96.0.10 p:80 affinity=61");
    let sticky = VirtualServer { flags: 1, timeout: 61, ..rr() };
    assert_eq!(steps.after, [ServerStep::SetVirtual(tcp("10.96.0.10:80"), sticky)]);
    assert_eq!(steps.table.add, [], "the table knows nothing of it");
}

#[test]
fn the_scheduler_mh_hashes_ports() {
    let settings = ServerSettings::new("mh", Vec::new());
    let (name, routing) = testkit::routing(Family::V4, "service ns/web 10.96.0.10 p:80");
    let mut plan = IpvsPlan::new(super::tests::settings(), settings);
    plan.steps(of(vec![(name, Some(routing))]));
    let all = plan.servers().all();
    assert_eq!(
        all[&tcp("10.96.0.10:80")].server,
        VirtualServer { scheduler: "mh".into(), flags: 0x10, timeout: 0 }
    );
}

/// A Service with three endpoints.
fn weighted(weights: &str) -> String {
    format!(
        "service ns/web 10.96.0.10 p:80\nslice ns/web-1 of web p:80 {weights} | 10.1.0.1 | 10.1.0.2 | 10.1.0.3"
    )
}

#[test]
fn a_change_of_one_weight_is_one_step() {
    let mut proxy = Proxy::new(&weighted("weights=7"));
    for (weights, weight) in [("7,10.1.0.2=5", 5), ("7,10.1.0.2=700", 700), ("7", 7)] {
        let steps = proxy.sync(&weighted(&format!("weights={weights}")));
        let at = tcp("10.96.0.10:80");
        assert_eq!(steps.after, [ServerStep::SetWeight(at, real("10.1.0.2:80"), weight)], "{weights}");
        assert_eq!(steps.before, []);
    }
}

#[test]
fn a_service_that_gets_its_first_weight_gets_another_scheduler() {
    let mut proxy = Proxy::new(&weighted(""));
    let at = tcp("10.96.0.10:80");
    let set = |weights: [u32; 3]| {
        let reals = ["10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80"];
        reals.into_iter().zip(weights).map(move |(to, weight)| ServerStep::SetWeight(at, real(to), weight))
    };
    let steps = proxy.sync(&weighted("weights=10.1.0.2=50"));
    let wrr = ServerStep::SetVirtual(at, VirtualServer { scheduler: "wrr".into(), ..rr() });
    assert_eq!(steps.after, [wrr].into_iter().chain(set([100, 50, 100])).collect::<Vec<_>>());
    let steps = proxy.sync(&weighted(""));
    let back = ServerStep::SetVirtual(at, rr());
    assert_eq!(steps.after, [back].into_iter().chain(set([1, 1, 1])).collect::<Vec<_>>());
}

#[test]
fn a_tcp_real_server_without_connections_goes_at_once_and_one_with_some_in_a_later_minute() {
    let mut proxy = Proxy::new(WEB);
    let [cluster, external] = ["10.96.0.10:80", "203.0.113.5:80"].map(tcp);
    let gone = real("10.1.0.2:8080");
    proxy.connections(cluster, gone, 1);
    let steps = proxy.sync("slice ns/web-1 of web p:8080 | 10.1.0.1 local");
    let quiet = [cluster, external].map(|at| ServerStep::SetWeight(at, gone, 0));
    assert_eq!(steps.after, quiet);
    let now = Instant::now();
    assert_eq!(proxy.plan.next_check(now), Some(now));
    assert_eq!(proxy.terminate(now), [ServerStep::DeleteReal(external, gone)]);
    let minute = Duration::from_secs(60);
    assert_eq!(proxy.plan.next_check(now), Some(now + minute));
    assert_eq!(proxy.terminate(now + minute / 2), []);
    assert_eq!(proxy.terminate(now + minute), [], "its connection goes on");
    proxy.connections(cluster, gone, 0);
    assert_eq!(proxy.terminate(now + 2 * minute), [ServerStep::DeleteReal(cluster, gone)]);
    assert_eq!(proxy.plan.next_check(now), None);
}

#[test]
fn a_real_server_that_comes_back_keeps_its_connections() {
    let mut proxy = Proxy::new(WEB);
    let at = tcp("10.96.0.10:80");
    proxy.sync("slice ns/web-1 of web p:8080 | 10.1.0.1 local");
    let steps = proxy.sync("slice ns/web-1 of web p:8080 | 10.1.0.1 local | 10.1.0.2");
    assert_eq!(steps.after[0], ServerStep::SetWeight(at, real("10.1.0.2:8080"), 1));
    assert_eq!(proxy.plan.due(Instant::now()), []);
}

#[test]
fn udp_and_sctp_real_servers_are_deleted_at_once() {
    for protocol in ["UDP", "SCTP"] {
        let slice = |endpoints: &str| format!("slice ns/dns-1 of dns p:8053/{protocol} {endpoints}");
        let mut proxy = Proxy::new(&format!(
            "service ns/dns 10.96.0.10 p:53/{protocol}\n{}",
            slice("| 10.1.0.1 | 10.1.0.2")
        ));
        let at = at("10.96.0.10:53", Protocol::from_api(Some(protocol)).unwrap());
        let steps = proxy.sync(&slice("| 10.1.0.3"));
        let [one, two, three] = ["10.1.0.1:8053", "10.1.0.2:8053", "10.1.0.3:8053"].map(real);
        assert_eq!(
            steps.after,
            [
                ServerStep::AddReal(at, three, 1),
                ServerStep::DeleteReal(at, one),
                ServerStep::DeleteReal(at, two),
            ]
        );
        assert_eq!(proxy.plan.due(Instant::now()), []);
    }
}

#[test]
fn nothing_is_checked_while_the_state_of_the_kernel_is_unknown() {
    let mut proxy = Proxy::new(WEB);
    proxy.sync("slice ns/web-1 of web p:8080 | 10.1.0.1 local");
    let now = Instant::now();
    assert!(!proxy.plan.due(now).is_empty());
    proxy.plan.suspect_drift();
    assert_eq!((proxy.plan.due(now), proxy.plan.next_check(now)), (vec![], None));
}
