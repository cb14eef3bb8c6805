//! What is committed is what `ipvsadm` prints, and what is read back.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use kernel::ipvs::{IpvsTimeouts, ServersError, is_transient};
use model::address::Family;
use netlink::faults::Faults;
use netlink::testing::run;
use plan::ipvs::servers::{
    HASH_PORT, INTERFACE, PERSISTENT, RealServer, ServerStep, VirtualAddress, VirtualServer,
};
use testkit::bench::figures::processor;
use testkit::wait::eventually;

use crate::setup::{
    add_real, add_virtual, bind, in_netns_with_ipvs, lines, open, plain, real, saved, virtual_address,
};

fn texts(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[test]
fn ipvsadm_prints_what_was_committed_for_ipv4() {
    in_netns_with_ipvs(|| {
        let mut servers = open(Family::V4);
        let persistent = VirtualServer { scheduler: "rr".into(), flags: PERSISTENT, timeout: 10_800 };
        let hashed = VirtualServer { scheduler: "mh".into(), flags: HASH_PORT, timeout: 0 };
        let outcome = servers
            .commit(&[
                ServerStep::AddVirtual(virtual_address("10.96.0.10:80/TCP"), persistent),
                add_real("10.96.0.10:80/TCP", "10.244.1.1:8080", 1),
                add_real("10.96.0.10:80/TCP", "10.244.1.2:8080", 0),
                ServerStep::AddVirtual(virtual_address("10.96.0.10:53/UDP"), hashed),
                add_real("10.96.0.10:53/UDP", "10.244.1.3:5353", 7),
                add_virtual("10.96.0.11:38412/SCTP", "lc"),
                add_real("10.96.0.11:38412/SCTP", "10.244.1.4:38412", 65_535),
            ])
            .unwrap();
        assert_eq!((outcome.writes, outcome.added, outcome.deleted), (1, 7, 0), "one send is enough");
        assert_eq!(
            saved(),
            texts(&[
                "-A -t 10.96.0.10:80 -s rr -p 10800",
                "-a -t 10.96.0.10:80 -r 10.244.1.1:8080 -m -w 1",
                "-a -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 0",
                "-A -u 10.96.0.10:53 -s mh -b mh-port",
                "-a -u 10.96.0.10:53 -r 10.244.1.3:5353 -m -w 7",
                "-A --sctp-service 10.96.0.11:38412 -s lc",
                "-a --sctp-service 10.96.0.11:38412 -r 10.244.1.4:38412 -m -w 65535",
            ])
        );
        assert_eq!(
            lines(&servers.read().unwrap()),
            [
                "10.96.0.10:80/TCP rr 0x1 10800",
                "10.96.0.10:80/TCP -> 10.244.1.1:8080 1",
                "10.96.0.10:80/TCP -> 10.244.1.2:8080 0",
                "10.96.0.10:53/UDP mh 0x10 0",
                "10.96.0.10:53/UDP -> 10.244.1.3:5353 7",
                "10.96.0.11:38412/SCTP lc 0x0 0",
                "10.96.0.11:38412/SCTP -> 10.244.1.4:38412 65535",
            ]
        );
    });
}

#[test]
fn ipvsadm_prints_what_was_committed_for_ipv6() {
    in_netns_with_ipvs(|| {
        let mut servers = open(Family::V6);
        let persistent = VirtualServer { scheduler: "rr".into(), flags: PERSISTENT, timeout: 60 };
        servers
            .commit(&[
                ServerStep::AddVirtual(virtual_address("[fd00:10:96::a]:80/TCP"), persistent),
                add_real("[fd00:10:96::a]:80/TCP", "[fd00:10:244::1]:8080", 1),
                add_virtual("[fd00:10:96::a]:53/UDP", "rr"),
                add_virtual("[fd00:10:96::b]:38412/SCTP", "rr"),
                add_real("[fd00:10:96::b]:38412/SCTP", "[fd00:10:244::2]:38412", 1),
            ])
            .unwrap();
        assert_eq!(
            saved(),
            texts(&[
                "-A -t [fd00:10:96::a]:80 -s rr -p 60",
                "-a -t [fd00:10:96::a]:80 -r [fd00:10:244::1]:8080 -m -w 1",
                "-A -u [fd00:10:96::a]:53 -s rr",
                "-A --sctp-service [fd00:10:96::b]:38412 -s rr",
                "-a --sctp-service [fd00:10:96::b]:38412 -r [fd00:10:244::2]:38412 -m -w 1",
            ])
        );
        let found = lines(&servers.read().unwrap());
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!(found[0], "[fd00:10:96::a]:80/TCP rr 0x1 60");
        assert_eq!(lines(&open(Family::V4).read().unwrap()), [""; 0], "IPv4 has none");
    });
}

#[test]
fn servers_are_changed_and_deleted() {
    in_netns_with_ipvs(|| {
        let mut servers = open(Family::V4);
        let at = "10.96.0.10:80/TCP";
        servers
            .commit(&[
                add_virtual(at, "rr"),
                add_real(at, "10.244.1.1:8080", 1),
                add_real(at, "10.244.1.2:8080", 1),
                add_virtual("10.96.0.11:80/TCP", "rr"),
                add_real("10.96.0.11:80/TCP", "10.244.1.1:8080", 1),
            ])
            .unwrap();
        let changed = VirtualServer { scheduler: "lc".into(), flags: PERSISTENT, timeout: 300 };
        let outcome = servers
            .commit(&[
                ServerStep::SetVirtual(virtual_address(at), changed),
                ServerStep::SetWeight(virtual_address(at), real("10.244.1.1:8080"), 0),
                ServerStep::DeleteReal(virtual_address(at), real("10.244.1.2:8080")),
                ServerStep::DeleteVirtual(virtual_address("10.96.0.11:80/TCP")),
            ])
            .unwrap();
        assert_eq!((outcome.writes, outcome.added, outcome.deleted), (1, 2, 2));
        assert_eq!(
            saved(),
            texts(&["-A -t 10.96.0.10:80 -s lc -p 300", "-a -t 10.96.0.10:80 -r 10.244.1.1:8080 -m -w 0"])
        );
    });
}

#[test]
fn a_kernel_in_another_state_than_assumed_is_reported_as_such() {
    in_netns_with_ipvs(|| {
        let mut servers = open(Family::V4);
        let at = "10.96.0.10:80/TCP";
        servers.commit(&[add_virtual(at, "rr"), add_real(at, "10.244.1.1:8080", 1)]).unwrap();
        let none = "10.96.0.99:80/TCP";
        for (step, want) in [
            (add_virtual(at, "lc"), "adding virtual server 10.96.0.10:80/TCP with scheduler lc"),
            (add_real(at, "10.244.1.1:8080", 3), "adding real server 10.244.1.1:8080 to 10.96.0.10:80/TCP"),
            (add_real(none, "10.244.1.1:8080", 3), "adding real server 10.244.1.1:8080 to 10.96.0.99:80/TCP"),
            (
                ServerStep::SetVirtual(virtual_address(none), plain("rr")),
                "changing virtual server 10.96.0.99:80/TCP to scheduler rr",
            ),
            (ServerStep::DeleteVirtual(virtual_address(none)), "deleting virtual server 10.96.0.99:80/TCP"),
            (
                ServerStep::SetWeight(virtual_address(at), real("10.244.1.9:1"), 2),
                "setting the weight of real server 10.244.1.9:1 of 10.96.0.10:80/TCP to 2",
            ),
            (
                ServerStep::DeleteReal(virtual_address(none), real("10.244.1.9:1")),
                "deleting real server 10.244.1.9:1 from 10.96.0.99:80/TCP",
            ),
        ] {
            // A step that succeeds, and one that follows: the error names the one that failed.
            let steps = [
                ServerStep::SetWeight(virtual_address(at), real("10.244.1.1:8080"), 4),
                step,
                ServerStep::SetWeight(virtual_address(at), real("10.244.1.1:8080"), 5),
            ];
            let error = servers.commit(&steps).unwrap_err();
            assert!(is_transient(&error), "{error:?}");
            match error {
                ServersError::Stale(rejected) => assert_eq!(rejected.to_string(), want),
                error => panic!("{want}: {error:?}"),
            }
        }
        run(&format!("ip link delete {INTERFACE}"));
        let error = servers.commit(&[bind("10.96.0.10")]).unwrap_err();
        assert!(matches!(error, ServersError::Stale(_)), "{error:?}");
    });
}

#[test]
fn steps_that_the_kernel_rejects_do_not_keep_others_from_being_applied() {
    in_netns_with_ipvs(|| {
        let mut servers = open(Family::V4);
        let (bad, good) = ("10.96.0.10:80/TCP", "10.96.0.11:80/TCP");
        let error = servers
            .commit(&[
                add_virtual(bad, "nonesuch"),
                add_real(bad, "10.244.1.1:8080", 1),
                add_virtual(good, "rr"),
                add_real(good, "224.0.0.1:8080", 1),
                add_real(good, "10.244.1.1:8080", 1),
                bind("10.96.0.11"),
            ])
            .unwrap_err();
        assert!(!is_transient(&error), "{error:?}");
        let ServersError::Refused { first, others } = error else { panic!("{error:?}") };
        let rejected: Vec<String> = [first].iter().chain(&others).map(ToString::to_string).collect();
        assert_eq!(
            rejected,
            [
                "adding virtual server 10.96.0.10:80/TCP with scheduler nonesuch",
                "adding real server 10.244.1.1:8080 to 10.96.0.10:80/TCP",
                "adding real server 224.0.0.1:8080 to 10.96.0.11:80/TCP",
            ]
        );
        let actual = servers.read().unwrap();
        assert_eq!(lines(&actual), ["10.96.0.11:80/TCP rr 0x0 0", "10.96.0.11:80/TCP -> 10.244.1.1:8080 1"]);
        assert_eq!(actual.bound.len(), 1);
    });
}

#[test]
fn a_scheduler_is_checked_and_its_module_loaded() {
    in_netns_with_ipvs(|| {
        let mut servers = open(Family::V4);
        let error = servers.check_scheduler("nonesuch").unwrap_err();
        let ServersError::Refused { first, .. } = error else { panic!("{error:?}") };
        assert_eq!(first.to_string(), "adding virtual server 198.51.100.0:20000/TCP with scheduler nonesuch");
        for scheduler in ["rr", "wrr", "lc", "mh", "sh"] {
            servers.check_scheduler(scheduler).unwrap();
        }
        assert_eq!(saved(), texts(&[]), "the check leaves nothing");
        // Left by a process that was killed.
        run("ipvsadm -A -t 198.51.100.0:20000 -s rr");
        servers.check_scheduler("lc").unwrap();
        assert_eq!(saved(), texts(&[]));
        run("ipvsadm -A -t 10.96.0.10:80 -s rr");
        servers.check_scheduler("rr").unwrap();
        assert_eq!(saved().len(), 1, "a virtual server with that scheduler is enough");
    });
}

#[test]
fn timeouts_are_set_and_zero_keeps_one() {
    in_netns_with_ipvs(|| {
        let mut servers = open(Family::V4);
        servers.set_timeouts(IpvsTimeouts { tcp: 901, tcp_fin: 121, udp: 301 }).unwrap();
        servers.set_timeouts(IpvsTimeouts { tcp: 0, tcp_fin: 99, udp: 0 }).unwrap();
        assert_eq!(run("ipvsadm -L --timeout").trim(), "Timeout (tcp tcpfin udp): 901 99 301");
    });
}

#[test]
fn addresses_are_added_to_an_interface_that_is_down() {
    in_netns_with_ipvs(|| {
        let (mut v4, mut v6) = (open(Family::V4), open(Family::V6));
        v4.ensure_interface().expect("it exists");
        let outcome = v4.commit(&[bind("10.96.0.10"), bind("10.96.0.11"), bind("10.96.0.10")]).unwrap();
        assert_eq!((outcome.writes, outcome.added), (1, 3));
        v6.commit(&[bind("fd00:10:96::a")]).unwrap();
        let listed = run(&format!("ip -o addr show dev {INTERFACE}"));
        for want in
            ["inet 10.96.0.10/32 scope global", "inet 10.96.0.11/32", "inet6 fd00:10:96::a/128 scope global"]
        {
            assert!(listed.contains(want), "{want} in {listed}");
        }
        assert!(!run(&format!("ip link show dev {INTERFACE}")).contains("UP"), "it is never up");
        // Addresses of other programs, and of another length, are not reported.
        run(&format!("ip addr add 192.0.2.1/24 dev {INTERFACE}"));
        run("ip addr add 192.0.2.9/32 dev lo");
        let bound = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect::<BTreeSet<IpAddr>>();
        assert_eq!(v4.read().unwrap().bound, bound(&["10.96.0.10", "10.96.0.11"]));
        assert_eq!(v6.read().unwrap().bound, bound(&["fd00:10:96::a"]));

        let unbind = |ip: &str| ServerStep::Unbind(ip.parse().unwrap());
        v4.commit(&[unbind("10.96.0.10"), unbind("10.96.0.10"), unbind("10.96.0.77")]).unwrap();
        v6.commit(&[unbind("fd00:10:96::a"), unbind("fd00:10:96::b")]).unwrap();
        assert_eq!(v4.read().unwrap().bound, bound(&["10.96.0.11"]));
        assert_eq!(v6.read().unwrap().bound, bound(&[]));
        run(&format!("ip link delete {INTERFACE}"));
        v4.commit(&[unbind("10.96.0.11")]).expect("it went with the interface");
    });
}

#[test]
fn connections_of_a_real_server_are_counted() {
    in_netns_with_ipvs(|| {
        run("ip addr add 192.0.2.1/32 dev lo");
        let listener = TcpListener::bind("192.0.2.1:8080").unwrap();
        let mut servers = open(Family::V4);
        let at = "10.96.0.10:80/TCP";
        servers
            .commit(&[add_virtual(at, "rr"), add_real(at, "192.0.2.1:8080", 1), bind("10.96.0.10")])
            .unwrap();
        let mut client =
            TcpStream::connect("10.96.0.10:80").expect("the address is local, though its link is down");
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"hello").unwrap();
        let mut received = [0; 5];
        client.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"hello");

        let found = servers.real_servers(virtual_address(at)).unwrap();
        let actual = found[&real("192.0.2.1:8080")];
        assert_eq!((actual.active, actual.inactive), (1, 0));
        // The kernel updates its statistics every two seconds.
        eventually("the connection is counted", || {
            let actual = servers.read().unwrap();
            let reals = &actual.virtual_servers[&virtual_address(at)].real_servers;
            reals[&real("192.0.2.1:8080")].connections == 1
        });
        assert!(servers.real_servers(virtual_address("10.96.0.99:80/TCP")).unwrap().is_empty());
    });
}

#[test]
fn a_family_is_read_completely_while_the_other_one_changes() {
    in_netns_with_ipvs(|| {
        let add = |text: String| ServerStep::AddVirtual(virtual_address(&text), plain("rr"));
        let delete = |text: String| ServerStep::DeleteVirtual(virtual_address(&text));
        let (mut v4, mut v6) = (open(Family::V4), open(Family::V6));
        let v4_text = |port: u16| format!("10.96.0.10:{port}/TCP");
        v4.commit(&(1..=500).map(v4_text).map(add).collect::<Vec<_>>()).unwrap();
        let v6_text = |port: u16| format!("[fd00:10:96::a]:{port}/TCP");
        v6.commit(&(1..=2_000).map(v6_text).map(add).collect::<Vec<_>>()).unwrap();

        // Deletes those of IPv4 after the first datagrams of the list have been received.
        let deleted: Vec<_> = (1..=500).map(v4_text).map(delete).collect();
        let mut calls = 0;
        let mut observed = Faults::new(0, 0, &[]).observed_by(move || {
            calls += 1;
            if calls == 8 {
                v4.commit(&deleted).unwrap();
            }
        });
        let actual = observed.during(|| v6.read()).unwrap();
        assert_eq!(actual.virtual_servers.len(), 2_000);
        assert_eq!(saved().len(), 2_000, "those of IPv4 were deleted meanwhile");
    });
}

#[test]
fn ten_thousand_virtual_servers_with_five_real_servers_each_are_added_and_read() {
    const VIRTUAL: u32 = 10_000;
    in_netns_with_ipvs(|| {
        let ip = |number: u32| IpAddr::from(Ipv4Addr::from(number));
        let at = |n: u32| VirtualAddress { ip: ip(11 << 24 | n), ..virtual_address("0.0.0.0:80/TCP") };
        let of = |n: u32, m: u32| RealServer { ip: ip(10 << 24 | (5 * n + m)), ..real("0.0.0.0:8080") };
        let each_real =
            |step: fn(VirtualAddress, RealServer, u32) -> ServerStep, weight| -> Vec<ServerStep> {
                let pairs = (0..VIRTUAL).flat_map(|n| (0..5).map(move |m| (n, m)));
                pairs.map(|(n, m)| step(at(n), of(n, m), weight)).collect()
            };
        let mut servers = open(Family::V4);
        for (what, steps) in [
            ("AddVirtual", (0..VIRTUAL).map(|n| ServerStep::AddVirtual(at(n), plain("rr"))).collect()),
            ("AddReal", each_real(ServerStep::AddReal, 1)),
            ("SetWeight", each_real(ServerStep::SetWeight, 3)),
            ("Bind", (0..VIRTUAL).map(|n| ServerStep::Bind(at(n).ip)).collect::<Vec<_>>()),
        ] {
            let began = processor();
            servers.commit(&steps).unwrap();
            eprintln!("{what}: {:.4} ms each", (processor() - began) / steps.len() as f64);
        }
        let began = processor();
        let actual = servers.read().unwrap();
        eprintln!("read: {:.0} ms", processor() - began);
        assert_eq!(actual.bound.len(), VIRTUAL as usize);
        assert_eq!(actual.virtual_servers.len(), VIRTUAL as usize);
        for (address, found) in actual.virtual_servers {
            let weights: Vec<u32> = found.real_servers.values().map(|real| real.weight).collect();
            assert_eq!(weights, [3; 5], "{address:?}");
        }
    });
}
