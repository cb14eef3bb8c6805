//! Against the real kernel: rules that translate, a client that keeps its port, and every look a dear one.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use model::names::{NamespacedName, Port, Protocol};
use model::routing::{Endpoint, Traffic};
use model::service::{Addresses, Created};
use netlink::testing::{hear, in_fresh_netns, run};

use super::*;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const PATIENCE: Duration = Duration::from_secs(10);

/// A node with a service at one address, endpoints with numbers, and a client on the node itself.
struct Stage {
    family: Family,
    conntrack: Conntrack,
    caught: Option<Receiver<HashSet<Packet>>>,
    client: UdpSocket,
}

fn ip(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 244, 0, number].into(),
        Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into(),
    }
}

fn service(family: Family) -> SocketAddr {
    SocketAddr::new(ip(family, 100), 53)
}

fn endpoint(family: Family, number: u8) -> SocketAddr {
    SocketAddr::new(ip(family, number), 5353)
}

impl Stage {
    fn new(family: Family) -> Self {
        run("ip link set lo up");
        let (nft, length) = if family == Family::V4 { ("ip", 32) } else { ("ip6", 128) };
        for number in [1, 2, 3, 100] {
            run(&format!("ip addr add {}/{length} dev lo nodad", ip(family, number)));
        }
        run(&format!("nft add table {nft} nat"));
        run(&format!("nft add chain {nft} nat output {{ type nat hook output priority -100; }}"));
        // Flows are followed only as long as a rule asks for something of them.
        run(&format!("nft add chain {nft} nat follow {{ type filter hook output priority 0; }}"));
        run(&format!("nft add rule {nft} nat follow ct state invalid drop"));
        let client = UdpSocket::bind(SocketAddr::new(ip(family, 1), 4000)).unwrap();
        client.connect(service(family)).unwrap();
        let mut conntrack = Conntrack::new(family);
        conntrack.dear = Duration::ZERO;
        let mut stage = Self { family, conntrack, caught: None, client };
        stage.serve(&[]);
        stage.settle();
        stage
    }

    /// Makes these the endpoints of the service; the rules send everyone to the first of them.
    fn serve(&mut self, numbers: &[u8]) {
        self.hear(numbers);
        let nft = if self.family == Family::V4 { "ip" } else { "ip6" };
        run(&format!("nft flush chain {nft} nat output"));
        if let Some(first) = numbers.first() {
            let (to, endpoint) = (service(self.family), endpoint(self.family, *first));
            let (ip, port) = (to.ip(), to.port());
            run(&format!(
                "nft add rule {nft} nat output {nft} daddr {ip} udp dport {port} dnat to {endpoint}"
            ));
        }
        self.conntrack.follow_rules();
    }

    fn hear(&mut self, numbers: &[u8]) {
        let port = |number: u16| Port::from_api(number.into()).unwrap();
        let endpoints: Arc<[Endpoint]> = numbers
            .iter()
            .map(|number| Endpoint { ip: ip(self.family, *number), local: false, port: port(5353) })
            .collect();
        let name = ServicePortName {
            service: NamespacedName::new("ns", "dns"),
            port: "".into(),
            protocol: Protocol::Udp,
        };
        let routing = Routing {
            protocol: Protocol::Udp,
            port: port(53),
            node_port: None,
            addresses: Arc::new(Addresses {
                cluster_ip: service(self.family).ip(),
                external_ips: Box::default(),
                load_balancer_ips: Box::default(),
                source_ranges: Box::default(),
            }),
            created: Created::UNKNOWN,
            affinity: None,
            cluster: endpoints.clone(),
            local: Arc::default(),
            internal: Traffic::ToCluster,
            external: Traffic::ToCluster,
            preserves_client: false,
            ranges_admit_node: false,
            is_externally_accessible: true,
            health_check_node_port: None,
            serving: endpoints,
        };
        self.conntrack.hear(&[(name, Some(Arc::new(routing)))]);
    }

    /// Looks without being rested, so that there is nothing but the trap.
    fn look_hurriedly(&mut self) {
        let (ended, _) = self.conntrack.last.unwrap();
        // Whatever the machine was busy with, this look comes right after the last one.
        assert_eq!(self.conntrack.look(ended, |_| false).unwrap(), None, "did not rest");
        if let Some(catches) = self.conntrack.take_catches() {
            let (tell, caught) = channel();
            std::thread::spawn(move || catches.run(|packets| tell.send(packets).is_ok()));
            self.caught = Some(caught);
        }
    }

    /// Does all there is to do, also what is done later.
    fn settle(&mut self) {
        while let Some(due) = self.conntrack.due() {
            self.conntrack.look(due, |_| false).unwrap();
        }
    }

    /// On its way through the loopback a packet is reported twice, the second time translated, when no flow is known by it.
    fn end_caught(&mut self) {
        while {
            let packets = self.caught.as_ref().unwrap().recv_timeout(PATIENCE).unwrap();
            self.conntrack.end_caught(&packets).unwrap() == 0
        } {}
    }

    /// The client may send, but not to that one.
    fn is_caught(&mut self, server: &UdpSocket) {
        self.client.send(b"?").unwrap();
        self.end_caught();
        server.set_nonblocking(true).unwrap();
        let heard = server.recv_from(&mut [0; 8]);
        assert!(heard.is_err(), "{heard:?}");
        server.set_nonblocking(false).unwrap();
    }

    /// That one gets what the client sends.
    fn asked(&self, server: &UdpSocket) {
        self.client.send(b"?").unwrap();
        assert_eq!(hear(server).1, self.client.local_addr().unwrap());
    }

    fn server(&self, number: u8) -> UdpSocket {
        UdpSocket::bind(endpoint(self.family, number)).unwrap()
    }

    /// What `nft` lists of the table, nothing if there is none.
    fn trap(&self) -> String {
        let family = wire_family(self.family).to_string();
        let list = Command::new("nft").args(["list", "table", &family, trap::TABLE]).output().unwrap();
        String::from_utf8(list.stdout).unwrap()
    }
}

#[test]
fn a_stale_flow_is_caught_with_its_next_packet_and_ended() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            let mut stage = Stage::new(family);
            let (second, third) = (stage.server(2), stage.server(3));
            stage.serve(&[2]);
            stage.settle();
            stage.asked(&second);
            stage.serve(&[3]);
            stage.look_hurriedly();
            let element = format!("{} . 53 . {} . 5353", service(family).ip(), endpoint(family, 2).ip());
            assert!(stage.trap().contains(&element), "{}", stage.trap());
            stage.is_caught(&second);
            stage.asked(&third);
            stage.asked(&third);
            stage.settle();
            assert_eq!(stage.trap(), "", "nothing to catch any more");
            stage.asked(&third);
        }
    });
}

#[test]
fn a_flow_that_went_astray_before_there_was_anybody_is_caught_too() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            let mut stage = Stage::new(family);
            // Nobody translates, and nobody refuses: here it arrives at the service's own address.
            let astray = UdpSocket::bind(service(family)).unwrap();
            stage.asked(&astray);
            let second = stage.server(2);
            stage.serve(&[2]);
            stage.look_hurriedly();
            stage.is_caught(&astray);
            stage.asked(&second);
            stage.asked(&second);
        }
    });
}

#[test]
fn an_endpoint_that_comes_back_has_its_flows_back_before_the_rules_know() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            let mut stage = Stage::new(family);
            let second = stage.server(2);
            stage.serve(&[2, 3]);
            stage.settle();
            stage.asked(&second);
            stage.serve(&[3]);
            stage.look_hurriedly();
            assert_ne!(stage.trap(), "");
            stage.hear(&[3, 2]);
            assert_eq!(stage.trap(), "");
            stage.asked(&second);
        }
    });
}

#[test]
fn a_service_without_endpoints_keeps_its_flows_until_there_is_another_one() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            let mut stage = Stage::new(family);
            let (second, third) = (stage.server(2), stage.server(3));
            stage.serve(&[2]);
            stage.settle();
            stage.asked(&second);
            stage.serve(&[]);
            stage.settle();
            stage.asked(&second);
            stage.serve(&[3]);
            stage.look_hurriedly();
            stage.is_caught(&second);
            stage.asked(&third);
        }
    });
}

#[test]
fn what_comes_back_as_often_as_it_is_ended_is_let_go() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            let mut stage = Stage::new(family);
            let second = stage.server(2);
            stage.serve(&[2]);
            stage.settle();
            stage.asked(&second);
            stage.hear(&[3]);
            // Somebody's rules still lead to the second one.
            stage.conntrack.follow_rules();
            stage.look_hurriedly();
            for _ in 0..4 {
                assert_ne!(stage.trap(), "");
                // Here the first packet of a flow is stopped, too, on arrival.
                stage.client.send(b"?").unwrap();
                stage.is_caught(&second);
            }
            assert_eq!(stage.trap(), "");
            stage.asked(&second);
            stage.conntrack.lay_trap();
            assert_eq!(stage.trap(), "", "not caught again");
            stage.settle();
        }
    });
}

#[test]
fn without_a_trap_flows_are_looked_for() {
    in_fresh_netns(|| {
        let mut stage = Stage::new(Family::V4);
        let (second, third) = (stage.server(2), stage.server(3));
        stage.serve(&[2]);
        stage.settle();
        stage.asked(&second);
        stage.serve(&[3]);
        stage.look_hurriedly();
        assert_ne!(stage.trap(), "");
        let at_leisure = stage.conntrack.due().unwrap();
        stage.conntrack.go_without_trap();
        assert_eq!(stage.trap(), "");
        assert!(stage.conntrack.due().unwrap() < at_leisure);
        stage.settle();
        stage.asked(&third);
    });
}

#[test]
fn where_a_look_costs_little_no_trap_is_laid() {
    in_fresh_netns(|| {
        let mut stage = Stage::new(Family::V4);
        stage.conntrack.dear = Duration::from_secs(60);
        let (second, third) = (stage.server(2), stage.server(3));
        stage.serve(&[2]);
        stage.settle();
        stage.asked(&second);
        stage.serve(&[3]);
        stage.look_hurriedly();
        assert_eq!(stage.trap(), "");
        stage.settle();
        stage.asked(&third);
    });
}

#[test]
fn the_trap_goes_with_whoever_laid_it() {
    in_fresh_netns(|| {
        let mut stage = Stage::new(Family::V4);
        stage.serve(&[2]);
        stage.settle();
        stage.serve(&[3]);
        stage.look_hurriedly();
        assert_ne!(stage.trap(), "");
        stage.conntrack = Conntrack::new(Family::V4);
        assert_eq!(stage.trap(), "");
    });
}
