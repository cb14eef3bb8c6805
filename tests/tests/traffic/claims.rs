//! Services that ask for the same frontend.

use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::names::Protocol;
use tests::manifests::{Plain, list};
use tests::network::{Network, of, remote_pod_ip};
use tests::node::Node;
use tests::options::Options;
use tests::talk::{Answer, Server, ask};

use crate::{cluster_ip, remote_pods};

/// The last of these has the first one's name and the second one's namespace.
const CLAIMANTS: [(&str, &str); 3] = [("alpha", "web"), ("beta", "app"), ("beta", "web")];

#[test]
fn the_first_by_name_has_a_frontend_until_it_goes() {
    let network = Network::new(1);
    for family in Family::BOTH {
        let endpoints = remote_pods(family, 3, 8080);
        let _server = Server::start_all(&network.remote, &endpoints);
        let external_ip: IpAddr = of(family, ["203.0.113.5", "2001:db8:5::5"]).parse().unwrap();
        let claimant = |number: usize| Plain {
            namespace: CLAIMANTS[number].0,
            external_ip: Some(external_ip),
            ..Plain::new(
                CLAIMANTS[number].1,
                cluster_ip(family, u16::try_from(number).unwrap()),
                &endpoints[number..=number],
            )
        };
        let mut node = Node::new(&network.node, family, &Options::default());
        let who = |ip| {
            let answers = (0..16).map(|_| {
                let protocol = Protocol::Tcp;
                match ask(&network.client, protocol, SocketAddr::new(ip, 80)) {
                    Answer::From { endpoint, .. } => Some(endpoint.ip()),
                    Answer::Refused => None,
                    other => panic!("{ip}: {other:?}"),
                }
            });
            let mut answers: Vec<_> = answers.collect();
            answers.dedup();
            assert_eq!(answers.len(), 1, "one service has the address: {answers:?}");
            answers[0]
        };
        let endpoint = |number: usize| Some(remote_pod_ip(family, u8::try_from(number).unwrap() + 1));

        // They come in no particular order, and who comes later may come first.
        for (present, winner) in
            [(&[2][..], 2), (&[2, 1], 1), (&[1, 0, 2], 0), (&[2, 1], 1), (&[0, 2, 1], 0), (&[2], 2)]
        {
            let services: Vec<_> = present.iter().map(|number| claimant(*number)).collect();
            let outcome = node.replace(&list(&services));
            assert_eq!(who(external_ip), endpoint(winner), "{present:?}");
            let contested = usize::from(present.len() > 1) * 2;
            assert_eq!(outcome.contested.len(), contested, "{present:?}: once for TCP, once for UDP");
            for number in present {
                let own = cluster_ip(family, u16::try_from(*number).unwrap());
                assert_eq!(who(own), endpoint(*number), "a cluster IP is nobody else's");
            }
        }

        // Having no endpoints is no reason to give up a claim.
        node.replace(&list(&[Plain { endpoints: &[], ..claimant(0) }, claimant(1)]));
        assert_eq!(who(external_ip), None);
        assert_eq!(who(cluster_ip(family, 1)), endpoint(1));
        node.replace(&list(&[claimant(1)]));
        assert_eq!(who(external_ip), endpoint(1));
    }
}
