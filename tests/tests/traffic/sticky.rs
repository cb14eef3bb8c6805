//! Session affinity: who sticks to what, and what is kept of it.

use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::names::Protocol;
use netlink::nftables::Connection;
use testkit::lab::{Address, Lab, NODE_PORT, Place, TARGET, Who};
use testkit::network::of;
use testkit::talk::{Answer, ask_from};
use tests::manifests::{A, ALL, B, Endpoint, Object, Port, R, S, Service, web, write};
use tests::node::Node;
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

/// A client that asks the services of the lab in one family.
struct Client<'a> {
    lab: &'a Lab,
    family: Family,
    who: Who,
    number: usize,
}

impl Client<'_> {
    fn ask(&self, protocol: Protocol, (address, port): (Address, u16)) -> IpAddr {
        let source = self.who.source(self.family, self.number);
        let to = SocketAddr::new(address.ip(self.family), port);
        match ask_from(self.lab.namespace(self.who), source, protocol, to) {
            Answer::From { endpoint, .. } => endpoint.ip(),
            other => panic!("{protocol} {to} from {source:?}: {other:?}"),
        }
    }

    /// Where it gets to at all of these, which is the same endpoint each time.
    fn ask_all(&self, protocol: Protocol, at: &[(Address, u16)]) -> IpAddr {
        let answers: Vec<IpAddr> = at.iter().map(|to| self.ask(protocol, *to)).collect();
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

fn manifests(services: impl IntoIterator<Item = Service>, family: Family) -> String {
    write(&services.into_iter().map(Object::from).collect::<Vec<_>>(), family)
}

fn crowd(lab: &Lab, family: Family) -> Vec<Client<'_>> {
    (0..CLIENTS).map(|number| Client { lab, family, who: Who::Crowd, number }).collect()
}

/// Everything in turn, beginning somewhere else for each client.
fn from(first: usize) -> Vec<(Address, u16)> {
    (0..EVERYWHERE.len() * 2).map(|number| EVERYWHERE[(first + number) % EVERYWHERE.len()]).collect()
}

/// How many clients the kernel remembers.
fn remembered(lab: &Lab, family: Family) -> usize {
    let family = of(family, [netlink::Family::Ipv4, netlink::Family::Ipv6]);
    lab.network.node.enter(|| {
        let mut connection = Connection::open().unwrap();
        connection.elements(family, "kube-proxy", "affinity", |_| ()).unwrap().len()
    })
}

#[test]
fn a_client_gets_the_same_endpoint_at_every_address_of_a_service_port() {
    let lab = Lab::new();
    for family in Family::BOTH {
        let manifests = manifests([web(&[A, B, R, S]).sticky(SECONDS)], family);
        let (mut node, _) = Node::start(&lab.network.node, family, &Options::default(), &manifests);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let clients = crowd(&lab, family);
            let ask = |client: &Client<'_>| client.ask_all(protocol, &from(client.number));
            let before: Vec<IpAddr> = clients.iter().map(ask).collect();
            // Another process finds what this one left.
            drop(node);
            let (again, outcome) = Node::start(&lab.network.node, family, &Options::default(), &manifests);
            assert_eq!((outcome.full, outcome.added, outcome.deleted), (true, 0, 0));
            node = again;
            assert_eq!(clients.iter().map(ask).collect::<Vec<_>>(), before, "{protocol} {family}");
        }
    }
}

#[test]
fn with_policy_local_a_client_sticks_to_one_endpoint_wherever_policy_allows_it() {
    let lab = Lab::new();
    for family in Family::BOTH {
        let manifests = manifests([web(&[A, B, R, S]).sticky(SECONDS).external_local()], family);
        let (mut node, _) = Node::start(&lab.network.node, family, &Options::default(), &manifests);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            // What it gets from outside is good for the cluster IP, too.
            for client in crowd(&lab, family) {
                let here = client.ask_all(protocol, &EXTERNAL);
                assert!([Place::PodA, Place::PodB].map(|place| place.ip(family)).contains(&here));
                assert_eq!(client.ask_all(protocol, &from(client.number)), here);
            }
            // Policy does not bind pods.
            for who in [Who::Pod, Who::Node] {
                let client = Client { lab: &lab, family, who, number: 0 };
                // The node has an address for each of its networks.
                let at = if who == Who::Node { &EXTERNAL[..2] } else { &EVERYWHERE };
                client.ask_all(protocol, &[at, at].concat());
            }
        }
        // One that the cluster IP has sent elsewhere has a second endpoint for the rest, and keeps both.
        let elsewhere = manifests_of_remote_first(family);
        node.replace(&elsewhere);
        let client = Client { lab: &lab, family, who: Who::Crowd, number: CLIENTS + 1 };
        let cluster_ip = (Address::ClusterIp, 80);
        let there = client.ask(Protocol::Tcp, cluster_ip);
        assert_eq!(there, Place::Remote(5).ip(family));
        node.replace(&manifests);
        let here = client.ask_all(Protocol::Tcp, &EXTERNAL);
        assert_ne!(here, there);
        drop(node);
        let _node = Node::start(&lab.network.node, family, &Options::default(), &manifests).0;
        for _ in 0..4 {
            assert_eq!(client.ask(Protocol::Tcp, cluster_ip), there);
            assert_eq!(client.ask_all(Protocol::Tcp, &EXTERNAL), here);
        }
    }
}

fn manifests_of_remote_first(family: Family) -> String {
    manifests([web(&[R]).sticky(SECONDS).external_local()], family)
}

#[test]
fn an_endpoint_that_goes_is_left_at_once_for_one_other_and_nobody_looks_for_its_clients() {
    let lab = Lab::new();
    for family in Family::BOTH {
        let all = [A, B, R, S];
        let serve = |endpoints: &[Endpoint]| manifests([web(endpoints).sticky(SECONDS)], family);
        let mut node = Node::start(&lab.network.node, family, &Options::default(), &serve(&all)).0;
        for (protocol, clients) in
            [Protocol::Tcp, Protocol::Udp].map(|protocol| (protocol, crowd(&lab, family)))
        {
            let before: Vec<IpAddr> =
                clients.iter().map(|client| client.ask_all(protocol, &EVERYWHERE)).collect();
            let known = remembered(&lab, family);
            for (client, old) in clients.iter().zip(&before) {
                let rest: Vec<Endpoint> =
                    all.into_iter().filter(|endpoint| endpoint.place.ip(family) != *old).collect();
                let outcome = node.replace(&serve(&rest));
                assert!(!outcome.full);
                assert_eq!(remembered(&lab, family), known, "its clients are not looked for");
                let new = client.ask_all(protocol, &from(client.number));
                assert_ne!(new, *old);
                node.replace(&serve(&all));
                assert_eq!(client.ask_all(protocol, &from(client.number)), new, "it does not come back");
            }
        }
    }
}

/// A frontend without affinity, at a port that another Service has as its node port.
#[test]
fn a_port_that_is_another_service_s_node_port_teaches_nothing() {
    let lab = Lab::new();
    let options = Options::default();
    let restricted = Options { node_port_addresses: &["192.0.2.0/24", "2001:db8:2::/64"], ..options.clone() };
    for (family, options) in Family::BOTH.into_iter().flat_map(|it| [(it, &options), (it, &restricted)]) {
        let port = Port { number: NODE_PORT, target: TARGET, node_port: None, protocols: ALL };
        let other = Service { ports: vec![port], ..Service::other(&[A, B, R, S]) };
        let manifests = manifests([web(&[A, B, R, S]).sticky(SECONDS), other], family);
        let _node = Node::start(&lab.network.node, family, options, &manifests).0;
        let client = Client { lab: &lab, family, who: Who::Outside, number: 0 };
        let before = remembered(&lab, family);
        for _ in 0..4 {
            client.ask(Protocol::Tcp, (Address::OtherClusterIp, NODE_PORT));
        }
        assert_eq!(remembered(&lab, family), before);
        client.ask_all(Protocol::Tcp, &EVERYWHERE);
        assert_eq!(remembered(&lab, family), before + 1);
    }
}
