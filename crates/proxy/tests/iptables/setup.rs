//! Sysctls and detected features before the first sync, and packet counters after it.

use std::fs;
use std::net::IpAddr;

use kernel::iptables::{Rules, Variant, counted_packets, set_up};
use kernel::sysctl::Sysctls;
use model::address::Family;
use netlink::testing::in_fresh_netns;

use crate::commands::{Commands, VARIANTS};
use crate::machine::Machine;
use crate::options::{Options, interfaces};

#[test]
fn only_node_ports_at_localhost_need_route_localnet() {
    let loopback = || vec!["127.0.0.0/8".to_owned()];
    let elsewhere = || vec!["192.168.0.0/16".to_owned()];
    for (what, options, want) in [
        ("by default", Options::default(), "1"),
        ("loopback", Options { node_port_addresses: loopback(), ..Options::default() }, "1"),
        ("other addresses", Options { node_port_addresses: elsewhere(), ..Options::default() }, "0"),
        ("disabled", Options { localhost_node_ports: false, ..Options::default() }, "0"),
        ("IPv6", Options::v6(), "0"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("net/ipv4/conf/all");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("route_localnet"), "0").unwrap();
        set_up(&options.settings(), &Sysctls::at(root.path())).unwrap();
        assert_eq!(fs::read_to_string(folder.join("route_localnet")).unwrap(), want, "{what}");
    }
}

#[test]
fn the_error_of_a_sysctl_names_the_option_that_avoids_it() {
    let nowhere = tempfile::tempdir().unwrap();
    let error = set_up(&Options::default().settings(), &Sysctls::at(nowhere.path())).unwrap_err().to_string();
    assert!(error.contains("route_localnet") && error.contains("iptables.localhostNodePorts"), "{error}");
}

#[test]
fn features_follow_from_the_installed_version_and_the_kernel() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let abilities = |commands: &Commands| {
                let access = Rules::through(commands.programs(), Family::V4).unwrap();
                assert_eq!(access.variant(), variant);
                access.abilities()
            };
            assert!(abilities(&commands).random_fully && !abilities(&commands).tcp_liberal);
            commands.rewrite("iptables", "if [ \"$1\" = --version ]; then echo iptables v1.6.1; exit; fi");
            let old = Rules::through(commands.programs(), Family::V4).unwrap();
            assert!(!old.abilities().random_fully);
            assert_eq!(old.variant(), Variant::Legacy);
            let sysctl = Sysctls::default().ensure("net/netfilter/nf_conntrack_tcp_be_liberal", 1);
            if sysctl.is_ok() {
                commands.rewrite("iptables", "");
                assert!(abilities(&commands).tcp_liberal);
            }
        });
    }
}

#[test]
fn packets_are_counted_from_the_first_full_sync_on() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let before = counted_packets().unwrap();
        assert_eq!((before.invalid_dropped, before.localhost_node_ports), (None, None));
        Machine::new(&commands, Options::default()).sync();
        let after = counted_packets().unwrap();
        assert_eq!((after.invalid_dropped, after.localhost_node_ports), (Some(0), Some(0)));
    });
}

#[test]
fn addresses_that_cannot_serve_node_ports_are_reported() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Legacy);
        let node_port_addresses = vec!["127.0.0.0/8".to_owned(), "192.168.0.0/16".to_owned()];
        let options = Options { localhost_node_ports: false, node_port_addresses, ..Options::default() };
        let mut machine = Machine::new(&commands, options);
        let unserved = machine.rules.plan.set_node_port_ips(&interfaces());
        assert_eq!(unserved, ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        machine.sync();
        let tail = machine.saved().of("nat", "KUBE-SERVICES").unwrap().join("\n");
        assert!(tail.contains("-d 192.168.0.2/32") && !tail.contains("127.0.0.1"), "{tail}");
    });
}
