//! Every endpoint gets an equal share of the connections.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
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

/// The number of endpoints, and the 99.9th percentile of chi-square. The slot ranges of the last three have gaps.
const SIZES: [(u16, f64); 7] =
    [(2, 10.828), (3, 13.816), (9, 26.124), (13, 32.909), (20, 43.820), (100, 148.230), (1_000, 1_142.848)];

/// Above this number of endpoints, none of them answers, and the kernel counts the connections.
const ANSWERING: u8 = 20;

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
    let _server = Server::start_all(&network.remote, &endpoints(family, ANSWERING.into()));
    let mut node = NftablesNode::new(&network.node, family, &Options::default());
    for (count, limit) in SIZES {
        let endpoints = endpoints(family, count);
        let mut found = Vec::new();
        // One sample in a thousand exceeds the limit; three in a row do once in a billion.
        for attempt in 0..3 {
            let ip = cluster_ip(family, count + 2_000 * attempt);
            node.hold(&list(&[PlainService::new("web", ip, &endpoints)]));
            let to = SocketAddr::new(ip, 80);
            let chosen = if count <= ANSWERING.into() {
                let chosen = connect(network, Protocol::Udp, to, CONNECTIONS);
                assert_eq!(counted(network, &node), chosen, "the kernel's counters match the answers");
                chosen
            } else {
                send(network, to, 20 * count);
                counted(network, &node)
            };
            found.push(chi_square(&endpoints, std::iter::repeat(1), &chosen));
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

pub fn endpoints(family: Family, count: u16) -> Vec<SocketAddr> {
    let ports = (8080..).take(usize::from(count.div_ceil(ANSWERING.into())));
    let pods = remote_pods(family, ANSWERING, 8080);
    let all = ports.flat_map(|port| pods.iter().map(move |pod| SocketAddr::new(pod.ip(), port)));
    all.take(count.into()).collect()
}

/// Sends this number of packets, each from a port of its own.
fn send(network: &Network, to: SocketAddr, count: u16) {
    let pod = &network.pods[0];
    pod.namespace.enter(|| {
        for port in (1_024..).take(count.into()) {
            let from = SocketAddr::new(pod.ip(Family::of(to.ip())), port);
            UdpSocket::bind(from).unwrap().send_to(b"x", to).unwrap();
        }
    });
}

/// The number of answers of each endpoint.
pub fn connect(
    network: &Network,
    protocol: Protocol,
    to: SocketAddr,
    connections: u32,
) -> BTreeMap<SocketAddr, u64> {
    network.pods[0].namespace.enter(|| {
        let mut chosen = BTreeMap::new();
        for _ in 0..connections {
            match probe_here(None, protocol, to, Duration::from_secs(5)) {
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

/// The deviation from shares in proportion to weights, none of which is zero.
#[expect(clippy::cast_precision_loss, reason = "a few thousand")]
pub fn chi_square(
    endpoints: &[SocketAddr],
    weights: impl IntoIterator<Item = u16, IntoIter: Clone>,
    chosen: &BTreeMap<SocketAddr, u64>,
) -> f64 {
    let (all, weights) = (chosen.values().sum::<u64>() as f64, weights.into_iter().map(f64::from));
    let sum: f64 = weights.clone().take(endpoints.len()).sum();
    let each = endpoints.iter().map(|endpoint| chosen.get(endpoint).copied().unwrap_or(0) as f64);
    each.zip(weights.map(|weight| all * weight / sum))
        .map(|(count, share)| (count - share).powi(2) / share)
        .sum()
}
