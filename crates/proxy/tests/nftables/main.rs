//! Tests of the nftables mode with the real kernel, each in a network namespace of its own.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests stop at what they did not expect"
)]

mod affinity;
mod comparing;
mod counting;
mod faults;
mod holder;
mod ipvs;
mod preload;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ipnet::IpNet;
use kernel::drift::Drift;
use kernel::nftables::{
    CommitError, KernelTable, TABLE, TableAbilities, TableInspection, TableSnapshot, connections,
    is_transient, on_foreign_change,
};
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::Changes;
use model::local::FromPod;
use model::names::{NamespacedName, Port, Protocol, ServicePortName};
use netlink::nftables::{self as nft, Batch, NftablesSocket};
use netlink::testing::{in_fresh_netns, run};
use plan::flows::Destination;
use plan::mark::Mark;
use plan::nftables::desired::{RoutingChange, boundaries};
use plan::nftables::program::ProgramSettings;
use plan::nftables::sets::{Balancer, LookupBy, Set};
use plan::nftables::steps::{ActualTable, Steps, TableContent};

use proxy::backend::{Backend as _, Nftables, SyncError};
use proxy::metrics::Metrics;
use proxy::rate_limit::Retry;
use settings::config::ProxyMode;
use testkit::wait::eventually;

fn program_settings(family: Family) -> ProgramSettings {
    let pods = match family {
        Family::V4 => "10.244.0.0/16",
        Family::V6 => "fd00:10:244::/56",
    };
    ProgramSettings {
        family,
        balancer: Balancer::Slots,
        mark: Mark::from_bit(14).unwrap(),
        masquerade_all: false,
        from_pod: Some(FromPod::Source(pods.parse().unwrap())),
        node_ports_everywhere: false,
        can_hash: true,
    }
}

fn name(service: &str) -> ServicePortName {
    ServicePortName {
        service: NamespacedName::new("ns", service),
        port: "http".into(),
        protocol: Protocol::Tcp,
    }
}

/// Service `ns/{name}` with a cluster IP, an external IP, a load-balancer IP with source ranges, a node port, external traffic
/// policy Local, and affinity. `endpoints` are the last parts of their addresses; endpoint 1 is on this node.
fn service(family: Family, name: &str, number: u8, endpoints: &[u8]) -> RoutingChange {
    service_with(family, name, number, endpoints, "affinity=10800")
}

/// The same with `fields` instead of affinity.
fn service_with(family: Family, name: &str, number: u8, endpoints: &[u8], fields: &str) -> RoutingChange {
    let ip = |net: u8, host: u8| match family {
        Family::V4 => format!("10.{net}.{number}.{host}"),
        Family::V6 => format!("fd00:{net}:{number}::{host}"),
    };
    let (cluster_ip, external_ip, load_balancer_ip) = (ip(96, 1), ip(50, 1), ip(51, 1));
    let range = match family {
        Family::V4 => "192.0.2.0/24",
        Family::V6 => "2001:db8::/64",
    };
    let (node_port, health) = (30_000 + u16::from(number), 31_000 + u16::from(number));
    let endpoints = endpoints.iter().map(|host| format!(" {}@{}", ip(244, *host), node_of(*host)));
    let endpoints: String = endpoints.collect();
    routed(
        family,
        &format!(
            "service ns/{name} {cluster_ip} http:80@{node_port} LoadBalancer external-ips={external_ip} \
             lb-ips={load_balancer_ip} ranges={range} external-policy=Local health={health} {fields}
             slice ns/{name} of {name} http:8080{endpoints}"
        ),
    )
}

/// A UDP Service with policy Local: without endpoint 1 its frontends serve no traffic. It has no affinity, so that a change of
/// it is one call to the kernel.
fn udp_service(endpoints: &[u8]) -> Changes {
    let endpoints = endpoints.iter().map(|host| format!(" 10.244.1.{host}@{}", node_of(*host)));
    let endpoints: String = endpoints.collect();
    change(vec![routed(
        Family::V4,
        &format!(
            "service ns/a 10.96.1.1 http:80/UDP@30001 NodePort external-ips=10.50.1.1 internal-policy=Local external-policy=Local
             slice ns/a of a http:8080/UDP{endpoints}"
        ),
    )])
}

fn node_of(host: u8) -> &'static str {
    if host == 1 { testkit::objects::NODE } else { "n2" }
}

fn routed(family: Family, lines: &str) -> RoutingChange {
    let (name, routing) = testkit::routing(family, lines);
    (name, Some(routing))
}

fn change(routings: Vec<RoutingChange>) -> Changes {
    Changes { routings, ..Changes::default() }
}

fn service_cidrs(family: Family) -> Vec<IpNet> {
    let cidrs = match family {
        Family::V4 => ["10.96.0.0/12", "10.112.0.0/16"],
        Family::V6 => ["fd00:96::/112", "fd00:97::/112"],
    };
    cidrs.map(|cidr| cidr.parse().unwrap()).into()
}

fn node_port_ips(family: Family) -> Vec<IpAddr> {
    match family {
        Family::V4 => vec!["192.0.2.1".parse().unwrap()],
        Family::V6 => vec!["2001:db8::1".parse().unwrap()],
    }
}

/// The changes of the first sync.
fn everything(family: Family, routings: Vec<RoutingChange>) -> Changes {
    Changes { routings, service_cidrs: Some(service_cidrs(family)), ..Changes::default() }
}

/// Small, so that the tests read some sets by looking elements up.
const MAX_LISTED: usize = 20;

fn open(family: Family) -> Nftables {
    limited(family, |abilities| TableAbilities { max_listed: MAX_LISTED, ..abilities })
}

/// A table that any process may change, as on kernels without owners of tables.
fn shared_table(family: Family) -> Nftables {
    limited(family, |abilities| TableAbilities { max_listed: MAX_LISTED, ownership: false, ..abilities })
}

fn limited(family: Family, to: impl Fn(TableAbilities) -> TableAbilities) -> Nftables {
    let table = KernelTable::open(family).unwrap();
    let abilities = to(table.abilities());
    let mut table = backend(table.limited_to(abilities));
    table.plan.set_node_port_ips(node_port_ips(family));
    table
}

fn backend(table: KernelTable) -> Nftables {
    let settings = program_settings(table.family());
    Nftables::new(table, settings, Arc::new(Metrics::new(ProxyMode::Nftables)))
}

fn generation() -> u32 {
    NftablesSocket::open().unwrap().generation().unwrap().id
}

fn content(backend: &mut Nftables) -> TableContent {
    let held = backend.table.read(backend.plan.desired()).unwrap();
    let ActualTable::Ours(content) = held.table else { panic!("{held:?}") };
    content
}

/// The steps that a read-back finds necessary.
fn remaining(backend: &mut Nftables) -> Steps {
    let held = backend.table.read(backend.plan.desired()).unwrap();
    backend.plan.steps_from(held)
}

fn cause(outcome: Result<Outcome, SyncError>) -> CommitError {
    outcome.unwrap_err().cause.downcast().unwrap()
}

fn snapshot(backend: &Nftables) -> TableSnapshot {
    backend.plan.desired().clone().into()
}

#[test]
fn after_a_sync_the_kernel_holds_the_desired_state() {
    for family in Family::BOTH {
        in_fresh_netns(move || {
            let mut table = open(family);
            let routings = vec![service(family, "a", 1, &[1, 2, 3]), service(family, "b", 2, &[])];
            let outcome = table.sync(everything(family, routings)).unwrap();
            assert!(outcome.is_full && !outcome.has_drifted);
            let steps = remaining(&mut table);
            assert!(steps.is_empty(), "{steps:?}");
            let content = content(&mut table);
            assert_eq!(content.timeouts, [10_800].into());
            assert_eq!(content.service_cidrs, boundaries(&service_cidrs(family)));
            assert!(content.node_port_ips.into_iter().eq(node_port_ips(family)));
        });
    }
}

#[test]
fn a_restart_without_changes_writes_nothing() {
    for family in Family::BOTH {
        in_fresh_netns(move || {
            let one = |n| service(family, &format!("s{n}"), n, &[1, 2, 3]);
            let all = || everything(family, (1..50).map(one).collect());
            let mut first = open(family);
            first.sync(all()).unwrap();
            // After these syncs, slots are not in the order of addresses.
            first.sync(change(vec![service(family, "s1", 1, &[2, 3])])).unwrap();
            first.sync(change(vec![service(family, "s1", 1, &[1, 2, 3])])).unwrap();
            drop(first);
            let before = generation();
            let mut second = open(family);
            let outcome = second.sync(all()).unwrap();
            assert_eq!((outcome.added, outcome.deleted), (0, 0));
            // Where tables have owners, becoming the owner takes a transaction.
            assert_eq!(generation() - before, u32::from(second.table.is_owned()));
            let before = generation();
            second.sync(Changes::default()).unwrap();
            assert_eq!(generation(), before, "a sync without changes writes nothing");
        });
    }
}

/// Syncs when no other socket owns the table: a process that another test has just forked has a copy of a closed socket, which thus
/// owns the table until that process executes its program.
fn sync_when_free(table: &mut Nftables, changes: impl Fn() -> Changes) -> Outcome {
    let mut outcome = None;
    eventually("the table has no other owner", || match table.sync(changes()) {
        Ok(done) => outcome.insert(done).is_full,
        Err(error) if error.retry == Retry::Busy => false,
        Err(error) => panic!("{error:?}"),
    });
    outcome.unwrap()
}

#[test]
fn changes_between_two_processes_are_applied() {
    // Large sets are read in another way than small ones, and rewritten if they have other elements than the desired ones.
    type Change = fn(u8, Vec<u8>) -> Option<Vec<u8>>;
    let cases: [(&str, Change); 5] = [
        ("another endpoint", |n, old| Some(if n == 7 { vec![1, 2, 9] } else { old })),
        ("one endpoint more", |n, old| Some(if n == 7 { vec![1, 2, 3, 4] } else { old })),
        ("one endpoint less", |n, old| Some(if n == 7 { vec![1, 3] } else { old })),
        ("a service gone", |n, old| (n != 7).then_some(old)),
        ("all but one gone", |n, old| (n == 7).then_some(old)),
    ];
    for (what, changed) in cases {
        for services in [5, 50] {
            in_fresh_netns(move || {
                let family = Family::V4;
                let all = |endpoints: &Change| {
                    let of =
                        |n: u8| Some(service(family, &format!("s{n}"), n, &endpoints(n, vec![1, 2, 3])?));
                    (5..5 + services).filter_map(of).collect::<Vec<_>>()
                };
                let unchanged: Change = |_, old| Some(old);
                let mut first = open(family);
                first.sync(everything(family, all(&unchanged))).unwrap();
                // After these syncs, slots are not in the order of addresses.
                first.sync(change(vec![service(family, "s6", 6, &[2, 3])])).unwrap();
                first.sync(change(vec![service(family, "s6", 6, &[1, 2, 3])])).unwrap();
                drop(first);

                let mut second = open(family);
                let outcome = sync_when_free(&mut second, || everything(family, all(&changed)));
                let few = outcome.added + outcome.deleted <= 110;
                assert!(few || services == 50, "{what}, {services} services: {outcome:?}");
                let steps = remaining(&mut second);
                assert!(steps.is_empty(), "{what}, {services} services: {steps:?}");
            });
        }
    }
}

#[test]
fn large_sets_are_rewritten_if_the_kernel_does_not_report_their_sizes() {
    in_fresh_netns(|| {
        let with = |endpoints: &[u8]| {
            let one = |n| service(Family::V4, &format!("s{n}"), n, endpoints);
            everything(Family::V4, (1..50).map(one).collect())
        };
        open(Family::V4).sync(with(&[1, 2])).unwrap();
        let mut table = limited(Family::V4, |abilities| TableAbilities {
            counts: false,
            max_listed: MAX_LISTED,
            ..abilities
        });
        assert!(table.plan.steps(with(&[1])).is_none());
        let steps = remaining(&mut table);
        assert!(steps.empty.contains(&Set::Endpoints), "{:?}", steps.empty);
        table.table.commit(&steps).unwrap();
        let mut other = open(Family::V4);
        drop(table);
        assert!(other.plan.steps(with(&[1])).is_none());
        let steps = remaining(&mut other);
        assert!(steps.is_empty(), "{steps:?}");
    });
}

#[test]
fn a_foreign_table_of_the_same_name_is_replaced_in_one_transaction() {
    in_fresh_netns(|| {
        run("nft add table ip kube-proxy");
        run("nft add chain ip kube-proxy services");
        run("nft add set ip kube-proxy cluster-ips { type ipv4_addr ; comment \"Active\" ; }");
        run("nft add element ip kube-proxy cluster-ips { 10.0.0.1 }");
        let before = generation();
        let mut table = open(Family::V4);
        table.sync(change(vec![service(Family::V4, "a", 1, &[1])])).unwrap();
        assert_eq!(generation() - before, 1, "one transaction");
        let listed = run("nft list set ip kube-proxy cluster-ips");
        assert!(listed.contains("10.96.1.1") && !listed.contains("10.0.0.1"), "{listed}");
    });
}

#[test]
fn a_changed_endpoint_costs_a_few_elements_and_no_rule() {
    in_fresh_netns(|| {
        let mut table = open(Family::V4);
        table.sync(change(vec![service(Family::V4, "a", 1, &[1, 2, 3])])).unwrap();
        let rules = || {
            let rules = NftablesSocket::open().unwrap().rules(netlink::Family::Ipv4, TABLE).unwrap();
            rules.iter().map(|rule| rule.handle).collect::<Vec<_>>()
        };
        let before = rules();
        let outcome = table.sync(change(vec![service(Family::V4, "a", 1, &[1, 2, 4])])).unwrap();
        assert!(!outcome.is_full);
        // One slot, whatever number of frontends leads to it, and one element of affinity.
        assert_eq!((outcome.added, outcome.deleted), (2, 2));
        assert_eq!(rules(), before);
    });
}

#[test]
fn nft_lists_the_whole_program() {
    for (family, word) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
        in_fresh_netns(move || {
            let mut table = open(family);
            let routings = vec![service(family, "a", 1, &[1, 2, 3])];
            table.sync(everything(family, routings)).unwrap();
            let listed = run(&format!("nft list table {word} kube-proxy"));
            for chain in &table.plan.desired().program().chains {
                for rule in &chain.rules {
                    let text = rule.show(family);
                    assert!(listed.contains(&text), "{}: {text}\nis not in\n{listed}", chain.name);
                }
            }
        });
    }
}

#[test]
fn what_a_foreign_writer_changed_is_repaired_by_the_next_sync() {
    for (what, command) in [
        ("an element", "nft delete element ip kube-proxy cluster-ips { 10.96.1.1 }"),
        ("all elements of a set", "nft flush map ip kube-proxy endpoints"),
        ("the rules of a chain", "nft flush chain ip kube-proxy services"),
        ("an added rule", "nft insert rule ip kube-proxy services drop"),
        ("the table", "nft delete table ip kube-proxy"),
        ("everything", "nft flush ruleset"),
    ] {
        in_fresh_netns(move || {
            let mut table = shared_table(Family::V4);
            let routings = vec![service(Family::V4, "a", 1, &[1, 2, 3])];
            table.sync(everything(Family::V4, routings)).unwrap();
            let before = run("nft list table ip kube-proxy");
            run(command);
            table.plan.suspect_drift();
            assert!(table.sync(Changes::default()).unwrap().has_drifted);
            // Rewriting resets counters, but there was no traffic.
            assert_eq!(run("nft list table ip kube-proxy"), before, "{what}");
        });
    }
}

#[test]
fn drift_is_reported_even_if_objects_change_at_the_same_time() {
    for (damage, has_drifted) in
        [("nft flush map ip kube-proxy endpoints", true), ("nft add table ip other", false)]
    {
        in_fresh_netns(move || {
            let mut table = shared_table(Family::V4);
            let with = |endpoints: &[u8]| change(vec![service(Family::V4, "a", 1, endpoints)]);
            table.sync(with(&[1, 2, 3])).unwrap();
            run(damage);
            table.plan.suspect_drift();
            let outcome = table.sync(with(&[1, 2])).unwrap();
            assert!(outcome.is_full && outcome.writes == 1);
            assert_eq!(outcome.has_drifted, has_drifted, "{damage}");
        });
    }
}

#[test]
fn the_sync_after_a_refused_one_reads_the_kernel_back() {
    in_fresh_netns(|| {
        let mut table = shared_table(Family::V4);
        let with = |endpoints: &[u8]| change(vec![service(Family::V4, "a", 1, endpoints)]);
        table.sync(with(&[1, 2, 3])).unwrap();
        run("nft flush map ip kube-proxy endpoints");
        let error = cause(table.sync(with(&[1, 2])));
        assert!(matches!(error, CommitError::Refused { .. }), "it deletes elements that are gone: {error:?}");
        assert!(
            table.sync(Changes::default()).unwrap().is_full,
            "it also applies the change of the failed sync"
        );
        assert!(remaining(&mut table).is_empty());
    });
}

#[test]
fn a_table_is_not_changed_while_another_process_owns_it() {
    in_fresh_netns(|| {
        let mut first = open(Family::V4);
        first.sync(change(vec![service(Family::V4, "a", 1, &[1])])).unwrap();
        let mut second = open(Family::V4);
        let error = cause(second.sync(change(vec![service(Family::V4, "a", 1, &[2])])));
        assert!(
            is_transient(&error) && error.to_string().contains("it belongs to another running process"),
            "{error}"
        );
        drop(first);
        assert_eq!(second.sync(Changes::default()).unwrap().writes, 1);
    });
}

#[test]
fn a_foreign_writer_is_reported_at_once() {
    in_fresh_netns(|| {
        let mut table = shared_table(Family::V4);
        table.sync(change(vec![service(Family::V4, "a", 1, &[1])])).unwrap();
        let port = table.table.port();
        let (notify, notified) = std::sync::mpsc::channel();
        // A thread starts in the namespace of its parent.
        std::thread::spawn(move || on_foreign_change(Family::V4, port, |drift| notify.send(drift).is_ok()));
        let timeout = Duration::from_secs(10);
        assert_eq!(notified.recv_timeout(timeout), Ok(Drift::Unwatched), "once when it starts to listen");
        table.sync(change(vec![service(Family::V4, "a", 1, &[1, 2])])).unwrap();
        run("nft add table ip other");
        assert!(
            notified.recv_timeout(Duration::from_millis(100)).is_err(),
            "neither our own changes nor those of other tables are reported"
        );
        run("nft delete table ip kube-proxy");
        let Ok(Drift::Detected(Some(writer))) = notified.recv_timeout(timeout) else {
            panic!("the change was not reported")
        };
        assert_eq!(writer.process, "nft");
    });
}

#[test]
fn a_frontend_is_unused_if_it_has_counted_since_the_start_and_counted_nothing() {
    let cluster_ip = Destination::Address("10.96.1.1:80".parse().unwrap());
    let node_port = Destination::NodePort(Port::from_api(30_001).unwrap());
    in_fresh_netns(move || {
        run("ip link set lo up");
        run("ip route add default dev lo");
        let mut table = open(Family::V4);
        assert!(!table.is_unused(cluster_ip), "the frontend does not exist yet");
        table.sync(udp_service(&[1, 2])).unwrap();
        assert!(table.is_unused(cluster_ip) && table.is_unused(node_port));
        table.sync(udp_service(&[1, 3])).unwrap();
        assert!(table.is_unused(cluster_ip));

        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let external_ip = Destination::Address("10.50.1.1:80".parse().unwrap());
        assert!(table.is_unused(external_ip));
        let _ = client.send_to(b"?", "10.50.1.1:80");
        assert!(!table.is_unused(external_ip), "a client has sent a packet");

        // With policy Local the frontend is removed with the last endpoint of this node, and added again with the next.
        table.sync(udp_service(&[2, 3])).unwrap();
        table.sync(udp_service(&[1, 2])).unwrap();
        assert!(!table.is_unused(cluster_ip), "it was absent for a while");
        assert!(!table.is_unused(Destination::Address("10.96.1.2:80".parse().unwrap())), "unknown");
    });
}

/// Changes another table continuously, until dropped.
struct Writer {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Writer {
    fn start() -> Self {
        run("nft add table ip other");
        run("nft add set ip other numbers { type mark ; }");
        let stop = Arc::new(AtomicBool::new(false));
        let write = |number: u32, stop: Arc<AtomicBool>| {
            let mut connection = NftablesSocket::open().unwrap();
            while !stop.load(Ordering::Relaxed) {
                let element = || [nft::Element::new(number.to_ne_bytes())];
                let mut batch = Batch::new(netlink::Family::Ipv4, "other");
                batch.add_elements("numbers", element());
                batch.delete_elements("numbers", element());
                connection.commit(&batch).unwrap();
            }
        };
        let threads = (0..2).map(|number| {
            let stop = stop.clone();
            std::thread::spawn(move || write(number, stop))
        });
        Self { threads: threads.collect(), stop }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[test]
fn a_set_that_keeps_changing_is_read_once_the_writers_stop() {
    in_fresh_netns(|| {
        let cidrs: Vec<IpNet> = (0..4_000_u32)
            .map(|number| {
                let [_, a, b, c] = (number * 16).to_be_bytes();
                format!("10.{a}.{b}.{c}/30").parse().unwrap()
            })
            .collect();
        let mut table = open(Family::V4);
        table.sync(Changes { service_cidrs: Some(cidrs), ..Changes::default() }).unwrap();
        assert!(table.table.is_owned());

        let writer = Writer::start();
        let refused = (0..100).find_map(|_| table.table.read(table.plan.desired()).err());
        let refused = refused.expect("changes interrupt the listing");
        assert!(is_transient(&refused), "{refused}");
        drop(writer);
        table.plan.suspect_drift();
        let outcome = table.sync(Changes::default()).unwrap();
        assert!(outcome.is_full && outcome.writes == 0);
    });
}
