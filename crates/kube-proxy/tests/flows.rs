//! A UDP client that keeps its source port must not keep an endpoint that no longer serves it. The pods of these tests keep
//! answering after no Service selects them, which reveals a stale flow.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use netlink::conntrack::{ConntrackSocket, Flow, Tuple};
use testkit::lab::{Address, ClientPlace, OTHER_TARGET, Place, TARGET};
use testkit::lab_proxy::LabProxy;
use testkit::manifests::{self, A, B, EndpointManifest, PortManifest, R, ServiceManifest, State, web};
use testkit::namespace::Namespace;
use testkit::probe::{connect_and_read, receive};
use testkit::wait::{Deadline, eventually};

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

fn client(proxy: &LabProxy, from: ClientPlace, to: Address, port: u16) -> Client {
    client_at(proxy, from, to, port, 4321)
}

fn client_at(proxy: &LabProxy, from: ClientPlace, to: Address, port: u16, own: u16) -> Client {
    let any: IpAddr = testkit::network::of(proxy.family, [[0; 4].into(), [0_u16; 8].into()]);
    let bind = || proxy.lab.namespace(from).enter(|| UdpSocket::bind((any, own)).ok());
    let mut socket = None;
    // A process that this one is starting has its earlier sockets, too, until it executes its program.
    eventually("the client's port is free", || {
        socket = bind();
        socket.is_some()
    });
    let socket = socket.unwrap();
    socket.connect(SocketAddr::new(to.ip(proxy.family), port)).unwrap();
    Client { socket, family: proxy.family }
}

/// A UDP client with a fixed source port.
struct Client {
    socket: UdpSocket,
    family: Family,
}

impl Client {
    /// Sends one datagram and returns the endpoint that answers; `None` after a timeout or a refusal.
    fn request(&self) -> Option<SocketAddr> {
        // Reports the refusal of an earlier datagram, if there was one.
        let _ = self.socket.send(b"?");
        match receive(&self.socket, Duration::from_millis(300)) {
            Ok(text) => Some(text.split_once(' ').unwrap().0.parse().unwrap()),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused
                        | ErrorKind::WouldBlock
                        | ErrorKind::TimedOut
                        | ErrorKind::PermissionDenied
                        | ErrorKind::HostUnreachable
                ) =>
            {
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends datagrams until one is answered: a busy machine may answer late.
    fn next_answer(&self) -> SocketAddr {
        let mut answer = None;
        eventually("an endpoint answers", || {
            answer = self.request();
            answer.is_some()
        });
        answer.unwrap()
    }

    /// The endpoint that answers four times in a row. Packets that waited for neighbour discovery leave together, and each
    /// may get an endpoint of its own before conntrack settles on one.
    fn first_answer(&self) -> SocketAddr {
        let mut deadline = Deadline::after(Duration::from_secs(20));
        let mut answers = Vec::new();
        while answers.len() < 4 {
            match self.request() {
                Some(answer) if answers.iter().all(|earlier| *earlier == answer) => answers.push(answer),
                answer => answers = answer.into_iter().collect(),
            }
            assert!(!deadline.has_passed(), "{}: no endpoint answers", self.family);
        }
        *answers.first().unwrap()
    }

    /// Waits until only this endpoint answers, or none.
    fn wait_for_endpoint(&self, place: Option<Place>, port: u16) {
        let desired = place.map(|place| SocketAddr::new(place.ip(self.family), port));
        let mut deadline = Deadline::after(Duration::from_secs(20));
        let mut in_a_row = 0;
        let mut last = None;
        while in_a_row < 4 {
            last = self.request();
            in_a_row = if last == desired { in_a_row + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
            assert!(!deadline.has_passed(), "{}: expected {desired:?}, still {last:?}", self.family);
        }
        assert_eq!(last, desired);
    }
}

/// A node port at which the node runs no server of its own.
const FREE_NODE_PORT: u16 = 30090;

fn at_free_node_port(endpoints: &[EndpointManifest]) -> ServiceManifest {
    let service = web(endpoints);
    let port = |port: &PortManifest| PortManifest { node_port: Some(FREE_NODE_PORT), ..*port };
    ServiceManifest { ports: service.ports.iter().map(port).collect(), ..service }
}

fn in_each_mode_and_family(test: impl Fn(LabProxy) + Sync) {
    for_each_mode_and_family(|mode, family| test(LabProxy::new(KUBE_PROXY, mode, family)));
}

fn for_each_mode_and_family(test: impl Fn(&'static str, Family) + Sync) {
    std::thread::scope(|scope| {
        for mode in ["nftables", "iptables"] {
            for family in Family::BOTH {
                let test = &test;
                scope.spawn(move || test(mode, family));
            }
        }
    });
}

/// Replaces the pod behind a frontend again and again; the client must follow.
fn replace_pods(proxy: &LabProxy, client: &Client, service: impl Fn(&[EndpointManifest]) -> ServiceManifest) {
    for endpoint in [A, B, A] {
        proxy.apply(service(&[endpoint]));
        client.wait_for_endpoint(Some(endpoint.place), TARGET);
    }
}

#[test]
fn a_flow_to_a_cluster_ip_follows_replaced_pods() {
    in_each_mode_and_family(|proxy| {
        let client = client(&proxy, ClientPlace::Pod, Address::ClusterIp, 80);
        replace_pods(&proxy, &client, web);
    });
}

#[test]
fn a_flow_to_a_node_port_follows_replaced_pods_and_ends_with_the_last() {
    in_each_mode_and_family(|proxy| {
        let client = client(&proxy, ClientPlace::Outside, Address::NodeIp, FREE_NODE_PORT);
        replace_pods(&proxy, &client, at_free_node_port);
        proxy.apply(at_free_node_port(&[]));
        client.wait_for_endpoint(None, TARGET);
        proxy.apply(at_free_node_port(&[B]));
        client.wait_for_endpoint(Some(Place::PodB), TARGET);
    });
}

#[test]
fn a_flow_with_internal_policy_local_follows_replaced_pods() {
    in_each_mode_and_family(|proxy| {
        let client = client(&proxy, ClientPlace::Pod, Address::ClusterIp, 80);
        replace_pods(&proxy, &client, |endpoints| web(&[endpoints, &[R]].concat()).internal_local());
    });
}

#[test]
fn a_flow_from_the_node_follows_replaced_pods() {
    in_each_mode_and_family(|proxy| {
        let client = client(&proxy, ClientPlace::Node, Address::ClusterIp, 80);
        replace_pods(&proxy, &client, web);
    });
}

#[test]
fn a_flow_leaves_a_pod_that_becomes_unready() {
    in_each_mode_and_family(|proxy| {
        let client = client(&proxy, ClientPlace::Pod, Address::ClusterIp, 80);
        let [a, b] = [A, B].map(|endpoint| endpoint.but(State::Unready));
        for (endpoints, answers) in [([A, b], A), ([a, B], B), ([A, b], A)] {
            proxy.apply(web(&endpoints));
            client.wait_for_endpoint(Some(answers.place), TARGET);
        }
    });
}

/// The rules select such a pod, so a flow to it is not stale.
#[test]
fn a_pod_that_is_published_though_not_ready_keeps_its_flows() {
    in_each_mode_and_family(|proxy| {
        let published = A.but(State::Published);
        for endpoints in [[A, B], [published, B]] {
            proxy.apply(web(&endpoints));
            client(&proxy, ClientPlace::Pod, Address::ClusterIp, 80).first_answer();
        }
        for port in 6_000..6_020 {
            let client = client_at(&proxy, ClientPlace::Pod, Address::ClusterIp, 80, port);
            let first = client.first_answer();
            for _ in 0..3 {
                assert_eq!(client.next_answer(), first);
            }
        }
        proxy.apply(web(&[published]));
        let client = client(&proxy, ClientPlace::Pod, Address::ClusterIp, 80);
        client.wait_for_endpoint(Some(Place::PodA), TARGET);
    });
}

#[test]
fn a_flow_follows_a_changed_target_port() {
    in_each_mode_and_family(|proxy| {
        let client = client(&proxy, ClientPlace::Pod, Address::ClusterIp, 80);
        for target in [TARGET, OTHER_TARGET, TARGET] {
            let port = |port: PortManifest| PortManifest { target, ..port };
            let service = web(&[A]);
            let ports = service.ports.iter().copied().map(port).collect();
            proxy.apply(ServiceManifest { ports, ..service });
            client.wait_for_endpoint(Some(Place::PodA), target);
        }
    });
}

/// Fills the node's conntrack table with unrelated entries, so that a scan takes a while.
fn fill_conntrack_table(proxy: &LabProxy) {
    let (here, there): (IpAddr, IpAddr) = match proxy.family {
        Family::V4 => ([198, 18, 9, 1].into(), [198, 18, 9, 2].into()),
        Family::V6 => ("2001:db8:9::1".parse().unwrap(), "2001:db8:9::2".parse().unwrap()),
    };
    let connection = |port| {
        Flow::untranslated(Tuple {
            protocol: 6,
            source: SocketAddr::new(here, port),
            destination: SocketAddr::new(there, 443),
        })
    };
    let connections: Vec<_> = (1_000..51_000).map(connection).collect();
    let family = match proxy.family {
        Family::V4 => netlink::Family::Ipv4,
        Family::V6 => netlink::Family::Ipv6,
    };
    let make = || ConntrackSocket::open().unwrap().make(family, &connections).unwrap();
    proxy.lab.network.node.enter(make);
}

#[test]
fn stale_flows_end_in_a_large_conntrack_table() {
    in_each_mode_and_family(|proxy| {
        fill_conntrack_table(&proxy);
        let pod = client(&proxy, ClientPlace::Pod, Address::ClusterIp, 80);
        let node = client(&proxy, ClientPlace::Node, Address::ClusterIp, 80);
        let outside = client(&proxy, ClientPlace::Outside, Address::NodeIp, FREE_NODE_PORT);
        for endpoint in [A, B, A, B] {
            proxy.apply(at_free_node_port(&[endpoint]));
            for client in [&pod, &node, &outside] {
                client.wait_for_endpoint(Some(endpoint.place), TARGET);
            }
        }
        proxy.apply(at_free_node_port(&[]));
        outside.wait_for_endpoint(None, TARGET);
        proxy.apply(at_free_node_port(&[A.but(State::Unready), B]));
        for client in [&pod, &node, &outside] {
            client.wait_for_endpoint(Some(Place::PodB), TARGET);
        }
    });
}

/// Packets of the node to itself go through the loopback interface untranslated and are refused on arrival. The conntrack entry
/// that they leave must not stop later packets.
#[test]
fn the_node_is_refused_at_its_own_node_port_without_endpoints() {
    in_each_mode_and_family(|proxy| {
        fill_conntrack_table(&proxy);
        for _ in 0..3 {
            proxy.apply(at_free_node_port(&[A]));
            client(&proxy, ClientPlace::Node, Address::NodeIp, FREE_NODE_PORT)
                .wait_for_endpoint(Some(Place::PodA), TARGET);
            proxy.apply(at_free_node_port(&[]));
            client(&proxy, ClientPlace::Node, Address::NodeIp, FREE_NODE_PORT)
                .wait_for_endpoint(None, TARGET);
            for port in 7_000..7_010 {
                let client = client_at(&proxy, ClientPlace::Node, Address::NodeIp, FREE_NODE_PORT, port);
                for _ in 0..2 {
                    let _ = client.socket.send(b"?");
                    let answer =
                        receive(&client.socket, Duration::from_secs(2)).map_err(|error| error.kind());
                    assert_eq!(answer, Err(ErrorKind::ConnectionRefused), "{} {}", proxy.mode, proxy.family);
                }
            }
        }
    });
}

/// A UDP client of the node that sends to a cluster IP before the Service exists gets no answer.
#[test]
fn flows_of_the_node_that_began_before_the_service_existed_reach_it_afterwards() {
    in_each_mode_and_family(|proxy| {
        fill_conntrack_table(&proxy);
        blackhole_cluster_ips(&proxy);
        let clients: Vec<_> = (7_000..7_010)
            .map(|port| client_at(&proxy, ClientPlace::Node, Address::ClusterIp, 80, port))
            .collect();
        assert!(clients.iter().all(|client| client.request().is_none()));
        proxy.apply(web(&[A]));
        for client in clients {
            client.wait_for_endpoint(Some(Place::PodA), TARGET);
        }
    });
}

/// Packets to cluster IPs that no rule translates leave the node and are lost, and each leaves a conntrack entry behind, as on a
/// node whose network plugin has rules of its own.
fn blackhole_cluster_ips(proxy: &LabProxy) {
    let node = &proxy.lab.network.node;
    node.ip_all(&[
        // Without ARP, packets leave for a MAC address that no interface has.
        "link add void type veth peer name void-end".into(),
        "link set void arp off up".into(),
        "link set void-end up".into(),
        "route add 10.96.0.0/16 dev void".into(),
        "route add fd00:10:96::/64 dev void".into(),
    ]);
    let rules =
        "table inet plugin { chain c { type filter hook prerouting priority 0; ct state invalid drop; }; }";
    node.run_with_input(Command::new("nft").args(["-f", "-"]), rules);
}

/// Connects to the web Service from this port. Only the kernel retransmits what is lost.
fn connect(from: &Namespace, family: Family, own: u16, timeout: Duration) -> Result<IpAddr, ErrorKind> {
    let to = SocketAddr::new(Address::ClusterIp.ip(family), 80);
    let any: IpAddr = testkit::network::of(family, [[0; 4].into(), [0_u16; 8].into()]);
    let bind = |socket: &OwnedFd| Ok(rustix::net::bind(socket, &SocketAddr::new(any, own))?);
    let answer = from.enter(|| connect_and_read(to, timeout, bind));
    let text = answer.map_err(|error| error.kind())?;
    let endpoint: SocketAddr = text.split_once(' ').unwrap().0.parse().unwrap();
    Ok(endpoint.ip())
}

/// Clients connect before and while `begin` creates the Service. All succeed with their first connection: those that wait for
/// an answer, and those that reuse a source port that failed before.
fn clients_connect_too_early(mut proxy: LabProxy, begin: impl FnOnce(&mut LabProxy)) {
    const CLIENTS: u16 = 24;
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
    blackhole_cluster_ips(&proxy);
    let (mode, family) = (proxy.mode, proxy.family);
    let clients: Vec<_> = [(ClientPlace::Pod, 20_000), (ClientPlace::Node, 21_000)]
        .map(|(from, first)| (proxy.lab.namespace(from).clone(), from, first))
        .into();
    for (namespace, from, first) in &clients {
        for own in 100..105 {
            let answer = connect(namespace, family, first + own, Duration::from_millis(50));
            assert_eq!(answer, Err(ErrorKind::TimedOut), "{mode} {family} {from:?}: no rule translates yet");
        }
    }
    let succeed = |(namespace, from, first): &(Namespace, ClientPlace, u16), own: u16| {
        let answer = connect(namespace, family, first + own, CONNECT_TIMEOUT);
        assert_eq!(answer, Ok(Place::PodA.ip(family)), "{mode} {family} {from:?} client {own}");
    };
    std::thread::scope(|scope| {
        let succeed = &succeed;
        for client in &clients {
            for number in 0..CLIENTS {
                scope.spawn(move || {
                    // Spread over a second, so that some retransmissions meet the rules right after their commit.
                    std::thread::sleep(Duration::from_secs(1) * number.into() / CLIENTS.into());
                    succeed(client, number);
                });
            }
        }
        std::thread::sleep(Duration::from_millis(500));
        begin(&mut proxy);
        for client in &clients {
            scope.spawn(move || {
                succeed(client, 99);
                (100..105).for_each(|own| succeed(client, own));
            });
        }
    });
}

#[test]
fn connections_begun_before_the_proxy_starts_succeed() {
    for_each_mode_and_family(|mode, family| {
        let proxy = LabProxy::stopped(KUBE_PROXY, mode, family, &[]);
        proxy.apply(web(&[A]));
        clients_connect_too_early(proxy, LabProxy::start);
    });
}

#[test]
fn connections_begun_before_the_service_is_created_succeed() {
    in_each_mode_and_family(|proxy| {
        let text = |service: ServiceManifest| manifests::write(&[service.into()], proxy.family);
        let (other, web) = (text(ServiceManifest::other(&[A])), text(web(&[A])));
        // The endpoints exist first: a Service without endpoints refuses connections.
        let (_, slice) = web.rsplit_once("---").unwrap();
        proxy.apply_text(&format!("{other}---{slice}"));
        let other = SocketAddr::new(Address::OtherClusterIp.ip(proxy.family), 80);
        eventually("the proxy serves", || {
            let answer = testkit::probe::probe(proxy.lab.namespace(ClientPlace::Pod), Protocol::Tcp, other);
            matches!(answer, testkit::probe::Answer::From { .. })
        });
        clients_connect_too_early(proxy, |proxy| proxy.apply_text(&web));
    });
}

/// Only in iptables mode: in nftables mode the table has an owner and other processes cannot flush it.
#[test]
fn flows_that_began_while_the_rules_were_flushed_reach_the_service_after_the_repair() {
    std::thread::scope(|scope| {
        for family in Family::BOTH {
            scope.spawn(move || {
                let proxy = LabProxy::new(KUBE_PROXY, "iptables", family);
                proxy.apply(web(&[A]));
                let first = client(&proxy, ClientPlace::Pod, Address::ClusterIp, 80);
                first.wait_for_endpoint(Some(Place::PodA), TARGET);
                // After the last scan that the change causes.
                std::thread::sleep(Duration::from_secs(3));
                let iptables = testkit::network::of(family, ["iptables", "ip6tables"]);
                let mut untranslated = None;
                // The repair may be faster than the packet: then try again.
                for port in 5_000..5_100 {
                    let client = client_at(&proxy, ClientPlace::Pod, Address::ClusterIp, 80, port);
                    proxy.lab.network.node.run(&format!("{iptables} -t nat -F"));
                    client.socket.send(b"?").unwrap();
                    let answer = receive(&client.socket, Duration::from_millis(300));
                    first.wait_for_endpoint(Some(Place::PodA), TARGET);
                    if answer.is_err() {
                        untranslated = Some(client);
                        break;
                    }
                }
                let untranslated = untranslated.expect("no packet met the node without rules");
                untranslated.wait_for_endpoint(Some(Place::PodA), TARGET);
            });
        }
    });
}

#[test]
fn a_restart_ends_only_the_flows_to_pods_that_were_removed_meanwhile() {
    in_each_mode_and_family(|mut proxy| {
        proxy.apply(web(&[A, B]));
        let client = client(&proxy, ClientPlace::Pod, Address::ClusterIp, 80);
        let first = client.first_answer();
        let (kept, other) = if first.ip() == A.place.ip(proxy.family) { (A, B) } else { (B, A) };
        proxy.kill();
        proxy.start();
        // The new process must not touch the flow, neither at startup nor when another endpoint changes.
        proxy.apply(web(&[kept, R]));
        for _ in 0..30 {
            assert_eq!(client.next_answer(), first, "the flow is not stale");
            std::thread::sleep(Duration::from_millis(50));
        }
        proxy.kill();
        proxy.apply(web(&[other]));
        assert_eq!(client.next_answer(), first, "no proxy runs that could end the flow");
        proxy.start();
        client.wait_for_endpoint(Some(other.place), TARGET);
    });
}
