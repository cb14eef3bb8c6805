//! Services and endpoints come and go while clients connect, and no client notices.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kernel::iptables::Variant;
use model::address::Family;
use model::names::Protocol;
use testkit::namespace::Namespace;
use testkit::network::Network;
use testkit::talk::{Answer, Server, ask, ask_here};
use tests::chains::Chains;
use tests::manifests::{Plain, list};
use tests::matrix::{Backend as _, eventually};
use tests::node::Node;
use tests::options::Options;

use crate::{cluster_ip, remote_pods};

const CHANGES: usize = 50;

/// How many endpoints there are after each change, again and again. Tables grow and shrink by one slot and by many.
const COUNTS: [usize; 10] = [4, 3, 8, 9, 8, 16, 1, 2, 12, 5];

/// Clients that connect to a frontend as fast as they can.
struct Storm<'a> {
    to: SocketAddr,
    clients: [(&'a Namespace, Protocol); 2],
    connections: AtomicU64,
    failures: Mutex<Vec<Answer>>,
}

impl<'a> Storm<'a> {
    fn new(network: &'a Network, to: SocketAddr) -> Self {
        let clients = [(&network.client, Protocol::Tcp), (&network.pods[0].namespace, Protocol::Udp)];
        Self { to, clients, connections: AtomicU64::new(0), failures: Mutex::default() }
    }

    fn rage(&self, client: usize, end: &AtomicBool) {
        let (namespace, protocol) = self.clients[client];
        namespace.move_in();
        while !end.load(Ordering::Relaxed) {
            match ask_here(None, protocol, self.to, Duration::from_secs(5)) {
                Answer::From { .. } => _ = self.connections.fetch_add(1, Ordering::Relaxed),
                failure => self.failures.lock().unwrap().push(failure),
            }
        }
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Lets `storms` rage while `change` is made.
fn during(storms: &[Storm<'_>], change: impl FnOnce()) {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for storm in storms {
            for client in 0..storm.clients.len() {
                let end = &end;
                scope.spawn(move || storm.rage(client, end));
            }
        }
        // However it ends, the storms have to.
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
        end.store(true, Ordering::Relaxed);
        changed.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
    });
    for storm in storms {
        let failures = storm.failures.lock().unwrap();
        println!("{}: {} connections", storm.to, storm.connections());
        assert_eq!(*failures, [], "of {} connections to {}", storm.connections(), storm.to);
    }
}

/// Waits until every storm has made some more connections.
fn let_connect(storms: &[Storm<'_>]) {
    let before: Vec<u64> = storms.iter().map(Storm::connections).collect();
    eventually("connections", || {
        storms.iter().zip(&before).all(|(storm, before)| storm.connections() >= before + 10)
    });
}

#[test]
fn no_connection_fails_while_endpoints_come_and_go() {
    let network = Network::new(1);
    for family in Family::BOTH {
        // Those that are removed serve on: what is already on its way to them arrives.
        let all = remote_pods(family, 20, 8080);
        let _server = Server::start_all(&network.remote, &all);
        let ips = [1, 2, 3].map(|number| cluster_ip(family, number));
        let manifests = |turn: usize| {
            let count = COUNTS[turn % COUNTS.len()];
            // Not always the same ones.
            let endpoints: Vec<_> = all.iter().cycle().skip(turn * 3).take(count).copied().collect();
            list(&[
                Plain::new("changing", ips[0], &endpoints),
                Plain { sticky: true, ..Plain::new("sticky", ips[1], &endpoints) },
                Plain::new("untouched", ips[2], &all[..3]),
            ])
        };
        let mut node = Node::new(&network.node, family, &Options::default());
        node.replace(&manifests(0));
        let storms = ips.map(|ip| Storm::new(&network, SocketAddr::new(ip, 80)));
        during(&storms, || {
            for turn in 1..=CHANGES {
                node.replace(&manifests(turn));
                let_connect(&storms);
            }
        });
    }
}

/// A packet looks into one table after the other, and the endpoints may be moved behind its back.
#[test]
fn no_connection_fails_while_endpoints_change_tables_as_fast_as_they_can() {
    let network = Network::new(1);
    let family = Family::V4;
    let all = remote_pods(family, 16, 8080);
    let _server = Server::start_all(&network.remote, &all);
    let ip = cluster_ip(family, 1);
    let [many, one] = [&all[..], &all[..1]].map(|endpoints| list(&[Plain::new("web", ip, endpoints)]));
    let mut node = Node::new(&network.node, family, &Options::default());
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
fn no_connection_fails_while_the_proxy_starts_again() {
    let network = Network::new(1);
    for family in Family::BOTH {
        let all = remote_pods(family, 20, 8080);
        let _server = Server::start_all(&network.remote, &all);
        let ips = [1, 2].map(|number| cluster_ip(family, number));
        let manifests = list(&[
            Plain::new("web", ips[0], &all[..9]),
            Plain { sticky: true, ..Plain::new("sticky", ips[1], &all) },
        ]);
        let mut node = Node::start(&network.node, family, &Options::default(), &manifests).0;
        let sticks_to = || match ask(&network.client, Protocol::Tcp, SocketAddr::new(ips[1], 80)) {
            Answer::From { endpoint, .. } => endpoint,
            other => panic!("{other:?}"),
        };
        let before = sticks_to();
        let storms = ips.map(|ip| Storm::new(&network, SocketAddr::new(ip, 80)));
        during(&storms, || {
            for _ in 0..5 {
                drop(node);
                let_connect(&storms);
                let (again, outcome) = Node::start(&network.node, family, &Options::default(), &manifests);
                assert_eq!((outcome.full, outcome.added, outcome.deleted), (true, 0, 0));
                node = again;
                let_connect(&storms);
            }
        });
        assert_eq!(sticks_to(), before, "and clients stick to whom they stuck");
    }
}

/// With the nft variant a load is cut into several transactions: nothing that is reachable may be half-written.
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
            .map(|(name, number)| Plain::new(name, cluster_ip(family, number), endpoints))
            .collect();
        services.push(Plain::new("untouched", untouched, &all));
        list(&services)
    };
    let few = list(&[Plain::new("untouched", untouched, &all)]);
    let mut chains = Chains::new(&network.node, family, &Options::default(), Variant::Nft);
    chains.hold(&few);

    let storms = [Storm::new(&network, SocketAddr::new(untouched, 80))];
    let late = SocketAddr::new(cluster_ip(family, 1_000 + SERVICES - 1), 80);
    let (end, broken) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    during(&storms, || {
        std::thread::scope(|scope| {
            // One that arrives: from its first answer on there is no way back.
            scope.spawn(|| {
                network.pods[0].namespace.move_in();
                let mut arrived = false;
                while !end.load(Ordering::Relaxed) {
                    match ask_here(None, Protocol::Tcp, late, Duration::from_secs(5)) {
                        Answer::From { .. } => arrived = true,
                        failure if arrived => broken.lock().unwrap().push(failure),
                        _ => {}
                    }
                }
            });
            let batches = [many(&all[..2]), many(&all)].map(|manifests| {
                let outcome = chains.replace(&manifests);
                // Everything once more, over what is there.
                chains.rules.require_full();
                (outcome.restores, chains.replace(&manifests).restores)
            });
            println!("restores: {batches:?}");
            assert!(batches.iter().all(|(changed, full)| *changed > 1 && *full > 1), "{batches:?}");
            eventually("the service that arrives", || {
                matches!(ask(&network.client, Protocol::Tcp, late), Answer::From { .. })
            });
            end.store(true, Ordering::Relaxed);
        });
        chains.hold(&few);
        chains.rules.require_full();
        chains.hold(&few);
        let_connect(&storms);
    });
    assert_eq!(*broken.lock().unwrap(), [], "at {late}");
}
