//! Scans of the kernel's conntrack table, with entries that the tests create without packets. Needs root.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail on anything unexpected")]

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use model::address::Family;
use model::cluster::{Changes, Cluster};
use netlink::conntrack::{ConntrackSocket, Filter, Flow, Tuple};
use netlink::testing::in_fresh_netns;
use plan::flows::{Contended, Scan};
use proxy::flows::{FlowFollower, ScanReport, ScannerThread};

const SCAN_TIMEOUT: Duration = Duration::from_secs(60);

/// `IPPROTO_*`
const TCP: u8 = 6;
const UDP: u8 = 17;

/// One family of a node, as far as flows are concerned.
struct Node {
    family: Family,
    cluster: Cluster,
    flows: FlowFollower,
}

impl Node {
    fn new(family: Family) -> (Self, ScannerThread) {
        let (flows, scanner) = FlowFollower::new(family, Contended::FirstOnly);
        (Self { family, cluster: Cluster::new(testkit::node(family)), flows }, scanner)
    }

    /// The changes that give the Service these endpoints.
    fn change(&mut self, endpoints: &[u8]) -> Changes {
        let endpoints: Vec<String> =
            endpoints.iter().map(|number| format!("| {}", ip(self.family, *number))).collect();
        let ports = "dns:53/UDP tcp:53";
        let service = format!("service ns/dns {} {ports}", service(self.family).ip());
        let slice = format!("slice ns/dns-1 of dns dns:5353/UDP tcp:5353 {}", endpoints.join(" "));
        for line in [service, slice] {
            self.cluster.apply(&testkit::event(&line));
        }
        self.cluster.take_changes()
    }

    fn sync(&mut self, endpoints: &[u8]) {
        let changes = self.change(endpoints);
        self.flows.prepare(&changes);
        self.flows.committed(|_| false);
    }
}

fn ip(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 244, 0, number].into(),
        Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into(),
    }
}

fn service(family: Family) -> SocketAddr {
    SocketAddr::new(ip(family, 100), 53)
}

fn endpoint(family: Family, number: u8) -> SocketAddr {
    SocketAddr::new(ip(family, number), 5353)
}

/// A flow from a client port to the service.
fn to_service(family: Family, protocol: u8, port: u16) -> Tuple {
    let source = SocketAddr::new(ip(family, 50), port);
    Tuple { protocol, source, destination: service(family) }
}

/// A flow that is translated to an endpoint.
fn served(family: Family, port: u16, by: u8) -> Flow {
    Flow::translated(to_service(family, UDP, port), endpoint(family, by))
}

fn wire_family(family: Family) -> netlink::Family {
    match family {
        Family::V4 => netlink::Family::Ipv4,
        Family::V6 => netlink::Family::Ipv6,
    }
}

fn make(family: Family, flows: &[Flow]) {
    ConntrackSocket::open().unwrap().make(wire_family(family), flows).unwrap();
}

/// The client ports of all flows, sorted.
fn clients(family: Family, protocol: u8) -> Vec<u16> {
    let filter = Filter { protocol, destination: None, only_attempts: false };
    let found = ConntrackSocket::open().unwrap().flows(wire_family(family), filter, |_| true).unwrap();
    let mut ports: Vec<_> = found.iter().map(|(flow, _)| flow.original.source.port()).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn the_scanner_thread_deletes_what_a_sync_makes_stale_and_nothing_else() {
    for family in [Family::V4, Family::V6] {
        in_fresh_netns(move || {
            let attempt = |flow| Flow { has_reply: false, ..flow };
            let tcp = |port| Flow::untranslated(to_service(family, TCP, port));
            let untranslated = Flow::untranslated(to_service(family, UDP, 3));
            let elsewhere = Tuple { destination: endpoint(family, 9), ..to_service(family, UDP, 4) };
            make(family, &[served(family, 1, 1), served(family, 2, 2), untranslated]);
            make(family, &[Flow::untranslated(elsewhere), attempt(tcp(1)), tcp(2)]);

            let (mut node, scanner) = Node::new(family);
            node.sync(&[1]);
            let (sender, reports) = channel();
            let thread = std::thread::spawn(move || scanner.run(|report| _ = sender.send(report)));
            let mut total = 0;
            let mut is_waiting = true;
            // One scan immediately, and a second one later.
            for _ in 0..2 {
                loop {
                    match reports.recv_timeout(SCAN_TIMEOUT).unwrap() {
                        ScanReport::Scanned { deleted, .. } => {
                            total += deleted;
                            break;
                        }
                        ScanReport::WaitingSince(since) => is_waiting = since.is_some(),
                        ScanReport::Failed { error, .. } => panic!("{error}"),
                    }
                }
            }
            assert_eq!(total, 3);
            assert!(!is_waiting, "no recheck waits for a scan");
            assert_eq!(clients(family, UDP), [1, 4]);
            assert_eq!(clients(family, TCP), [2], "an established connection stays");
            drop(node);
            thread.join().unwrap();
        });
    }
}

/// The next scan, however late it is due.
fn due(scanner: &mut ScannerThread) -> Scan {
    scanner.due(Instant::now() + SCAN_TIMEOUT).unwrap()
}

#[test]
fn an_endpoint_that_is_back_between_listing_and_deleting_keeps_its_flows() {
    in_fresh_netns(|| {
        let family = Family::V4;
        let (mut node, mut scanner) = Node::new(family);
        node.sync(&[1, 2, 3]);
        make(family, &[served(family, 1, 1), served(family, 2, 2), served(family, 3, 3)]);
        let mut scan = due(&mut scanner);
        let listed = scanner.list(&scan).unwrap();
        assert_eq!(scanner.delete(&mut scan, listed).unwrap(), 0);

        node.sync(&[3]);
        let mut scan = due(&mut scanner);
        let listed = scanner.list(&scan).unwrap();
        assert_eq!(listed.len(), 2);
        // While the scan runs, the next sync is about to add one of the endpoints again.
        let changes = node.change(&[2, 3]);
        node.flows.prepare(&changes);
        assert_eq!(scanner.delete(&mut scan, listed).unwrap(), 1);
        assert_eq!(clients(family, UDP), [2, 3]);
    });
}

/// No thread runs the scanner here.
#[test]
fn a_sync_never_waits_for_a_scan() {
    let (mut node, mut scanner) = Node::new(Family::V4);
    for number in [1, 2].into_iter().cycle().take(10_000) {
        node.sync(&[number]);
    }
    assert!(scanner.due(Instant::now() + SCAN_TIMEOUT).is_some());
}
