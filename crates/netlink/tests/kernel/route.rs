//! Reads links, addresses and routes, and receives changes of addresses.

use std::time::Duration;

use netlink::Family;
use netlink::route::{AddressChanges, RouteSocket};
use netlink::testing::{in_fresh_netns, run};

fn ip_command(arguments: &str) {
    run(&format!("ip {arguments}"));
}

/// An interface that is up, without the link-local address that the kernel would add later.
fn add_link(name: &str) {
    ip_command(&format!("link add {name} type veth peer name {name}-peer"));
    ip_command(&format!("link set {name} addrgenmode none"));
    ip_command(&format!("link set {name}-peer addrgenmode none"));
    ip_command(&format!("link set {name} up"));
    ip_command(&format!("link set {name}-peer up"));
}

fn source(family: Family) -> Option<(String, String)> {
    let source = RouteSocket::open().unwrap().default_source(family).unwrap()?;
    Some((source.interface.to_string(), source.address.to_string()))
}

#[test]
fn a_new_namespace_has_only_a_loopback_that_is_down() {
    in_fresh_netns(|| {
        let mut connection = RouteSocket::open().unwrap();
        let links = connection.links().unwrap();
        assert_eq!(links.iter().map(|link| &*link.name).collect::<Vec<_>>(), ["lo"]);
        assert!(links[0].is_loopback && !links[0].is_up, "{links:?}");
        assert_eq!(connection.addresses().unwrap(), []);
        assert_eq!(connection.default_source(Family::Ipv4).unwrap(), None);
        assert_eq!(connection.default_source(Family::Ipv6).unwrap(), None);
    });
}

#[test]
fn addresses_have_the_name_of_their_interface_and_not_their_label() {
    in_fresh_netns(|| {
        ip_command("link set lo up");
        add_link("d0");
        ip_command("addr add 192.0.2.5/24 dev d0 label d0:web");
        ip_command("addr add 198.51.100.1 peer 198.51.100.2 dev d0");
        ip_command("-6 addr add 2001:db8::5/64 dev d0 nodad");
        let addresses = RouteSocket::open().unwrap().addresses().unwrap();
        let mut seen: Vec<_> = addresses
            .iter()
            .map(|a| {
                format!(
                    "{} {}/{} scope {} loopback {}",
                    a.name, a.address, a.prefix_length, a.scope, a.is_loopback
                )
            })
            .collect();
        seen.sort();
        assert_eq!(
            seen,
            [
                "d0 192.0.2.5/24 scope 0 loopback false",
                "d0 198.51.100.1/32 scope 0 loopback false",
                "d0 2001:db8::5/64 scope 0 loopback false",
                "lo 127.0.0.1/8 scope 254 loopback true",
                "lo ::1/128 scope 254 loopback true",
            ]
        );
    });
}

#[test]
fn the_default_source_is_that_of_the_route_with_the_lowest_metric() {
    in_fresh_netns(|| {
        for (name, v4, v6) in
            [("d0", "192.0.2.5/24", "2001:db8:1::5/64"), ("d1", "198.51.100.5/24", "2001:db8:2::5/64")]
        {
            add_link(name);
            ip_command(&format!("addr add {v4} dev {name}"));
            ip_command(&format!("-6 addr add {v6} dev {name} nodad"));
        }
        ip_command("route add default via 192.0.2.1 metric 200");
        ip_command("-6 route add default via 2001:db8:1::1 metric 300");
        assert_eq!(source(Family::Ipv4), Some(("d0".into(), "192.0.2.5".into())));
        assert_eq!(source(Family::Ipv6), Some(("d0".into(), "2001:db8:1::5".into())));

        ip_command("route add default via 198.51.100.1 metric 100");
        ip_command("-6 route add default via 2001:db8:2::1 metric 100");
        assert_eq!(source(Family::Ipv4), Some(("d1".into(), "198.51.100.5".into())));
        assert_eq!(source(Family::Ipv6), Some(("d1".into(), "2001:db8:2::5".into())));

        ip_command("route add default via 192.0.2.1 metric 1 table 100");
        assert_eq!(
            source(Family::Ipv4),
            Some(("d1".into(), "198.51.100.5".into())),
            "other tables are ignored"
        );
    });
}

#[test]
fn the_preferred_source_of_a_route_precedes_the_first_address() {
    in_fresh_netns(|| {
        add_link("d0");
        ip_command("addr add 192.0.2.5/24 dev d0");
        ip_command("addr add 192.0.2.6/24 dev d0");
        ip_command("route add default via 192.0.2.1 src 192.0.2.6");
        assert_eq!(source(Family::Ipv4), Some(("d0".into(), "192.0.2.6".into())));
    });
}

#[test]
fn the_first_of_several_next_hops_is_used() {
    in_fresh_netns(|| {
        add_link("d0");
        ip_command("addr add 192.0.2.5/24 dev d0");
        ip_command("route add default nexthop via 192.0.2.1 dev d0 nexthop via 192.0.2.2 dev d0");
        assert_eq!(source(Family::Ipv4), Some(("d0".into(), "192.0.2.5".into())));
    });
}

#[test]
fn addresses_of_narrower_scope_are_not_used() {
    in_fresh_netns(|| {
        add_link("d0");
        ip_command("addr add 169.254.0.5/24 dev d0 scope link");
        ip_command("route add default dev d0");
        assert_eq!(source(Family::Ipv4), None);
        ip_command("addr add 192.0.2.5/24 dev d0");
        assert_eq!(source(Family::Ipv4), Some(("d0".into(), "192.0.2.5".into())));
    });
}

#[test]
fn added_and_deleted_addresses_are_reported() {
    in_fresh_netns(|| {
        add_link("d0");
        let mut changes = AddressChanges::open().unwrap();
        let deadline = Duration::from_secs(10);
        assert!(changes.seen_within(Duration::ZERO).unwrap().is_empty(), "no change");
        for command in [
            "addr add 192.0.2.5/24 dev d0",
            "addr del 192.0.2.5/24 dev d0",
            "-6 addr add 2001:db8::5/64 dev d0 nodad",
        ] {
            ip_command(command);
            assert!(!changes.seen_within(deadline).unwrap().is_empty(), "{command}");
        }
    });
}
