//! Very large Services.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use testkit::manifests::{PlainService, list};
use testkit::network::Network;
use testkit::probe::{Answer, Server, probe_here};
use tests::node::NftablesNode;
use tests::options::Options;

use crate::{cluster_ip, remote_pods};

#[test]
fn a_service_may_have_a_thousand_endpoints_or_four_thousand_ports_or_the_longest_names() {
    let network = Network::new(1);
    for family in Family::BOTH {
        // Four ports of 250 pods; one listener serves all pods. The families use different ports: connections in TIME_WAIT
        // block the wildcard address of the other family.
        let ports = testkit::network::of(family, [9000..9004, 9100..9104]);
        let wildcard = testkit::network::of(family, ["0.0.0.0", "::"]).parse().unwrap();
        let listeners: Vec<_> = ports.clone().map(|port| SocketAddr::new(wildcard, port)).collect();
        let _server = Server::start_all(&network.remote, &listeners);
        let endpoints: Vec<_> = ports.flat_map(|port| remote_pods(family, 250, port)).collect();

        let mut node = NftablesNode::new(&network.node, family, &Options::default());
        let long = |letter: &str| letter.repeat(63);
        let (namespace, name, port_name) = (long("n"), long("s"), "p".repeat(58));
        let [crowded, wide, named] = [1, 2, 3].map(|number| cluster_ip(family, number));
        let services = [
            PlainService::new("crowded", crowded, &endpoints),
            PlainService { ports: 20_000..24_000, ..PlainService::new("wide", wide, &endpoints[..1]) },
            PlainService {
                namespace: &namespace,
                port_name: &port_name,
                ..PlainService::new(&name, named, &endpoints[..2])
            },
        ];
        node.replace(&list(&services));

        let answers = |to, times: usize| -> BTreeSet<SocketAddr> {
            network.pods[0].namespace.enter(|| {
                let connect = |_| probe_here(None, Protocol::Tcp, to, Duration::from_secs(5));
                (0..times)
                    .map(connect)
                    .map(|answer| match answer {
                        Answer::From { endpoint, .. } => endpoint,
                        other => panic!("{to}: {other:?}"),
                    })
                    .collect()
            })
        };
        let seen = answers(SocketAddr::new(crowded, 80), 300);
        assert!(seen.len() > 200, "300 connections reached only {} of 1,000 endpoints", seen.len());
        for port in [20_000, 21_234, 23_999] {
            assert_eq!(answers(SocketAddr::new(wide, port), 3), [endpoints[0]].into(), "port {port}");
        }
        assert_eq!(answers(SocketAddr::new(named, 80), 32), endpoints[..2].iter().copied().collect());

        let outcome = node.replace(&list(&[]));
        assert!(outcome.deleted > 10_000, "{outcome:?}");
    }
}
