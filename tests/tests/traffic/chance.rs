//! Every endpoint gets an equal share of the connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use kernel::nftables::connections;
use model::address::Family;
use model::names::Protocol;
use proxy::backend::Backend as _;
use testkit::manifests::{PlainService, list};
use testkit::network::Network;
use testkit::probe::{Answer, Server, probe_here};
use tests::matrix::ProxyUnderTest;
use tests::node::NftablesNode;
use tests::options::Options;

use crate::{cluster_ip, remote_pods};

const CONNECTIONS: u32 = 3_000;

/// The number of endpoints, and the 99.9th percentile of chi-square. Nine and fifty are no powers of two, so that their slot
/// ranges have a remainder.
const SIZES: [(u8, f64); 6] =
    [(3, 13.816), (5, 18.467), (7, 22.458), (9, 26.124), (20, 43.820), (50, 85.351)];

#[test]
fn endpoints_get_equal_shares() {
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
    let mut node = NftablesNode::new(&network.node, family, &Options::default());
    for (count, limit) in SIZES {
        let endpoints = remote_pods(family, count, 8080);
        let mut found = Vec::new();
        // One sample in a thousand exceeds the limit; three in a row do once in a billion.
        for attempt in 0..3 {
            let ip = cluster_ip(family, u16::from(count) + 256 * attempt);
            node.hold(&list(&[PlainService::new("web", ip, &endpoints)]));
            let chosen = connect(network, SocketAddr::new(ip, 80));
            assert_eq!(counted(network, &node), chosen, "the kernel's counters match the answers");
            found.push(chi_square(&endpoints, &chosen));
            if found[usize::from(attempt)] < limit {
                break;
            }
        }
        println!("{family}, {count} endpoints: chi-square {found:.1?}, limit {limit}");
        assert!(
            found.last().is_some_and(|found| *found < limit),
            "{count} endpoints: {found:?} exceed {limit}"
        );
    }
}

/// The number of answers of each endpoint.
fn connect(network: &Network, to: SocketAddr) -> BTreeMap<SocketAddr, u64> {
    network.pods[0].namespace.enter(|| {
        let mut chosen = BTreeMap::new();
        for _ in 0..CONNECTIONS {
            match probe_here(None, Protocol::Udp, to, Duration::from_secs(5)) {
                Answer::From { endpoint, .. } => *chosen.entry(endpoint).or_default() += 1,
                other => panic!("{to}: {other:?}"),
            }
        }
        chosen
    })
}

fn counted(network: &Network, node: &NftablesNode) -> BTreeMap<SocketAddr, u64> {
    let (family, owners) = (node.backend.table.family(), node.backend.counter_owners());
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
