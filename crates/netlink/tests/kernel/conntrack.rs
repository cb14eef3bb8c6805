//! Lists, finds, creates and deletes flows.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use netlink::Family;
use netlink::conntrack::{ConntrackSocket, Filter, Flow, Tuple};
use netlink::testing::{in_fresh_netns, run};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ALL_UDP: Filter = Filter { protocol: UDP, destination: None, only_attempts: false };

/// Enables connection tracking, and sends one packet from each port to port 53 on loopback.
fn send(ip: &str, ports: std::ops::Range<u16>) -> Vec<UdpSocket> {
    run("ip link set lo up");
    for family in ["ip", "ip6"] {
        run(&format!("nft add table {family} t"));
        run(&format!("nft add chain {family} t c {{ type filter hook output priority 0; }}"));
        run(&format!("nft add rule {family} t c ct state invalid drop"));
    }
    let to: SocketAddr = (ip.parse::<IpAddr>().unwrap(), 53).into();
    let from = |port| {
        let socket = UdpSocket::bind((ip, port)).unwrap();
        socket.send_to(b"x", to).unwrap();
        socket
    };
    ports.map(from).collect()
}

fn sources(connection: &mut ConntrackSocket, family: Family) -> Vec<SocketAddr> {
    let mut sources = Vec::new();
    connection
        .flows(family, ALL_UDP, |flow| {
            sources.push(flow.original.source);
            false
        })
        .unwrap();
    sources.sort();
    sources
}

#[test]
fn flows_are_listed_and_deleted() {
    in_fresh_netns(|| {
        let _sockets = send("127.0.0.1", 4000..4600);
        let mut connection = ConntrackSocket::open().unwrap();
        assert_eq!(connection.count().unwrap(), 600);
        assert_eq!(sources(&mut connection, Family::Ipv4).len(), 600);
        assert_eq!(sources(&mut connection, Family::Ipv6).len(), 0);
        let all_but_two = connection
            .flows(Family::Ipv4, ALL_UDP, |flow| {
                assert_eq!(flow.original.destination, flow.reply.source, "not translated");
                ![4000, 4599].contains(&flow.original.source.port())
            })
            .unwrap();
        assert_eq!(connection.end(Family::Ipv4, &all_but_two).unwrap(), 598);
        let left: Vec<_> = sources(&mut connection, Family::Ipv4).iter().map(SocketAddr::port).collect();
        assert_eq!(left, [4000, 4599]);
        assert_eq!(connection.end(Family::Ipv4, &all_but_two).unwrap(), 598, "deleted before");
    });
}

#[test]
fn a_flow_is_found_by_a_packet_of_either_direction() {
    in_fresh_netns(|| {
        let _sockets = (send("127.0.0.1", 4000..4002), send("::1", 4000..4002));
        let mut connection = ConntrackSocket::open().unwrap();
        for (family, ip) in [(Family::Ipv4, "127.0.0.1"), (Family::Ipv6, "::1")] {
            let at = |port| SocketAddr::new(ip.parse().unwrap(), port);
            let packet = |from, to| Tuple { protocol: UDP, source: at(from), destination: at(to) };
            let found = connection.find(family, packet(4000, 53)).unwrap().unwrap();
            assert_eq!(found.0.original, packet(4000, 53));
            assert_eq!(found.0.reply, packet(53, 4000));
            let (same, _) = connection.find(family, packet(53, 4000)).unwrap().unwrap();
            assert_eq!(same, found.0);
            assert!(connection.find(family, packet(4002, 53)).unwrap().is_none());
            assert_eq!(connection.end(family, &[found]).unwrap(), 1);
            assert!(connection.find(family, packet(4000, 53)).unwrap().is_none());
            assert!(connection.find(family, packet(4001, 53)).unwrap().is_some());
        }
    });
}

#[test]
fn flows_of_the_other_family_and_of_other_protocols_are_not_listed() {
    in_fresh_netns(|| {
        let _sockets = send("::1", 4000..4001);
        let listener = std::net::TcpListener::bind("[::1]:80").unwrap();
        let _stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut connection = ConntrackSocket::open().unwrap();
        assert_eq!(sources(&mut connection, Family::Ipv4), []);
        assert_eq!(sources(&mut connection, Family::Ipv6), ["[::1]:4000".parse().unwrap()]);
        assert_eq!(
            connection.flows(Family::Ipv6, Filter { protocol: TCP, ..ALL_UDP }, |_| true).unwrap().len(),
            1
        );
    });
}

#[test]
fn flows_can_be_filtered_by_destination() {
    in_fresh_netns(|| {
        let _sockets = (send("127.0.0.1", 4000..4003), send("::1", 4000..4003));
        let other = UdpSocket::bind("127.0.0.1:4500").unwrap();
        other.send_to(b"x", "127.0.0.2:53").unwrap();
        let mut connection = ConntrackSocket::open().unwrap();
        let mut count = |family, ip: &str| {
            let mut seen = 0;
            let see = |_: &Flow| {
                seen += 1;
                false
            };
            let filter = Filter { destination: Some(ip.parse().unwrap()), ..ALL_UDP };
            connection.flows(family, filter, see).unwrap();
            seen
        };
        assert_eq!(count(Family::Ipv4, "127.0.0.1"), 3);
        assert_eq!(count(Family::Ipv4, "127.0.0.2"), 1);
        assert_eq!(count(Family::Ipv4, "127.0.0.3"), 0);
        assert_eq!(count(Family::Ipv6, "::1"), 3);
    });
}

#[test]
fn flows_can_be_filtered_by_status() {
    in_fresh_netns(|| {
        let at = |number: u8, port| SocketAddr::new([10, 0, 0, number].into(), port);
        let from = |port| Tuple { protocol: TCP, source: at(1, port), destination: at(2, 80) };
        let attempt = |flow| Flow { has_reply: false, ..flow };
        let flows = [
            Flow::untranslated(from(1)),
            Flow::translated(from(2), at(3, 8080)),
            attempt(Flow::untranslated(from(3))),
            attempt(Flow::translated(from(4), at(3, 8080))),
            attempt(Flow::untranslated(Tuple { protocol: UDP, ..from(5) })),
        ];
        let mut connection = ConntrackSocket::open().unwrap();
        connection.make(Family::Ipv4, &flows).unwrap();
        let filter = Filter { protocol: TCP, destination: None, only_attempts: true };
        let found = connection.flows(Family::Ipv4, filter, |_| true).unwrap();
        assert_eq!(found.iter().map(|(flow, _)| *flow).collect::<Vec<_>>(), [flows[2]]);
        let all = Filter { only_attempts: false, ..filter };
        let mut found = connection.flows(Family::Ipv4, all, |_| true).unwrap();
        found.sort_by_key(|(flow, _)| flow.original.source);
        assert_eq!(found.iter().map(|(flow, _)| *flow).collect::<Vec<_>>(), flows[..4]);
        assert_eq!(connection.end_unanswered(Family::Ipv4, &found).unwrap(), 2, "two have replies");
        assert_eq!(connection.flows(Family::Ipv4, all, |_| true).unwrap().len(), 2);
        assert_eq!(connection.end_unanswered(Family::Ipv4, &found).unwrap(), 0);
    });
}
