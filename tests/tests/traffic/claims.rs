//! Services that claim the same frontend.

use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::names::Protocol;
use testkit::manifests::{PlainService, list};
use testkit::network::{Network, of, remote_pod_ip};
use testkit::probe::{Answer, Server, probe};
use tests::node::NftablesNode;
use tests::options::Options;

use crate::{cluster_ip, remote_pods};

/// The last of these has the first one's name and the second one's namespace.
const CLAIMANTS: [(&str, &str); 3] = [("alpha", "web"), ("beta", "app"), ("beta", "web")];

#[test]
fn the_first_service_by_name_owns_a_frontend_until_it_is_deleted() {
    let network = Network::new(1);
    for family in Family::BOTH {
        let endpoints = remote_pods(family, 3, 8080);
        let _server = Server::start_all(&network.remote, &endpoints);
        let external_ip: IpAddr = of(family, ["203.0.113.5", "2001:db8:5::5"]).parse().unwrap();
        let claimant = |number: usize| PlainService {
            namespace: CLAIMANTS[number].0,
            external_ip: Some(external_ip),
            ..PlainService::new(
                CLAIMANTS[number].1,
                cluster_ip(family, u16::try_from(number).unwrap()),
                &endpoints[number..=number],
            )
        };
        let mut node = NftablesNode::new(&network.node, family, &Options::default());
        let answering = |ip| answering_endpoint(&network, ip);
        let endpoint = |number: usize| Some(remote_pod_ip(family, u8::try_from(number).unwrap() + 1));

        // The order of creation does not matter, only the name.
        for (present, winner) in
            [(&[2][..], 2), (&[2, 1], 1), (&[1, 0, 2], 0), (&[2, 1], 1), (&[0, 2, 1], 0), (&[2], 2)]
        {
            let services: Vec<_> = present.iter().map(|number| claimant(*number)).collect();
            node.replace(&list(&services));
            assert_eq!(answering(external_ip), endpoint(winner), "{present:?}");
            for number in present {
                let own = cluster_ip(family, u16::try_from(*number).unwrap());
                assert_eq!(answering(own), endpoint(*number), "each Service owns its cluster IP");
            }
        }

        // A Service without endpoints keeps its claim.
        node.replace(&list(&[PlainService { endpoints: &[], ..claimant(0) }, claimant(1)]));
        assert_eq!(answering(external_ip), None);
        assert_eq!(answering(cluster_ip(family, 1)), endpoint(1));
        node.replace(&list(&[claimant(1)]));
        assert_eq!(answering(external_ip), endpoint(1));
    }
}

/// The thief comes first by name in all cases.
#[test]
fn a_service_keeps_its_cluster_ip_and_frontends_that_it_claimed_first() {
    const EARLY: Option<&str> = Some("2026-11-16T10:00:00Z");
    const LATE: Option<&str> = Some("2026-11-16T10:00:01Z");
    let network = Network::new(1);
    for family in Family::BOTH {
        let endpoints = remote_pods(family, 2, 8080);
        let _server = Server::start_all(&network.remote, &endpoints);
        let external_ip: IpAddr = of(family, ["203.0.113.5", "2001:db8:5::5"]).parse().unwrap();
        let [mine, other] = [0, 1].map(|number| cluster_ip(family, number));
        let owner = PlainService {
            created: EARLY,
            external_ip: Some(external_ip),
            ..PlainService::new("victim", mine, &endpoints[..1])
        };
        let thief = |created, ip| PlainService {
            namespace: "a",
            created,
            external_ip: Some(ip),
            ..PlainService::new("thief", other, &endpoints[1..])
        };
        let endpoint = |number: u8| Some(remote_pod_ip(family, number));
        let mut node = NftablesNode::new(&network.node, family, &Options::default());
        for (objects, at, winner) in [
            ([owner.clone(), thief(LATE, external_ip)], external_ip, 1),
            ([owner.clone(), thief(LATE, mine)], mine, 1),
            ([PlainService { created: LATE, ..owner.clone() }, thief(EARLY, mine)], mine, 1),
            ([PlainService { created: LATE, ..owner.clone() }, thief(EARLY, external_ip)], external_ip, 2),
            ([owner.clone(), thief(EARLY, external_ip)], external_ip, 2),
            ([PlainService { created: None, ..owner.clone() }, thief(None, mine)], mine, 1),
            ([PlainService { created: None, ..owner.clone() }, thief(None, external_ip)], external_ip, 2),
            ([owner.clone(), thief(None, external_ip)], external_ip, 1),
        ] {
            let what = objects.each_ref().map(|it| (it.name, it.created, it.external_ip));
            node.replace(&list(&objects));
            assert_eq!(answering_endpoint(&network, at), endpoint(winner), "{what:?}");
        }
    }
}

#[test]
fn an_endpoint_is_reachable_though_another_service_claims_its_address_as_an_external_ip() {
    let network = Network::new(1);
    for family in Family::BOTH {
        let endpoints = remote_pods(family, 2, 80);
        let _server = Server::start_all(&network.remote, &endpoints);
        let served = PlainService::new("served", cluster_ip(family, 0), &endpoints[..1]);
        let claiming = PlainService {
            external_ip: Some(endpoints[0].ip()),
            ..PlainService::new("claiming", cluster_ip(family, 1), &endpoints[1..])
        };
        let mut node = NftablesNode::new(&network.node, family, &Options::default());
        node.replace(&list(&[served, claiming]));
        assert_eq!(answering_endpoint(&network, cluster_ip(family, 0)), Some(endpoints[0].ip()));
        assert_eq!(
            answering_endpoint(&network, endpoints[0].ip()),
            Some(endpoints[1].ip()),
            "the claim itself holds"
        );
    }
}

/// The endpoint that answers at `ip`; `None` if it refuses.
fn answering_endpoint(network: &Network, ip: IpAddr) -> Option<IpAddr> {
    let answers = (0..16).map(|_| match probe(&network.client, Protocol::Tcp, SocketAddr::new(ip, 80)) {
        Answer::From { endpoint, .. } => Some(endpoint.ip()),
        Answer::Refused => None,
        other => panic!("{ip}: {other:?}"),
    });
    let mut answers: Vec<_> = answers.collect();
    answers.dedup();
    assert_eq!(answers.len(), 1, "several Services answer: {answers:?}");
    answers[0]
}
