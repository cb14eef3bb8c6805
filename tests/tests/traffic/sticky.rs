//! Session affinity: which endpoint a client gets, and which clients the kernel remembers.

use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::names::Protocol;
use netlink::nftables::NftablesSocket;
use testkit::lab::{Address, ClientPlace, Lab, NODE_PORT, Place, TARGET};
use testkit::manifests::{
    A, ALL, B, EndpointManifest, Manifest, PortManifest, R, S, ServiceManifest, web, write,
};
use testkit::network::of;
use testkit::probe::{Answer, probe_from};
use tests::node::NftablesNode;
use tests::options::Options;

const SECONDS: u32 = 10_800;
const CLIENTS: usize = 6;
const EXTERNAL: [(Address, u16); 3] =
    [(Address::ExternalIp, 80), (Address::LoadBalancerIp, 80), (Address::NodeIp, NODE_PORT)];
const EVERYWHERE: [(Address, u16); 4] = [
    (Address::ClusterIp, 80),
    (Address::NodeIp, NODE_PORT),
    (Address::ExternalIp, 80),
    (Address::LoadBalancerIp, 80),
];

/// A client of the lab's Services in one family.
struct Client<'a> {
    lab: &'a Lab,
    family: Family,
    from: ClientPlace,
    number: usize,
}

impl Client<'_> {
    fn connect(&self, protocol: Protocol, (address, port): (Address, u16)) -> IpAddr {
        let source = self.from.source(self.family, self.number);
        let to = SocketAddr::new(address.ip(self.family), port);
        match probe_from(self.lab.namespace(self.from), source, protocol, to) {
            Answer::From { endpoint, .. } => endpoint.ip(),
            other => panic!("{protocol} {to} from {source:?}: {other:?}"),
        }
    }

    /// Connects to all frontends, and returns the endpoint, which must always be the same.
    fn connect_all(&self, protocol: Protocol, at: &[(Address, u16)]) -> IpAddr {
        let answers: Vec<IpAddr> = at.iter().map(|to| self.connect(protocol, *to)).collect();
        let first = answers[0];
        assert!(
            answers.iter().all(|answer| *answer == first),
            "{protocol} {} client {}: {answers:?}",
            self.family,
            self.number
        );
        first
    }
}

fn manifests(services: impl IntoIterator<Item = ServiceManifest>, family: Family) -> String {
    write(&services.into_iter().map(Manifest::from).collect::<Vec<_>>(), family)
}

fn crowd(lab: &Lab, family: Family) -> Vec<Client<'_>> {
    (0..CLIENTS).map(|number| Client { lab, family, from: ClientPlace::Crowd, number }).collect()
}

/// All frontends twice, in an order that differs by client.
fn rotated(first: usize) -> Vec<(Address, u16)> {
    (0..EVERYWHERE.len() * 2).map(|number| EVERYWHERE[(first + number) % EVERYWHERE.len()]).collect()
}

/// The number of clients in the affinity set.
fn remembered(lab: &Lab, family: Family) -> usize {
    let family = of(family, [netlink::Family::Ipv4, netlink::Family::Ipv6]);
    lab.network.node.enter(|| {
        let mut connection = NftablesSocket::open().unwrap();
        connection.elements(family, "kube-proxy", "affinity", |_| ()).unwrap().len()
    })
}

#[test]
fn a_client_gets_the_same_endpoint_at_every_address_of_a_service_port() {
    let lab = Lab::new();
    for family in Family::BOTH {
        let manifests = manifests([web(&[A, B, R, S]).sticky(SECONDS)], family);
        let (mut node, _) = NftablesNode::start(&lab.network.node, family, &Options::default(), &manifests);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let clients = crowd(&lab, family);
            let connect = |client: &Client<'_>| client.connect_all(protocol, &rotated(client.number));
            let before: Vec<IpAddr> = clients.iter().map(connect).collect();
            // A new process finds the affinity set of this one.
            drop(node);
            let (again, outcome) =
                NftablesNode::start(&lab.network.node, family, &Options::default(), &manifests);
            assert_eq!((outcome.is_full, outcome.added, outcome.deleted), (true, 0, 0));
            node = again;
            assert_eq!(clients.iter().map(connect).collect::<Vec<_>>(), before, "{protocol} {family}");
        }
    }
}

#[test]
fn with_external_policy_local_a_client_keeps_its_endpoint_where_the_policy_allows_it() {
    let lab = Lab::new();
    for family in Family::BOTH {
        let manifests = manifests([web(&[A, B, R, S]).sticky(SECONDS).external_local()], family);
        let (mut node, _) = NftablesNode::start(&lab.network.node, family, &Options::default(), &manifests);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            // The endpoint of external traffic is valid for the cluster IP, too.
            for client in crowd(&lab, family) {
                let here = client.connect_all(protocol, &EXTERNAL);
                assert!([Place::PodA, Place::PodB].map(|place| place.ip(family)).contains(&here));
                assert_eq!(client.connect_all(protocol, &rotated(client.number)), here);
            }
            // The policy does not apply to pods.
            for from in [ClientPlace::Pod, ClientPlace::Node] {
                let client = Client { lab: &lab, family, from, number: 0 };
                // The node's source address depends on the destination.
                let at = if from == ClientPlace::Node { &EXTERNAL[..2] } else { &EVERYWHERE };
                client.connect_all(protocol, &[at, at].concat());
            }
        }
        // A client whose cluster IP endpoint is remote gets a second one for external traffic, and keeps both.
        let elsewhere = manifests_of_remote_first(family);
        node.replace(&elsewhere);
        let client = Client { lab: &lab, family, from: ClientPlace::Crowd, number: CLIENTS + 1 };
        let cluster_ip = (Address::ClusterIp, 80);
        let there = client.connect(Protocol::Tcp, cluster_ip);
        assert_eq!(there, Place::Remote(5).ip(family));
        node.replace(&manifests);
        let here = client.connect_all(Protocol::Tcp, &EXTERNAL);
        assert_ne!(here, there);
        drop(node);
        let _node = NftablesNode::start(&lab.network.node, family, &Options::default(), &manifests).0;
        for _ in 0..4 {
            assert_eq!(client.connect(Protocol::Tcp, cluster_ip), there);
            assert_eq!(client.connect_all(Protocol::Tcp, &EXTERNAL), here);
        }
    }
}

fn manifests_of_remote_first(family: Family) -> String {
    manifests([web(&[R]).sticky(SECONDS).external_local()], family)
}

#[test]
fn clients_of_a_removed_endpoint_move_to_another_one_without_a_walk_over_the_affinity_set() {
    let lab = Lab::new();
    for family in Family::BOTH {
        let all = [A, B, R, S];
        let serve = |endpoints: &[EndpointManifest]| manifests([web(endpoints).sticky(SECONDS)], family);
        let mut node = NftablesNode::start(&lab.network.node, family, &Options::default(), &serve(&all)).0;
        for (protocol, clients) in
            [Protocol::Tcp, Protocol::Udp].map(|protocol| (protocol, crowd(&lab, family)))
        {
            let before: Vec<IpAddr> =
                clients.iter().map(|client| client.connect_all(protocol, &EVERYWHERE)).collect();
            let known = remembered(&lab, family);
            for (client, old) in clients.iter().zip(&before) {
                let rest: Vec<EndpointManifest> =
                    all.into_iter().filter(|endpoint| endpoint.place.ip(family) != *old).collect();
                let outcome = node.replace(&serve(&rest));
                assert!(!outcome.is_full);
                assert_eq!(remembered(&lab, family), known, "the affinity set is not walked");
                let new = client.connect_all(protocol, &rotated(client.number));
                assert_ne!(new, *old);
                node.replace(&serve(&all));
                assert_eq!(
                    client.connect_all(protocol, &rotated(client.number)),
                    new,
                    "the client stays with the new endpoint"
                );
            }
        }
    }
}

/// A frontend without affinity, at a port that another Service has as its node port.
#[test]
fn a_frontend_without_affinity_at_another_service_s_node_port_records_no_client() {
    let lab = Lab::new();
    let options = Options::default();
    let restricted = Options { node_port_addresses: &["192.0.2.0/24", "2001:db8:2::/64"], ..options.clone() };
    for (family, options) in Family::BOTH.into_iter().flat_map(|it| [(it, &options), (it, &restricted)]) {
        let port = PortManifest { number: NODE_PORT, target: TARGET, node_port: None, protocols: ALL };
        let other = ServiceManifest { ports: vec![port], ..ServiceManifest::other(&[A, B, R, S]) };
        let manifests = manifests([web(&[A, B, R, S]).sticky(SECONDS), other], family);
        let _node = NftablesNode::start(&lab.network.node, family, options, &manifests).0;
        let client = Client { lab: &lab, family, from: ClientPlace::Outside, number: 0 };
        let before = remembered(&lab, family);
        for _ in 0..4 {
            client.connect(Protocol::Tcp, (Address::OtherClusterIp, NODE_PORT));
        }
        assert_eq!(remembered(&lab, family), before);
        client.connect_all(Protocol::Tcp, &EVERYWHERE);
        assert_eq!(remembered(&lab, family), before + 1);
    }
}
