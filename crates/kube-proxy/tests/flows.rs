//! A UDP client that keeps its port must not keep an endpoint that is gone. The pods of these tests answer also when no
//! service names them any more, so that a flow left behind shows.
#![allow(clippy::unwrap_used, clippy::panic)]

mod stage;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use netlink::conntrack::{Connection, Direction, Flow};
use stage::Stage;
use testkit::lab::{Address, OTHER_TARGET, Place, TARGET, Who};
use testkit::namespace::Namespace;
use testkit::patience::Deadline;
use testkit::talk::{hear, hear_connected};
use tests::manifests::{self, A, B, Endpoint, Port, R, Service, State, web};

fn client(stage: &Stage, who: Who, to: Address, port: u16) -> Client {
    client_at(stage, who, to, port, 4321)
}

fn client_at(stage: &Stage, who: Who, to: Address, port: u16, own: u16) -> Client {
    let any: IpAddr = testkit::network::of(stage.family, [[0; 4].into(), [0_u16; 8].into()]);
    let socket = stage.lab.namespace(who).enter(|| UdpSocket::bind((any, own)).unwrap());
    socket.connect(SocketAddr::new(to.ip(stage.family), port)).unwrap();
    Client { socket, family: stage.family }
}

/// Asks again and again from the same port.
struct Client {
    socket: UdpSocket,
    family: Family,
}

impl Client {
    /// Who answers; nobody if there is silence or a refusal.
    fn ask(&self) -> Option<SocketAddr> {
        // What was refused before is told with the next call.
        let _ = self.socket.send(b"?");
        match hear(&self.socket, Duration::from_millis(300)) {
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

    /// Who answers and keeps answering. Packets that were sent while neighbours were still looking for each other come in a
    /// bunch, and the kernel lets each of them be answered by whom it was sent to before it settles on one.
    fn first_answer(&self) -> SocketAddr {
        let mut deadline = Deadline::after(Duration::from_secs(20));
        let mut row = Vec::new();
        while row.len() < 4 {
            match self.ask() {
                Some(answer) if row.iter().all(|earlier| *earlier == answer) => row.push(answer),
                answer => row = answer.into_iter().collect(),
            }
            assert!(!deadline.has_passed(), "{} nobody answers", self.family);
        }
        *row.first().unwrap()
    }

    /// Goes on until nobody but this one answers.
    fn settles_on(&self, place: Option<Place>, port: u16) {
        let wanted = place.map(|place| SocketAddr::new(place.ip(self.family), port));
        let mut deadline = Deadline::after(Duration::from_secs(20));
        let mut row = 0;
        let mut last = None;
        while row < 4 {
            last = self.ask();
            row = if last == wanted { row + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
            assert!(!deadline.has_passed(), "{} wanted {wanted:?}, still {last:?}", self.family);
        }
        assert_eq!(last, wanted);
    }
}

/// Where no server of the node's own listens.
const FREE_NODE_PORT: u16 = 30090;

fn at_free_node_port(endpoints: &[Endpoint]) -> Service {
    let service = web(endpoints);
    let port = |port: &Port| Port { node_port: Some(FREE_NODE_PORT), ..*port };
    Service { ports: service.ports.iter().map(port).collect(), ..service }
}

fn everywhere(test: impl Fn(Stage) + Sync) {
    for_each_mode_and_family(|mode, family| test(Stage::new(mode, family)));
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

/// The pods behind a frontend change one after the other, at last there is nobody, and then somebody again.
fn pods_cycle(stage: &Stage, client: &Client, service: impl Fn(&[Endpoint]) -> Service) {
    for endpoint in [A, B, A] {
        stage.hold(service(&[endpoint]));
        client.settles_on(Some(endpoint.place), TARGET);
    }
}

#[test]
fn pods_cycle_behind_a_cluster_ip() {
    everywhere(|stage| {
        let client = client(&stage, Who::Pod, Address::ClusterIp, 80);
        pods_cycle(&stage, &client, web);
    });
}

#[test]
fn pods_cycle_behind_a_node_port_and_at_last_there_is_none() {
    everywhere(|stage| {
        let client = client(&stage, Who::Outside, Address::NodeIp, FREE_NODE_PORT);
        pods_cycle(&stage, &client, at_free_node_port);
        stage.hold(at_free_node_port(&[]));
        client.settles_on(None, TARGET);
        stage.hold(at_free_node_port(&[B]));
        client.settles_on(Some(Place::PodB), TARGET);
    });
}

#[test]
fn pods_cycle_behind_internal_policy_local() {
    everywhere(|stage| {
        let client = client(&stage, Who::Pod, Address::ClusterIp, 80);
        pods_cycle(&stage, &client, |endpoints| web(&[endpoints, &[R]].concat()).internal_local());
    });
}

#[test]
fn pods_cycle_while_the_node_itself_asks() {
    everywhere(|stage| {
        let client = client(&stage, Who::Node, Address::ClusterIp, 80);
        pods_cycle(&stage, &client, web);
    });
}

#[test]
fn a_pod_becomes_unready_and_another_one_ready() {
    everywhere(|stage| {
        let client = client(&stage, Who::Pod, Address::ClusterIp, 80);
        let [a, b] = [A, B].map(|endpoint| endpoint.but(State::Unready));
        for (endpoints, answers) in [([A, b], A), ([a, B], B), ([A, b], A)] {
            stage.hold(web(&endpoints));
            client.settles_on(Some(answers.place), TARGET);
        }
    });
}

/// The rules send clients there, so that no flow to it may be taken for a stale one.
#[test]
fn a_pod_that_is_published_though_not_ready_keeps_its_clients() {
    everywhere(|stage| {
        let published = A.but(State::Published);
        for endpoints in [[A, B], [published, B]] {
            stage.hold(web(&endpoints));
            client(&stage, Who::Pod, Address::ClusterIp, 80).first_answer();
        }
        for port in 6_000..6_020 {
            let client = client_at(&stage, Who::Pod, Address::ClusterIp, 80, port);
            let first = client.first_answer();
            for _ in 0..3 {
                assert_eq!(client.ask(), Some(first));
            }
        }
        stage.hold(web(&[published]));
        let client = client(&stage, Who::Pod, Address::ClusterIp, 80);
        client.settles_on(Some(Place::PodA), TARGET);
    });
}

#[test]
fn the_target_port_changes() {
    everywhere(|stage| {
        let client = client(&stage, Who::Pod, Address::ClusterIp, 80);
        for target in [TARGET, OTHER_TARGET, TARGET] {
            let port = |port: Port| Port { target, ..port };
            let service = web(&[A]);
            let ports = service.ports.iter().copied().map(port).collect();
            stage.hold(Service { ports, ..service });
            client.settles_on(Some(Place::PodA), target);
        }
    });
}

/// Gives the node so many connections of others that to look at all of them takes a while.
fn crowd(stage: &Stage) {
    let (here, there): (IpAddr, IpAddr) = match stage.family {
        Family::V4 => ([198, 18, 9, 1].into(), [198, 18, 9, 2].into()),
        Family::V6 => ("2001:db8:9::1".parse().unwrap(), "2001:db8:9::2".parse().unwrap()),
    };
    let connection = |port| {
        Flow::untranslated(Direction {
            protocol: 6,
            source: SocketAddr::new(here, port),
            destination: SocketAddr::new(there, 443),
        })
    };
    let connections: Vec<_> = (1_000..51_000).map(connection).collect();
    let family = match stage.family {
        Family::V4 => netlink::Family::Ipv4,
        Family::V6 => netlink::Family::Ipv6,
    };
    let make = || Connection::open().unwrap().make(family, &connections).unwrap();
    stage.lab.network.node.enter(make);
}

#[test]
fn stale_flows_end_also_where_the_conntrack_table_is_large() {
    everywhere(|stage| {
        crowd(&stage);
        let pod = client(&stage, Who::Pod, Address::ClusterIp, 80);
        let node = client(&stage, Who::Node, Address::ClusterIp, 80);
        let outside = client(&stage, Who::Outside, Address::NodeIp, FREE_NODE_PORT);
        for endpoint in [A, B, A, B] {
            stage.hold(at_free_node_port(&[endpoint]));
            for client in [&pod, &node, &outside] {
                client.settles_on(Some(endpoint.place), TARGET);
            }
        }
        stage.hold(at_free_node_port(&[]));
        outside.settles_on(None, TARGET);
        stage.hold(at_free_node_port(&[A.but(State::Unready), B]));
        for client in [&pod, &node, &outside] {
            client.settles_on(Some(Place::PodB), TARGET);
        }
    });
}

/// Its packets to itself leave by the loopback, untranslated, and are refused when they arrive there. That entry is no reason to
/// stop the next ones.
#[test]
fn the_node_is_refused_at_its_own_node_port_without_endpoints() {
    everywhere(|stage| {
        crowd(&stage);
        for _ in 0..3 {
            stage.hold(at_free_node_port(&[A]));
            client(&stage, Who::Node, Address::NodeIp, FREE_NODE_PORT).settles_on(Some(Place::PodA), TARGET);
            stage.hold(at_free_node_port(&[]));
            client(&stage, Who::Node, Address::NodeIp, FREE_NODE_PORT).settles_on(None, TARGET);
            for port in 7_000..7_010 {
                let client = client_at(&stage, Who::Node, Address::NodeIp, FREE_NODE_PORT, port);
                for _ in 0..2 {
                    let _ = client.socket.send(b"?");
                    let answer = hear(&client.socket, Duration::from_secs(2)).map_err(|error| error.kind());
                    assert_eq!(answer, Err(ErrorKind::ConnectionRefused), "{} {}", stage.mode, stage.family);
                }
            }
        }
    });
}

/// A UDP client of the node that sends to a cluster IP before there is such a Service sends into the void.
#[test]
fn datagrams_of_the_node_sent_before_there_was_a_service_lead_to_no_leak_afterwards() {
    everywhere(|stage| {
        crowd(&stage);
        lead_cluster_ips_into_the_void(&stage);
        let clients: Vec<_> =
            (7_000..7_010).map(|port| client_at(&stage, Who::Node, Address::ClusterIp, 80, port)).collect();
        assert!(clients.iter().all(|client| client.ask().is_none()));
        stage.hold(web(&[A]));
        for client in clients {
            client.settles_on(Some(Place::PodA), TARGET);
        }
    });
}

/// Packets to cluster IPs that nobody translates leave the node and vanish, and each leaves a conntrack entry behind, as on a
/// node whose network plugin has rules of its own.
fn lead_cluster_ips_into_the_void(stage: &Stage) {
    let node = &stage.lab.network.node;
    node.ip_all(&[
        // Without ARP a packet goes to no station that is there.
        "link add void type veth peer name void-end".into(),
        "link set void arp off up".into(),
        "link set void-end up".into(),
        "route add 10.96.0.0/16 dev void".into(),
        "route add fd00:10:96::/64 dev void".into(),
    ]);
    let rules =
        "table inet plugin { chain c { type filter hook prerouting priority 0; ct state invalid drop; }; }";
    node.feed(Command::new("nft").args(["-f", "-"]), rules);
}

/// Connects to the web service from this port and never begins again: only the kernel repeats what was lost.
fn connect(from: &Namespace, family: Family, own: u16, patience: Duration) -> Result<IpAddr, ErrorKind> {
    let to = SocketAddr::new(Address::ClusterIp.ip(family), 80);
    let any: IpAddr = testkit::network::of(family, [[0; 4].into(), [0_u16; 8].into()]);
    let bind = |socket: &OwnedFd| Ok(rustix::net::bind(socket, &SocketAddr::new(any, own))?);
    let answer = from.enter(|| hear_connected(to, patience, bind));
    let text = answer.map_err(|error| error.kind())?;
    let endpoint: SocketAddr = text.split_once(' ').unwrap().0.parse().unwrap();
    Ok(endpoint.ip())
}

/// Clients connect while `begin` makes the service. None may have to begin again: neither those that wait for an answer, nor
/// those that come back with a port they had before.
fn clients_come_too_early(mut stage: Stage, begin: impl FnOnce(&mut Stage)) {
    const CLIENTS: u16 = 24;
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
    lead_cluster_ips_into_the_void(&stage);
    let (mode, family) = (stage.mode, stage.family);
    let callers: Vec<_> = [(Who::Pod, 20_000), (Who::Node, 21_000)]
        .map(|(who, first)| (stage.lab.namespace(who).clone(), who, first))
        .into();
    for (from, who, first) in &callers {
        for own in 100..105 {
            let answer = connect(from, family, first + own, Duration::from_millis(50));
            assert_eq!(answer, Err(ErrorKind::TimedOut), "{mode} {family} {who:?}: no rule translates yet");
        }
    }
    let succeed = |(from, who, first): &(Namespace, Who, u16), own: u16| {
        let answer = connect(from, family, first + own, CONNECT_TIMEOUT);
        assert_eq!(answer, Ok(Place::PodA.ip(family)), "{mode} {family} {who:?} client {own}");
    };
    std::thread::scope(|scope| {
        let succeed = &succeed;
        for caller in &callers {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    // Repeated packets come at every moment of a second, also when the rules have only just come.
                    std::thread::sleep(Duration::from_secs(1) * client.into() / CLIENTS.into());
                    succeed(caller, client);
                });
            }
        }
        std::thread::sleep(Duration::from_millis(500));
        begin(&mut stage);
        for caller in &callers {
            scope.spawn(move || {
                succeed(caller, 99);
                (100..105).for_each(|own| succeed(caller, own));
            });
        }
    });
}

#[test]
fn connections_begun_before_the_proxy_starts_succeed() {
    for_each_mode_and_family(|mode, family| {
        let stage = Stage::empty(mode, family, &[]);
        stage.hold(web(&[A]));
        clients_come_too_early(stage, Stage::start);
    });
}

#[test]
fn connections_begun_before_the_service_is_created_succeed() {
    everywhere(|stage| {
        let text = |service: Service| manifests::write(&[service.into()], stage.family);
        let (other, web) = (text(Service::other(&[A])), text(web(&[A])));
        // Its endpoints are there first: a Service that has none yet refuses.
        let (_, slice) = web.rsplit_once("---").unwrap();
        stage.hold_text(&format!("{other}---{slice}"));
        let other = SocketAddr::new(Address::OtherClusterIp.ip(stage.family), 80);
        tests::matrix::eventually("the proxy serves", || {
            let answer = testkit::talk::ask(stage.lab.namespace(Who::Pod), Protocol::Tcp, other);
            matches!(answer, testkit::talk::Answer::From { .. })
        });
        clients_come_too_early(stage, |stage| stage.hold_text(&web));
    });
}

/// Only in iptables mode: the other one's table has an owner, and is not to be flushed.
#[test]
fn flows_that_went_astray_while_a_stranger_had_flushed_the_rules_find_back() {
    std::thread::scope(|scope| {
        for family in Family::BOTH {
            scope.spawn(move || {
                let stage = Stage::new("iptables", family);
                stage.hold(web(&[A]));
                let first = client(&stage, Who::Pod, Address::ClusterIp, 80);
                first.settles_on(Some(Place::PodA), TARGET);
                // By then flows have been looked at for the last time because of that change.
                std::thread::sleep(Duration::from_secs(3));
                let iptables = testkit::network::of(family, ["iptables", "ip6tables"]);
                let mut astray = None;
                // The rules may be back before anybody notices.
                for port in 5_000..5_100 {
                    let client = client_at(&stage, Who::Pod, Address::ClusterIp, 80, port);
                    stage.lab.network.node.run(&format!("{iptables} -t nat -F"));
                    client.socket.send(b"?").unwrap();
                    let answer = hear(&client.socket, Duration::from_millis(300));
                    first.settles_on(Some(Place::PodA), TARGET);
                    if answer.is_err() {
                        astray = Some(client);
                        break;
                    }
                }
                let astray = astray.expect("a packet that comes while there are no rules");
                astray.settles_on(Some(Place::PodA), TARGET);
            });
        }
    });
}

#[test]
fn a_restart_ends_the_flows_to_pods_that_went_meanwhile_and_no_others() {
    everywhere(|mut stage| {
        stage.hold(web(&[A, B]));
        let client = client(&stage, Who::Pod, Address::ClusterIp, 80);
        let first = client.first_answer();
        let (kept, other) = if first.ip() == A.place.ip(stage.family) { (A, B) } else { (B, A) };
        stage.stop();
        stage.start();
        // Whoever served goes on to, restart or not; so nothing says when the new process is done but its rules.
        stage.hold(web(&[kept, R]));
        for _ in 0..30 {
            assert_eq!(client.ask(), Some(first), "the flow had no reason to end");
            std::thread::sleep(Duration::from_millis(50));
        }
        stage.stop();
        stage.hold(web(&[other]));
        assert_eq!(client.ask(), Some(first), "nobody is there to end it");
        stage.start();
        client.settles_on(Some(other.place), TARGET);
    });
}
