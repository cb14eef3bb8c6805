//! Against the real kernel, with flows that no packet made.

use std::net::SocketAddr;
use std::sync::mpsc::channel;

use model::names::{NamespacedName, Port};
use model::routing::{Endpoint, Traffic};
use model::service::{Addresses, Created};
use netlink::conntrack::Direction;
use netlink::testing::in_fresh_netns;

use super::*;

const SCAN_TIMEOUT: Duration = Duration::from_secs(60);

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

/// A service port with these endpoints.
fn routings(
    family: Family,
    protocol: Protocol,
    numbers: &[u8],
) -> Vec<(ServicePortName, Option<Arc<Routing>>)> {
    let port = |number: u16| Port::from_api(number.into()).unwrap();
    let endpoint = |number: &u8| Endpoint { ip: ip(family, *number), local: false, port: port(5353) };
    let endpoints: Arc<[Endpoint]> = numbers.iter().map(endpoint).collect();
    let name = ServicePortName { service: NamespacedName::new("ns", "dns"), port: "".into(), protocol };
    let routing = Routing {
        protocol,
        port: port(53),
        node_port: None,
        addresses: Arc::new(Addresses {
            cluster_ip: service(family).ip(),
            external_ips: Box::default(),
            load_balancer_ips: Box::default(),
            source_ranges: Box::default(),
        }),
        created: Created::UNKNOWN,
        affinity: None,
        cluster: endpoints.clone(),
        local: Arc::default(),
        internal: Traffic::ToCluster,
        external: Traffic::ToCluster,
        preserves_client: false,
        ranges_admit_node: false,
        is_externally_accessible: true,
        health_check_node_port: None,
        serving: endpoints,
    };
    vec![(name, Some(Arc::new(routing)))]
}

/// A flow of a client at that port to the service.
fn to_service(family: Family, protocol: Protocol, port: u16) -> Direction {
    let source = SocketAddr::new(ip(family, 50), port);
    Direction { protocol: number(protocol), source, destination: service(family) }
}

/// A flow that an endpoint answers.
fn served(family: Family, port: u16, by: u8) -> wire::Flow {
    wire::Flow::translated(to_service(family, Protocol::Udp, port), endpoint(family, by))
}

fn make(family: Family, flows: &[wire::Flow]) {
    Connection::open().unwrap().make(wire_family(family), flows).unwrap();
}

/// The ports of clients whose flows there are, ascending.
fn clients(family: Family, protocol: Protocol) -> Vec<u16> {
    let filter = wire::Filter { protocol: number(protocol), destination: None, only_attempts: false };
    let found = Connection::open().unwrap().flows(wire_family(family), filter, |_| true).unwrap();
    let mut ports: Vec<_> = found.iter().map(|(flow, _)| flow.original.source.port()).collect();
    ports.sort_unstable();
    ports
}

/// Scans as often as there is reason to, whenever that would be, and returns how many flows were deleted.
fn scan_all(scanner: &mut Scanner) -> usize {
    let mut deleted = 0;
    while let Ok(request) = scanner.inbox.try_recv() {
        scanner.take_in(request, None);
    }
    let mut now = Instant::now();
    loop {
        match scanner.schedule.next(now) {
            Next::Scan(mut scan) => {
                deleted += scanner.delete_stale(&mut scan).unwrap();
                scanner.schedule.done(scan, now, Duration::ZERO, true);
            }
            Next::Wait(Some(until)) => now = until,
            Next::Wait(None) => return deleted,
        }
    }
}

#[test]
fn a_thread_of_its_own_deletes_what_a_sync_makes_stale_and_nothing_else() {
    for family in [Family::V4, Family::V6] {
        in_fresh_netns(move || {
            let attempt = |flow| wire::Flow { has_reply: false, ..flow };
            let tcp = |port| wire::Flow::untranslated(to_service(family, Protocol::Tcp, port));
            let astray = wire::Flow::untranslated(to_service(family, Protocol::Udp, 3));
            let elsewhere =
                Direction { destination: endpoint(family, 9), ..to_service(family, Protocol::Udp, 4) };
            make(family, &[served(family, 1, 1), served(family, 2, 2), astray]);
            make(family, &[wire::Flow::untranslated(elsewhere), attempt(tcp(1)), tcp(2)]);

            let (mut conntrack, scanner) = Conntrack::new(family, Contended::FirstOnly);
            conntrack.prepare(&routings(family, Protocol::Udp, &[1]));
            conntrack.gain([(Protocol::Tcp, Frontend::ClusterIp(service(family)))]);
            conntrack.committed(|_| false);
            let (tell, told) = channel();
            let thread = std::thread::spawn(move || scanner.run(|report| _ = tell.send(report)));
            let mut total = 0;
            let mut waits = true;
            // At once, and once more.
            for _ in 0..2 {
                loop {
                    match told.recv_timeout(SCAN_TIMEOUT).unwrap() {
                        Report::Scanned { deleted, .. } => {
                            total += deleted;
                            break;
                        }
                        Report::WaitingSince(since) => waits = since.is_some(),
                        Report::Failed(error) => panic!("{error}"),
                    }
                }
            }
            assert_eq!(total, 3);
            assert!(!waits, "everything has been scanned for");
            assert_eq!(clients(family, Protocol::Udp), [1, 4]);
            assert_eq!(clients(family, Protocol::Tcp), [2], "a connection stays");
            drop(conntrack);
            thread.join().unwrap();
        });
    }
}

#[test]
fn an_endpoint_that_is_back_before_a_scan_deletes_keeps_its_flows() {
    in_fresh_netns(|| {
        let family = Family::V4;
        let (mut conntrack, mut scanner) = Conntrack::new(family, Contended::FirstOnly);
        conntrack.prepare(&routings(family, Protocol::Udp, &[1, 2, 3]));
        conntrack.committed(|_| false);
        make(family, &[served(family, 1, 1), served(family, 2, 2), served(family, 3, 3)]);
        assert_eq!(scan_all(&mut scanner), 0);
        conntrack.prepare(&routings(family, Protocol::Udp, &[3]));
        conntrack.committed(|_| false);
        while let Ok(request) = scanner.inbox.try_recv() {
            scanner.take_in(request, None);
        }
        let Next::Scan(mut scan) = scanner.schedule.next(Instant::now() + SCAN_TIMEOUT) else {
            panic!("rested")
        };
        // The scan runs, and the next sync is about to have one of them back.
        conntrack.prepare(&routings(family, Protocol::Udp, &[2, 3]));
        assert_eq!(scanner.delete_stale(&mut scan).unwrap(), 1);
        assert_eq!(clients(family, Protocol::Udp), [2, 3]);
    });
}

#[test]
fn counters_are_believed_only_where_no_scan_has_seen_a_flow() {
    in_fresh_netns(|| {
        let family = Family::V4;
        for (flows, deleted) in [(vec![served(family, 1, 1)], 1), (vec![], 0)] {
            let (mut conntrack, mut scanner) = Conntrack::new(family, Contended::FirstOnly);
            make(family, &flows);
            conntrack.prepare(&routings(family, Protocol::Udp, &[1, 2]));
            conntrack.committed(|_| true);
            assert_eq!(scan_all(&mut scanner), 0, "it may be older than our counters");
            conntrack.prepare(&routings(family, Protocol::Udp, &[2]));
            conntrack.committed(|_| true);
            assert_eq!(scan_all(&mut scanner), deleted);
            assert_eq!(scanner.used.len(), deleted);
            let gone = routings(family, Protocol::Udp, &[]).into_iter().map(|(name, _)| (name, None));
            conntrack.prepare(&gone.collect::<Vec<_>>());
            conntrack.committed(|_| true);
            scan_all(&mut scanner);
            assert!(scanner.used.is_empty(), "nothing is kept of a service that is gone");
        }
    });
}

#[test]
fn flows_to_what_is_no_frontend_are_not_remembered() {
    in_fresh_netns(|| {
        let family = Family::V4;
        let (mut conntrack, mut scanner) = Conntrack::new(family, Contended::FirstOnly);
        conntrack.prepare(&routings(family, Protocol::Udp, &[1]));
        conntrack.committed(|_| false);
        scan_all(&mut scanner);
        make(family, &[wire::Flow::untranslated(to_service(family, Protocol::Udp, 1))]);
        let gone = routings(family, Protocol::Udp, &[]).into_iter().map(|(name, _)| (name, None));
        conntrack.prepare(&gone.collect::<Vec<_>>());
        conntrack.committed(|_| false);
        assert_eq!(scan_all(&mut scanner), 0, "it was never translated");
        assert!(scanner.used.is_empty());
    });
}

/// Whatever the scanner is busy with.
#[test]
fn a_sync_never_waits_for_a_scan() {
    let (mut conntrack, scanner) = Conntrack::new(Family::V4, Contended::FirstOnly);
    for endpoint in [1, 2].into_iter().cycle().take(10_000) {
        conntrack.prepare(&routings(Family::V4, Protocol::Udp, &[endpoint]));
        conntrack.gain([(Protocol::Tcp, Frontend::ClusterIp(service(Family::V4)))]);
        conntrack.committed(|_| false);
    }
    assert_eq!(scanner.inbox.try_iter().count(), 20_000);
}
