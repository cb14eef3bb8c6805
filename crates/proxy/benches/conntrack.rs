//! The cost of stale flows in a conntrack table full of unrelated ones, and the time until they are deleted.
//!
//! The kernel cannot find flows by their destination: to list some it walks its whole table, with all protocols and namespaces. So
//! scans run on a thread of their own with a limited share of a core, and the nftables mode skips them if counters prove that
//! there is nothing to find.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    reason = "a benchmark fails on anything unexpected"
)]

use std::fs::{read_to_string, write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use kernel::nftables::KernelTable;
use model::address::Family;
use model::api;
use model::cluster::Cluster;
use model::event::Event;
use netlink::conntrack::{ConntrackSocket, Flow, Tuple};
use netlink::testing::{in_fresh_netns, run};
use plan::flows::{Contended, Destination};
use plan::mark::Mark;
use plan::nftables::program::ProgramSettings;
use plan::nftables::sets::Balancer;

use proxy::backend::{Backend as _, Nftables};
use proxy::flows::{FlowFollower, ScanReport};
use proxy::metrics::Metrics;
use settings::config::ProxyMode;
use testkit::bench::clusters::{here, service, slice};
use testkit::bench::figures::{goal, processor};

const UNRELATED: u32 = 500_000;
const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// For how long one service is changed repeatedly.
const CHANGE_PERIOD: Duration = Duration::from_secs(30);
const UNUSED_CHANGES: usize = 20;
/// The share of a core that scans may use, in per cent.
const MAX_SHARE: f64 = 5.0;
/// Milliseconds until a stale flow is deleted.
const MAX_DELAY: f64 = 5_000.0;

/// Restores the limit of the machine when dropped.
struct Limit(String);

impl Limit {
    fn raise() -> Self {
        let before = read_to_string(LIMIT).unwrap();
        write(LIMIT, (2 * UNRELATED).to_string()).unwrap();
        Self(before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        write(LIMIT, self.0.trim()).unwrap();
    }
}

fn main() {
    let _limit = Limit::raise();
    in_fresh_netns(|| {
        run("ip link set lo up");
        run("ip route add default dev lo");
        let mut node = Node::new();
        println!(
            "\none UDP service of 1,000 loses an endpoint, repeatedly: milliseconds, and per cent of a core"
        );
        println!(
            "{:>18} {:>16} {:>16} {:>14} {:>6} {:>14} {:>16} {:>16}",
            "flows in the table",
            "sync, unused",
            "sync, used",
            "one scan",
            "scans",
            "scans, share",
            "deleted, median",
            "deleted, max"
        );
        for unrelated in [0, UNRELATED] {
            fill(unrelated);
            let unused = node.change_unused();
            let found = node.change_used();
            println!(
                "{unrelated:>18} {:>16} {:>16} {:>14.2} {:>6} {:>14} {:>16.1} {:>16}",
                goal(unused, 1.0),
                goal(found.sync, 1.0),
                found.scan,
                found.scans,
                goal(found.share, MAX_SHARE),
                found.median,
                goal(found.longest, MAX_DELAY),
            );
        }
    });
}

/// A node that serves UDP services, as far as flows and rules are concerned.
struct Node {
    cluster: Cluster,
    table: Nftables,
    flows: FlowFollower,
    reports: Receiver<ScanReport>,
}

struct Found {
    /// Processor time of the thread that syncs, in milliseconds.
    sync: f64,
    scan: f64,
    scans: usize,
    share: f64,
    median: f64,
    longest: f64,
}

impl Node {
    fn new() -> Self {
        let mut cluster = Cluster::new(here());
        for number in 0..1_000 {
            cluster.apply(&udp(service(number)));
            cluster.apply(&udp(slice(number, 2, None)));
        }
        let settings = ProgramSettings {
            family: Family::V4,
            balancer: Balancer::Slots,
            mark: Mark::from_bit(14).unwrap(),
            masquerade_all: false,
            from_pod: None,
            node_ports_everywhere: true,
            can_hash: true,
        };
        let (mut flows, scanner) = FlowFollower::new(Family::V4, Contended::FirstOnly);
        flows.other_modes_removed([], |_| false);
        let (sender, reports) = channel();
        std::thread::spawn(move || scanner.run(|report| _ = sender.send(report)));
        let table = KernelTable::open(Family::V4).unwrap();
        let table = Nftables::new(table, settings, Arc::new(Metrics::new(ProxyMode::Nftables)));
        let mut node = Self { cluster, table, flows, reports };
        node.sync();
        node.settle();
        node
    }

    /// Returns the processor time that was spent on flows, not on rules.
    fn sync(&mut self) -> f64 {
        let changes = self.cluster.take_changes();
        let before = processor();
        self.flows.prepare(&changes);
        let prepared = processor() - before;
        self.table.sync(changes).unwrap();
        let before = processor();
        let table = &mut self.table;
        self.flows.committed(|at: Destination| table.is_unused(at));
        prepared + processor() - before
    }

    /// Waits until nothing is left to scan for, and returns the processor time of the scans.
    fn settle(&self) -> Vec<Duration> {
        let mut scans = Vec::new();
        while let Ok(report) = self.reports.recv_timeout(Duration::from_secs(2) + 20 * last(&scans)) {
            match report {
                ScanReport::Scanned { processor_time, .. } => scans.push(processor_time),
                ScanReport::WaitingSince(_) => {}
                ScanReport::Failed { error, .. } => panic!("{error}"),
            }
        }
        scans
    }

    /// The median time of a sync after a change of a service that this node has never used.
    fn change_unused(&mut self) -> f64 {
        let took = (0..2 * UNUSED_CHANGES)
            .map(|change| {
                self.cluster.apply(&udp(shrunk(0, 1 + change % 2)));
                self.sync()
            })
            .step_by(2)
            .collect();
        assert_eq!(self.settle().len(), 0, "counters prove that there is nothing to find");
        median(took)
    }

    /// Changes a service in use repeatedly, each time as soon as the stale flow of the last change is deleted.
    fn change_used(&mut self) -> Found {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = SocketAddr::new(IpAddr::from([10, 96, 0, 1]), 80);
        // No socket receives it: only the conntrack entry matters.
        let _ = client.send_to(b"?", to);
        let flow = Tuple { protocol: 17, source: "10.1.2.3:4000".parse().unwrap(), destination: to };
        let (mut syncs, mut delays) = (Vec::new(), Vec::new());
        let mut connection = ConntrackSocket::open().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < CHANGE_PERIOD {
            let leaving = self.last_endpoint(to);
            connection.make(netlink::Family::Ipv4, &[Flow::translated(flow, leaving)]).unwrap();
            self.cluster.apply(&udp(shrunk(1, 1)));
            let changed = Instant::now();
            syncs.push(self.sync());
            while connection.find(netlink::Family::Ipv4, flow).unwrap().is_some() {
                std::thread::sleep(Duration::from_millis(1));
            }
            delays.push(changed.elapsed().as_secs_f64() * 1e3);
            self.cluster.apply(&udp(shrunk(1, 2)));
            self.sync();
        }
        let scans = self.settle();
        // The pause after the last scan belongs to that scan's share.
        let elapsed = begun.elapsed();
        let milliseconds = |scan: &Duration| scan.as_secs_f64() * 1e3;
        let spent: Duration = scans.iter().sum();
        Found {
            sync: median(syncs),
            scan: median(scans.iter().map(milliseconds).collect()),
            scans: scans.len(),
            share: 100.0 * spent.as_secs_f64() / elapsed.as_secs_f64(),
            longest: delays.iter().copied().fold(0.0, f64::max),
            median: median(delays),
        }
    }

    fn last_endpoint(&self, to: SocketAddr) -> SocketAddr {
        let routings = self.cluster.routings();
        let routing = routings.iter().find(|(_, routing)| routing.addresses.cluster_ip == to.ip()).unwrap().1;
        let endpoint = shrunk_endpoint(&routing.serving);
        SocketAddr::new(endpoint.ip, endpoint.port.get())
    }
}

/// The endpoint that is removed when the service shrinks to one.
fn shrunk_endpoint(serving: &[model::routing::Endpoint]) -> model::routing::Endpoint {
    let Event::SliceApplied(slice) = shrunk(1, 1) else { panic!("a slice") };
    let stays = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).next().unwrap().to_string();
    *serving.iter().find(|endpoint| endpoint.ip.to_string() != stays).unwrap()
}

fn last(scans: &[Duration]) -> Duration {
    scans.last().copied().unwrap_or_default()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn shrunk(number: usize, endpoints: usize) -> Event {
    let Event::SliceApplied(mut slice) = slice(number, 2, None) else { panic!("a slice") };
    slice.endpoints.truncate(endpoints);
    Event::SliceApplied(slice)
}

fn udp(event: Event) -> Event {
    let udp = || Some("UDP".to_owned());
    match event {
        Event::ServiceApplied(mut service) => {
            service.spec.ports.iter_mut().for_each(|port: &mut api::ServicePort| port.protocol = udp());
            Event::ServiceApplied(service)
        }
        Event::SliceApplied(mut slice) => {
            slice.ports.iter_mut().for_each(|port: &mut api::EndpointPort| port.protocol = udp());
            Event::SliceApplied(slice)
        }
        _ => panic!("services and slices"),
    }
}

/// Creates TCP connections that belong to no service.
fn fill(flows: u32) {
    let flow = |number: u32| {
        Flow::untranslated(Tuple {
            protocol: 6,
            source: SocketAddr::new(
                Ipv4Addr::from(0x0a01_0000 + number / 50_000).into(),
                (1_000 + number % 50_000) as u16,
            ),
            destination: SocketAddr::new(Ipv4Addr::from(0x0a02_0000 + number % 1_000).into(), 443),
        })
    };
    let all: Vec<Flow> = (0..flows).map(flow).collect();
    ConntrackSocket::open().unwrap().make(netlink::Family::Ipv4, &all).unwrap();
    std::thread::sleep(Duration::from_millis(100));
}
