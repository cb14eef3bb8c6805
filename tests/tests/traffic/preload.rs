//! Services that are loaded before the lists of the API server have ended.

use std::net::SocketAddr;

use model::address::Family;
use model::names::Protocol;
use testkit::manifests::{PlainService, list};
use testkit::network::Network;
use testkit::probe::{Answer, Server, probe};
use tests::node::NftablesNode;
use tests::options::Options;

use crate::{cluster_ip, remote_pods};

#[test]
fn no_service_is_served_before_all_are() {
    let network = Network::new(1);
    for family in Family::BOTH {
        let endpoints = remote_pods(family, 2, 8080);
        let _server = Server::start_all(&network.remote, &endpoints);
        let [first, second, empty] = [1, 2, 3].map(|number| cluster_ip(family, number));
        let answer = |ip| probe(&network.pods[0].namespace, Protocol::Tcp, SocketAddr::new(ip, 80));
        let answering = |ip| match answer(ip) {
            Answer::From { endpoint, .. } => endpoint,
            other => panic!("{ip}: {other:?}"),
        };

        let mut node = NftablesNode::open(&network.node, family, &Options::default());
        node.preload(&list(&[PlainService::new("first", first, &endpoints[..1])]));
        node.preload(&list(&[PlainService::new("second", second, &endpoints[1..])]));
        for ip in [first, second, empty] {
            assert_eq!(answer(ip), Answer::LeftNode, "{ip}");
        }
        node.apply(&list(&[PlainService::new("empty", empty, &[])]));
        assert_eq!([answering(first), answering(second)], [endpoints[0], endpoints[1]]);
        assert_eq!(answer(empty), Answer::Refused);
    }
}
