//! Every endpoint gets its share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use kernel::nftables::connections;
use model::address::Family;
use model::names::Protocol;
use testkit::network::Network;
use testkit::talk::{Answer, Server, ask_here};
use tests::manifests::{Plain, list};
use tests::matrix::Backend;
use tests::node::Node;
use tests::options::Options;

use crate::{cluster_ip, remote_pods};

const CONNECTIONS: u32 = 3_000;

/// How many endpoints, and what chi-square stays below in 999 of 1,000 samples. Nine and fifty do not fill their tables.
const SIZES: [(u8, f64); 6] =
    [(3, 13.816), (5, 18.467), (7, 22.458), (9, 26.124), (20, 43.820), (50, 85.351)];

#[test]
fn endpoints_are_chosen_equally_often() {
    let network = Network::new(1);
    std::thread::scope(|scope| {
        for family in Family::BOTH {
            let network = &network;
            scope.spawn(move || choose(network, family));
        }
    });
}

fn choose(network: &Network, family: Family) {
    let _server = Server::start_all(&network.remote, &remote_pods(family, 50, 8080));
    let mut node = Node::new(&network.node, family, &Options::default());
    for (count, limit) in SIZES {
        let endpoints = remote_pods(family, count, 8080);
        let mut found = Vec::new();
        // One sample in a thousand is beyond the limit; of three, one in a billion.
        for attempt in 0..3 {
            let ip = cluster_ip(family, u16::from(count) + 256 * attempt);
            node.hold(&list(&[Plain::new("web", ip, &endpoints)]));
            let chosen = connect(network, SocketAddr::new(ip, 80));
            assert_eq!(counted(network, &node), chosen, "the kernel counts what the clients see");
            found.push(chi_square(&endpoints, &chosen));
            if found[usize::from(attempt)] < limit {
                break;
            }
        }
        println!("{family}, {count} endpoints: chi-square {found:.1?}, limit {limit}");
        assert!(found.last().is_some_and(|found| *found < limit), "{count}: {found:?}, not below {limit}");
    }
}

/// Who answered how often.
fn connect(network: &Network, to: SocketAddr) -> BTreeMap<SocketAddr, u64> {
    network.pods[0].namespace.enter(|| {
        let mut chosen = BTreeMap::new();
        for _ in 0..CONNECTIONS {
            match ask_here(None, Protocol::Udp, to, Duration::from_secs(5)) {
                Answer::From { endpoint, .. } => *chosen.entry(endpoint).or_default() += 1,
                other => panic!("{to}: {other:?}"),
            }
        }
        chosen
    })
}

fn counted(network: &Network, node: &Node) -> BTreeMap<SocketAddr, u64> {
    let (family, owners) = (node.table.family(), node.table.owners());
    let counted = network.node.enter(|| connections(family, &owners)).unwrap();
    counted
        .into_iter()
        .filter(|counted| counted.count > 0)
        .filter_map(|counted| {
            let (ip, port) = counted.endpoint?;
            Some((SocketAddr::new(ip, port.get()), counted.count))
        })
        .collect()
}

fn chi_square(endpoints: &[SocketAddr], chosen: &BTreeMap<SocketAddr, u64>) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let share = f64::from(CONNECTIONS) / endpoints.len() as f64;
    let each = endpoints.iter().map(|endpoint| chosen.get(endpoint).copied().unwrap_or(0));
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    each.map(|count| (count as f64 - share).powi(2) / share).sum()
}
