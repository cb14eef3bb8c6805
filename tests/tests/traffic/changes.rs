//! Services and endpoints change under load, and no connection fails.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kernel::iptables::Variant;
use model::address::Family;
use model::names::Protocol;
use testkit::hammer::SetOnDrop;
use testkit::manifests::{PlainService, list};
use testkit::namespace::Namespace;
use testkit::network::Network;
use testkit::probe::{Answer, Server, probe, probe_here};
use testkit::wait::eventually;
use tests::chains::IptablesNode;
use tests::matrix::ProxyUnderTest as _;
use tests::node::NftablesNode;
use tests::options::Options;

use crate::{cluster_ip, remote_pods};

const CHANGES: usize = 50;

/// The number of endpoints after each change, in turn: slot ranges grow and shrink by one slot and by many.
const COUNTS: [usize; 10] = [4, 3, 8, 9, 8, 16, 1, 2, 12, 5];

/// Two clients that connect to one frontend as fast as they can.
pub struct Storm<'a> {
    to: SocketAddr,
    clients: [(&'a Namespace, Protocol); 2],
    connections: AtomicU64,
    failures: Mutex<Vec<Answer>>,
}

impl<'a> Storm<'a> {
    pub fn new(network: &'a Network, to: SocketAddr) -> Self {
        let clients = [(&network.client, Protocol::Tcp), (&network.pods[0].namespace, Protocol::Udp)];
        Self { to, clients, connections: AtomicU64::new(0), failures: Mutex::default() }
    }

    /// Both clients use TCP.
    pub fn over_tcp(self) -> Self {
        Self { clients: self.clients.map(|(namespace, _)| (namespace, Protocol::Tcp)), ..self }
    }

    fn run(&self, client: usize, end: &AtomicBool) {
        let (namespace, protocol) = self.clients[client];
        namespace.move_in();
        while !end.load(Ordering::Relaxed) {
            match probe_here(None, protocol, self.to, Duration::from_secs(5)) {
                Answer::From { .. } => _ = self.connections.fetch_add(1, Ordering::Relaxed),
                failure => self.failures.lock().unwrap().push(failure),
            }
        }
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Runs `storms` while `change` runs.
pub fn during(storms: &[Storm<'_>], change: impl FnOnce()) {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&end);
        for storm in storms {
            for client in 0..storm.clients.len() {
                let end = &end;
                scope.spawn(move || storm.run(client, end));
            }
        }
        change();
    });
    for storm in storms {
        let failures = storm.failures.lock().unwrap();
        println!("{}: {} connections", storm.to, storm.connections());
        assert_eq!(*failures, [], "of {} connections to {}", storm.connections(), storm.to);
    }
}

/// Waits until every storm has made some more connections.
pub fn wait_for_connections(storms: &[Storm<'_>]) {
    let before: Vec<u64> = storms.iter().map(Storm::connections).collect();
    eventually("connections", || {
        storms.iter().zip(&before).all(|(storm, before)| storm.connections() >= before + 10)
    });
}

#[test]
fn no_connection_fails_while_endpoints_come_and_go() {
    let network = Network::new(1);
    for family in Family::BOTH {
        // Removed pods keep serving, so that packets in flight are answered.
        let all = remote_pods(family, 20, 8080);
        let _server = Server::start_all(&network.remote, &all);
        let ips = [1, 2, 3].map(|number| cluster_ip(family, number));
        let manifests = |turn: usize| {
            let count = COUNTS[turn % COUNTS.len()];
            // A different selection each time.
            let endpoints: Vec<_> = all.iter().cycle().skip(turn * 3).take(count).copied().collect();
            list(&[
                PlainService::new("changing", ips[0], &endpoints),
                PlainService { sticky: true, ..PlainService::new("sticky", ips[1], &endpoints) },
                PlainService::new("untouched", ips[2], &all[..3]),
            ])
        };
        let mut node = NftablesNode::new(&network.node, family, &Options::default());
        node.replace(&manifests(0));
        let storms = ips.map(|ip| Storm::new(&network, SocketAddr::new(ip, 80)));
        during(&storms, || {
            for turn in 1..=CHANGES {
                node.replace(&manifests(turn));
                wait_for_connections(&storms);
            }
        });
    }
}

/// A packet looks up one set after the other, and a commit may move the endpoints between the two lookups.
#[test]
fn no_connection_fails_while_endpoints_change_slot_ranges_as_fast_as_possible() {
    let network = Network::new(1);
    let family = Family::V4;
    let all = remote_pods(family, 16, 8080);
    let _server = Server::start_all(&network.remote, &all);
    let ip = cluster_ip(family, 1);
    let [many, one] = [&all[..], &all[..1]].map(|endpoints| list(&[PlainService::new("web", ip, endpoints)]));
    let mut node = NftablesNode::new(&network.node, family, &Options::default());
    node.replace(&many);
    let storms = [Storm::new(&network, SocketAddr::new(ip, 80))];
    during(&storms, || {
        let (start, mut changes) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(3) {
            node.replace(&one);
            node.replace(&many);
            changes += 2;
        }
        println!("{changes} changes");
    });
}

#[test]
fn no_connection_fails_while_the_proxy_restarts() {
    let network = Network::new(1);
    for family in Family::BOTH {
        let all = remote_pods(family, 20, 8080);
        let _server = Server::start_all(&network.remote, &all);
        let ips = [1, 2].map(|number| cluster_ip(family, number));
        let manifests = list(&[
            PlainService::new("web", ips[0], &all[..9]),
            PlainService { sticky: true, ..PlainService::new("sticky", ips[1], &all) },
        ]);
        let mut node = NftablesNode::start(&network.node, family, &Options::default(), &manifests).0;
        let affine_endpoint = || match probe(&network.client, Protocol::Tcp, SocketAddr::new(ips[1], 80)) {
            Answer::From { endpoint, .. } => endpoint,
            other => panic!("{other:?}"),
        };
        let before = affine_endpoint();
        let storms = ips.map(|ip| Storm::new(&network, SocketAddr::new(ip, 80)));
        during(&storms, || {
            for _ in 0..5 {
                drop(node);
                wait_for_connections(&storms);
                let (again, outcome) =
                    NftablesNode::start(&network.node, family, &Options::default(), &manifests);
                assert_eq!((outcome.is_full, outcome.added, outcome.deleted), (true, 0, 0));
                node = again;
                wait_for_connections(&storms);
            }
        });
        assert_eq!(affine_endpoint(), before, "session affinity survives the restart");
    }
}

/// The nft variant splits a load into several transactions: no reachable chain may be incomplete in between.
#[test]
fn no_connection_fails_while_iptables_is_loaded_in_batches() {
    const SERVICES: u16 = 600;
    let network = Network::new(1);
    let family = Family::V4;
    let all = remote_pods(family, 3, 8080);
    let _server = Server::start_all(&network.remote, &all);
    let untouched = cluster_ip(family, 1);
    let names: Vec<String> = (0..SERVICES).map(|number| format!("many-{number}")).collect();
    let many = |endpoints| {
        let mut services: Vec<_> = (names.iter().zip(1_000..))
            .map(|(name, number)| PlainService::new(name, cluster_ip(family, number), endpoints))
            .collect();
        services.push(PlainService::new("untouched", untouched, &all));
        list(&services)
    };
    let few = list(&[PlainService::new("untouched", untouched, &all)]);
    let mut chains = IptablesNode::new(&network.node, family, &Options::default(), Variant::Nft);
    chains.hold(&few);

    let storms = [Storm::new(&network, SocketAddr::new(untouched, 80))];
    let late = SocketAddr::new(cluster_ip(family, 1_000 + SERVICES - 1), 80);
    let (end, broken) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    during(&storms, || {
        std::thread::scope(|scope| {
            // A Service that is new: after its first answer no connection may fail.
            scope.spawn(|| {
                network.pods[0].namespace.move_in();
                let mut is_served = false;
                while !end.load(Ordering::Relaxed) {
                    match probe_here(None, Protocol::Tcp, late, Duration::from_secs(5)) {
                        Answer::From { .. } => is_served = true,
                        failure if is_served => broken.lock().unwrap().push(failure),
                        _ => {}
                    }
                    // Slow enough that no source port comes back while conntrack still has its untranslated SYN.
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let batches = [many(&all[..2]), many(&all)].map(|manifests| {
                let outcome = chains.replace(&manifests);
                // Then a full sync over the existing rules.
                chains.backend.plan.require_full();
                (outcome.writes, chains.replace(&manifests).writes)
            });
            println!("restores: {batches:?}");
            assert!(batches.iter().all(|(changed, full)| *changed > 1 && *full > 1), "{batches:?}");
            eventually("the new Service is served", || {
                matches!(probe(&network.client, Protocol::Tcp, late), Answer::From { .. })
            });
            end.store(true, Ordering::Relaxed);
        });
        chains.hold(&few);
        chains.backend.plan.require_full();
        chains.hold(&few);
        wait_for_connections(&storms);
    });
    assert_eq!(*broken.lock().unwrap(), [], "at {late}");
}
