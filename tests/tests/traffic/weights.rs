//! Endpoints get shares of the connections in proportion to their weights, in every mode.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use kernel::iptables::Variant;
use model::address::Family;
use model::names::Protocol;
use testkit::echo;
use testkit::manifests::{PlainService, list};
use testkit::network::Network;
use testkit::probe::{Answer, Server, UdpFlow};
use tests::chains::IptablesNode;
use tests::matrix::StartProxy;
use tests::node::NftablesNode;
use tests::options::Options;
use tests::servers::IpvsNode;

use crate::chance::{chi_square, connect, endpoints};
use crate::changes::{Storm, during, wait_for_connections};
use crate::cluster_ip;

#[test]
fn nftables_follows_weights() {
    follows_weights(12, &|namespace, family, options| {
        Box::new(NftablesNode::new(namespace, family, options))
    });
}

#[test]
fn iptables_over_nft_follows_weights() {
    follows_weights(12, &|namespace, family, options| {
        Box::new(IptablesNode::new(namespace, family, options, Variant::Nft))
    });
}

#[test]
fn legacy_iptables_follows_weights() {
    follows_weights(12, &|namespace, family, options| {
        Box::new(IptablesNode::new(namespace, family, options, Variant::Legacy))
    });
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_follows_weights() {
    // Its scheduler is not random: after one turn, every endpoint has its share.
    follows_weights(1, &|namespace, family, options| Box::new(IpvsNode::new(namespace, family, options)));
}

/// Makes `turns` connections for each unit of weight, and a few more if there are few.
fn follows_weights(turns: u32, start: StartProxy<'_>) {
    let network = Network::new(1);
    // Any numbers will do, if they are not alike.
    let random: Vec<u16> =
        (0..100u32).map(|number| u16::try_from(number * number * 7 % 31 % 9 + 1).unwrap()).collect();
    // The weights, and the 99.9th percentile of chi-square.
    let samples: [(&[u16], f64); 3] = [(&[1, 2, 5], 13.816), (&[0, 1], 0.1), (&random, 148.230)];
    for family in Family::BOTH {
        let all = endpoints(family, 100);
        let _server = Server::start_all(&network.remote, &all);
        let mut proxy = start(&network.node, family, &Options::default());
        for (protocol, first) in [(Protocol::Tcp, 100), (Protocol::Udp, 200)] {
            for ((weights, limit), number) in samples.into_iter().zip(first..) {
                let sum: u32 = weights.iter().map(|weight| u32::from(*weight)).sum();
                let connections = turns * sum.max(80).next_multiple_of(sum);
                let endpoints = &all[..weights.len()];
                let mut found = Vec::new();
                // One sample in a thousand exceeds the limit; three in a row do once in a billion.
                while found.len() < 3 && found.last().is_none_or(|found| *found > limit) {
                    let attempt = u16::try_from(found.len()).unwrap();
                    let ip = cluster_ip(family, number + 1_000 * attempt);
                    let web = PlainService { weights, ..PlainService::new("web", ip, endpoints) };
                    proxy.hold(&list(&[web]));
                    let chosen = connect(&network, protocol, SocketAddr::new(ip, 80), connections);
                    found.push(deviation(endpoints, weights, &chosen));
                }
                let count = weights.len();
                println!(
                    "{family}, {protocol}, {count} endpoints, {connections} connections: chi-square {found:.1?}, limit {limit}"
                );
                assert!(
                    found.last().is_some_and(|found| *found <= limit),
                    "{weights:?}: {found:?} exceed {limit}"
                );
            }
        }
    }
}

fn deviation(endpoints: &[SocketAddr], weights: &[u16], chosen: &BTreeMap<SocketAddr, u64>) -> f64 {
    let weighted = || endpoints.iter().zip(weights).filter(|(_, weight)| **weight > 0);
    let used: Vec<SocketAddr> = weighted().map(|(endpoint, _)| *endpoint).collect();
    assert!(
        chosen.keys().all(|endpoint| used.contains(endpoint)),
        "an endpoint of weight 0 is chosen: {chosen:?}"
    );
    let weights: Vec<u16> = weighted().map(|(_, weight)| *weight).collect();
    chi_square(&used, weights, chosen)
}

#[test]
fn nftables_fails_no_connection_while_weights_change() {
    fails_no_connection(30, true, &|namespace, family, options| {
        Box::new(NftablesNode::new(namespace, family, options))
    });
}

#[test]
fn iptables_over_nft_fails_no_connection_while_weights_change() {
    fails_no_connection(30, true, &|namespace, family, options| {
        Box::new(IptablesNode::new(namespace, family, options, Variant::Nft))
    });
}

#[test]
fn legacy_iptables_fails_no_connection_while_weights_change() {
    fails_no_connection(6, true, &|namespace, family, options| {
        Box::new(IptablesNode::new(namespace, family, options, Variant::Legacy))
    });
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_fails_no_connection_while_weights_change() {
    fails_no_connection(6, false, &|namespace, family, options| {
        Box::new(IpvsNode::new(namespace, family, options))
    });
}

/// Weights change, also to zero and back, under load; a connection to an endpoint whose weight becomes zero goes on.
fn fails_no_connection(changes: usize, keeps_udp: bool, start: StartProxy<'_>) {
    const WEIGHTS: [[u16; 3]; 6] =
        [[0, 1, 1], [1, 1, 1], [1, 0, 3], [0, 0, 700], [100, 0, 0], [1, 2, 65_535]];
    let network = Network::new(1);
    for family in Family::BOTH {
        let all = endpoints(family, 3);
        let _server = Server::start_all(&network.remote, &all);
        let [web, sticky] = [1, 2].map(|number| cluster_ip(family, number));
        let manifests = |weights: &[u16]| {
            let service = |name, ip| PlainService { weights, ..PlainService::new(name, ip, &all) };
            list(&[service("web", web), PlainService { sticky: true, ..service("sticky", sticky) }])
        };
        let mut proxy = start(&network.node, family, &Options::default());
        proxy.hold(&manifests(&[1, 0, 0]));
        let flow = network.client.enter(|| UdpFlow::open(None, SocketAddr::new(web, 80)));
        // IPVS ends the flows of UDP, and may lose a packet, as when an endpoint goes.
        let is_answered_by_the_first = || match flow.probe(Duration::from_secs(5)) {
            _ if !keeps_udp => {}
            Answer::From { endpoint, .. } => assert_eq!(endpoint, all[0]),
            other => panic!("{other:?}"),
        };
        is_answered_by_the_first();
        let storms = [web, sticky].map(|ip| {
            let storm = Storm::new(&network, SocketAddr::new(ip, 80));
            if keeps_udp { storm } else { storm.over_tcp() }
        });
        during(&storms, || {
            for weights in WEIGHTS.iter().cycle().take(changes) {
                proxy.hold(&manifests(weights));
                wait_for_connections(&storms);
                is_answered_by_the_first();
            }
        });
    }
}

#[test]
fn nftables_keeps_established_connections_to_an_endpoint_that_is_drained() {
    keeps_established_connections(&|namespace, family, options| {
        Box::new(NftablesNode::new(namespace, family, options))
    });
}

#[test]
fn iptables_keeps_established_connections_to_an_endpoint_that_is_drained() {
    keeps_established_connections(&|namespace, family, options| {
        Box::new(IptablesNode::new(namespace, family, options, Variant::Nft))
    });
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_keeps_established_connections_to_an_endpoint_that_is_drained() {
    keeps_established_connections(&|namespace, family, options| {
        Box::new(IpvsNode::new(namespace, family, options))
    });
}

/// A connection over TCP is answered while the weight of its endpoint becomes zero, and comes back.
fn keeps_established_connections(start: StartProxy<'_>) {
    let network = Network::new(1);
    for family in Family::BOTH {
        let all = endpoints(family, 2);
        all.iter().for_each(|endpoint| echo::serve(&network.remote, *endpoint));
        let ip = cluster_ip(family, 1);
        let mut proxy = start(&network.node, family, &Options::default());
        let mut hold = |weights: &[u16]| {
            proxy.hold(&list(&[PlainService { weights, ..PlainService::new("web", ip, &all) }]));
        };
        let connect = || network.client.enter(|| TcpStream::connect(SocketAddr::new(ip, 80))).unwrap();
        let is_answered = |mut connection: &TcpStream| {
            connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            connection.write_all(b"still there?").unwrap();
            let mut answer = [0; 12];
            connection.read_exact(&mut answer).unwrap();
        };
        hold(&[1, 0]);
        let first = connect();
        is_answered(&first);
        for weights in [[0, 1], [0, 0], [1, 1], [0, 7]] {
            hold(&weights);
            is_answered(&first);
            is_answered(&connect());
        }
    }
}
