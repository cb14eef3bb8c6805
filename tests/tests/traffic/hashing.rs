//! Clients are hashed to endpoints: by every node alike, as `explain` says, and few of them move when an endpoint goes.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use kernel::nftables::Lookup;
use model::address::Family;
use model::names::Protocol;
use plan::explain::live::through_sets;
use plan::explain::{ExplainSettings, Packet, explain};
use plan::mark::Mark;
use plan::mode::Mode;
use testkit::manifests::{PlainService, list};
use testkit::network::{Network, client_ip, node_ip, of};
use testkit::probe::{Answer, Server, probe_here, receive};
use tests::matrix::{ProxyUnderTest, StartProxy};
use tests::node::NftablesNode;
use tests::options::Options;
use tests::servers::IpvsNode;

use crate::chance::endpoints;
use crate::changes::{Storm, during, wait_for_connections};
use crate::cluster_ip;

const BY_ADDRESS: &str = "ClientIP";
const BY_PORT: &str = "ClientIPAndPort";

/// The networks of [`clients`].
const CLIENTS: [&str; 2] = ["100.66.0.0/16", "2001:db8:66::/64"];

/// A network whose client owns many addresses.
fn network() -> Network {
    let network = Network::new(1);
    for family in Family::BOTH {
        let clients = of(family, CLIENTS);
        network.client.ip(&format!("route add local {clients} dev lo"));
        network.node.ip(&format!("route add {clients} via {}", client_ip(family)));
    }
    network
}

/// Clients with addresses of their own, scattered over the network, and one port.
fn clients(family: Family, count: u16) -> Vec<SocketAddr> {
    let ip = |number: u16| -> IpAddr {
        let host = number.wrapping_mul(40_503); // odd, so all differ
        let [high, low] = host.to_be_bytes();
        of(family, [[100, 66, high, low].into(), [0x2001, 0xdb8, 0x66, 0, 0, 0, 0, host].into()])
    };
    (1..=count).map(|number| SocketAddr::new(ip(number), 4_711)).collect()
}

/// The same client at many ports.
fn ports(family: Family, count: u16) -> Vec<SocketAddr> {
    let ip = clients(family, 1)[0].ip();
    (10_000..).take(count.into()).map(|port| SocketAddr::new(ip, port)).collect()
}

/// The endpoint that each client gets.
fn chosen(network: &Network, clients: &[SocketAddr], to: SocketAddr) -> Vec<SocketAddr> {
    network.client.enter(|| {
        let ask = |client: &SocketAddr| {
            let socket = UdpSocket::bind(client).unwrap();
            socket.connect(to).unwrap();
            socket.send(b"?").unwrap();
            let answer =
                receive(&socket, Duration::from_secs(5)).unwrap_or_else(|error| panic!("{client}: {error}"));
            answer.split(' ').next().unwrap().parse().unwrap()
        };
        clients.iter().map(ask).collect()
    })
}

fn manifests(hash: &str, ip: IpAddr, endpoints: &[SocketAddr]) -> String {
    list(&[PlainService { hash: Some(hash), ..PlainService::new("web", ip, endpoints) }])
}

fn start_nftables(network: &Network, family: Family) -> NftablesNode {
    NftablesNode::new(&network.node, family, &Options::default())
}

#[test]
fn nodes_with_different_histories_choose_the_same_endpoint() {
    let networks = [network(), network()];
    for family in Family::BOTH {
        let all = endpoints(family, 100);
        let _servers = networks.each_ref().map(|network| Server::start_all(&network.remote, &all));
        let [mut first, mut second] = networks.each_ref().map(|network| start_nftables(network, family));
        for (number, hash, clients) in
            [(1, BY_ADDRESS, clients(family, 10_000)), (2, BY_PORT, ports(family, 2_000))]
        {
            let ip = cluster_ip(family, number);
            first.hold(&manifests(hash, ip, &all));
            second.hold(&manifests(hash, ip, &all[50..]));
            second.hold(&manifests(hash, ip, &all[..70]));
            let reversed: Vec<SocketAddr> = all.iter().rev().copied().collect();
            second.hold(&manifests(hash, ip, &reversed));
            let to = SocketAddr::new(ip, 80);
            let [before, other] = networks.each_ref().map(|network| chosen(network, &clients, to));
            let different = before.iter().zip(&other).filter(|(a, b)| a != b).count();
            assert_eq!(different, 0, "{family}, {hash}: of {} clients", clients.len());

            let gone = all[37];
            let rest: Vec<SocketAddr> = all.iter().copied().filter(|endpoint| *endpoint != gone).collect();
            first.hold(&manifests(hash, cluster_ip(family, 100 + number), &rest));
            let to = SocketAddr::new(cluster_ip(family, 100 + number), 80);
            let after = chosen(&networks[0], &clients, to);
            let others = || before.iter().zip(&after).filter(|(before, _)| **before != gone);
            let (moved, others) =
                (others().filter(|(before, after)| before != after).count(), others().count());
            println!("{family}, {hash}: {moved} of {others} clients of other endpoints moved");
            assert!(moved * 50 <= others, "{family}, {hash}: {moved} of {others}");
        }
    }
}

#[test]
fn explain_names_the_endpoint_of_a_client() {
    let network = network();
    for family in Family::BOTH {
        let all = endpoints(family, 20);
        let _server = Server::start_all(&network.remote, &all);
        let mut node = start_nftables(&network, family);
        let options = Options::default();
        let settings = ExplainSettings {
            mode: Mode::Nftables,
            mark: Mark::from_bit(options.masquerade_bit).unwrap(),
            masquerade_all: options.masquerade_all,
            from_pod: options.from_pod(family),
            node_port_addresses: options.node_port_addresses(family),
            serves_localhost: false,
        };
        for (number, hash, clients) in
            [(1, BY_ADDRESS, clients(family, 300)), (2, BY_PORT, ports(family, 300))]
        {
            let ip = cluster_ip(family, number);
            node.hold(&manifests(hash, ip, &all));
            let to = SocketAddr::new(ip, 80);
            let mut lookup = network.node.enter(|| Lookup::open(family).unwrap());
            for (client, chosen) in clients.iter().zip(chosen(&network, &clients, to)) {
                let packet = Packet {
                    source: client.ip(),
                    source_port: Some(client.port()),
                    protocol: Protocol::Udp,
                    destination: to,
                    interface: None,
                };
                let explanation = explain(&packet, &settings, &[node_ip(family)], &node.cluster).unwrap();
                let endpoints: Vec<_> =
                    explanation.endpoints.iter().map(|it| (it.address, it.probability)).collect();
                assert_eq!(endpoints, [(chosen, 1.0)], "{hash} {client}");
                let live = through_sets(&explanation, &[node_ip(family)], &mut lookup).unwrap();
                assert!(live.agrees, "{hash} {client}: {live:?}");
                assert_eq!(live.endpoints.into_iter().collect::<Vec<_>>(), [chosen], "{hash} {client}");
            }
        }
    }
}

#[test]
fn no_connection_fails_while_clients_are_hashed_and_no_longer() {
    const CHANGES: usize = 20;
    let network = Network::new(1);
    for family in Family::BOTH {
        let all = endpoints(family, 5);
        let _server = Server::start_all(&network.remote, &all);
        let ip = cluster_ip(family, 1);
        let mut node = start_nftables(&network, family);
        let mut hold =
            |hash| node.hold(&list(&[PlainService { hash, ..PlainService::new("web", ip, &all) }]));
        hold(None);
        let storms = [Storm::new(&network, SocketAddr::new(ip, 80))];
        during(&storms, || {
            let hashes = [Some(BY_ADDRESS), None, Some(BY_PORT), Some(BY_ADDRESS), Some(BY_PORT), None];
            for hash in hashes.into_iter().cycle().take(CHANGES) {
                hold(hash);
                wait_for_connections(&storms);
            }
        });
    }
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_hashes_clients() {
    let start: StartProxy<'_> =
        &|namespace, family, options| Box::new(IpvsNode::new(namespace, family, options));
    let network = network();
    for family in Family::BOTH {
        let all = endpoints(family, 10);
        let _server = Server::start_all(&network.remote, &all);
        let mut proxy = start(&network.node, family, &Options::default());
        for (number, hash, clients) in
            [(1, BY_ADDRESS, clients(family, 100)), (2, BY_PORT, ports(family, 100))]
        {
            let [to, again] =
                [number, 100 + number].map(|number| SocketAddr::new(cluster_ip(family, number), 80));
            proxy.hold(&manifests(hash, to.ip(), &all));
            let before = chosen(&network, &clients, to);
            proxy.hold(&manifests(hash, again.ip(), &all));
            assert_eq!(chosen(&network, &clients, again), before, "{hash}");

            // The real server of an endpoint that goes stays, with weight 0, while it has connections of TCP.
            let connect = || {
                network.client.enter(|| {
                    let ask = |client: &SocketAddr| {
                        probe_here(Some(client.ip()), Protocol::Tcp, again, Duration::from_secs(5))
                    };
                    clients.iter().map(ask).collect::<Vec<Answer>>()
                })
            };
            let is_from = |answer: &Answer, of: SocketAddr| matches!(answer, Answer::From { endpoint, .. } if *endpoint == of);
            let gone =
                all.iter().copied().find(|at| connect().iter().any(|answer| is_from(answer, *at))).unwrap();
            let rest: Vec<SocketAddr> = all.iter().copied().filter(|at| *at != gone).collect();
            proxy.hold(&manifests(hash, again.ip(), &rest));
            let answers = connect();
            assert!(
                answers.iter().all(|answer| rest.iter().any(|at| is_from(answer, *at))),
                "{hash}: {answers:?}"
            );
        }
    }
}
