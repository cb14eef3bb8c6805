//! Services beyond all measure.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use testkit::network::Network;
use testkit::talk::{Answer, Server, ask_here};
use tests::manifests::{Plain, list};
use tests::node::Node;
use tests::options::Options;

use crate::{cluster_ip, remote_pods};

#[test]
fn a_service_may_have_a_thousand_endpoints_or_four_thousand_ports_or_the_longest_names() {
    let network = Network::new(1);
    for family in Family::BOTH {
        // Four ports of 250 pods; one listener hears what is said to all pods. Others for each family, since connections
        // that linger keep a port from the wildcard address of the other.
        let ports = testkit::network::of(family, [9000..9004, 9100..9104]);
        let everyone = testkit::network::of(family, ["0.0.0.0", "::"]).parse().unwrap();
        let listeners: Vec<_> = ports.clone().map(|port| SocketAddr::new(everyone, port)).collect();
        let _server = Server::start_all(&network.remote, &listeners);
        let endpoints: Vec<_> = ports.flat_map(|port| remote_pods(family, 250, port)).collect();

        let mut node = Node::new(&network.node, family, &Options::default());
        let long = |letter: &str| letter.repeat(63);
        let (namespace, name, port_name) = (long("n"), long("s"), "p".repeat(58));
        let [crowded, wide, named] = [1, 2, 3].map(|number| cluster_ip(family, number));
        let services = [
            Plain::new("crowded", crowded, &endpoints),
            Plain { ports: 20_000..24_000, ..Plain::new("wide", wide, &endpoints[..1]) },
            Plain {
                namespace: &namespace,
                port_name: &port_name,
                ..Plain::new(&name, named, &endpoints[..2])
            },
        ];
        node.replace(&list(&services));

        let answers = |to, times: usize| -> BTreeSet<SocketAddr> {
            network.pods[0].namespace.enter(|| {
                let ask = |_| ask_here(None, Protocol::Tcp, to, Duration::from_secs(5));
                (0..times)
                    .map(ask)
                    .map(|answer| match answer {
                        Answer::From { endpoint, .. } => endpoint,
                        other => panic!("{to}: {other:?}"),
                    })
                    .collect()
            })
        };
        let seen = answers(SocketAddr::new(crowded, 80), 300);
        assert!(seen.len() > 200, "300 choices among 1,000 endpoints hit only {}", seen.len());
        for port in [20_000, 21_234, 23_999] {
            assert_eq!(answers(SocketAddr::new(wide, port), 3), [endpoints[0]].into(), "port {port}");
        }
        assert_eq!(answers(SocketAddr::new(named, 80), 32), endpoints[..2].iter().copied().collect());

        let outcome = node.replace(&list(&[]));
        assert!(outcome.deleted > 10_000, "{outcome:?}");
    }
}
