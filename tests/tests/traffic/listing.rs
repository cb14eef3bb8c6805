//! The table as operators see it.

use std::process::Command;

use model::address::Family;
use netlink::nftables::NftablesSocket;
use testkit::manifests::{A, Manifest, PlainService, R, ServiceManifest, list, web, write};
use testkit::namespace::Namespace;
use testkit::network::of;
use tests::node::NftablesNode;
use tests::options::Options;

use crate::{cluster_ip, remote_pods};

const TABLE: &str = "kube-proxy";

fn everything() -> [Manifest; 3] {
    let sticky = ServiceManifest { source_ranges: &["192.0.2.0/24", "2001:db8:2::/64"], ..web(&[A, R]) };
    [Manifest::ServiceCidr, sticky.external_local().sticky(10_800).into(), ServiceManifest::other(&[]).into()]
}

#[test]
fn the_number_of_rules_does_not_depend_on_the_number_of_services() {
    std::thread::scope(|scope| {
        for (family, many) in [(Family::V4, 10_000), (Family::V6, 1_000)] {
            scope.spawn(move || {
                let namespace = Namespace::new();
                let mut node = NftablesNode::new(&namespace, family, &Options::default());
                let endpoints = remote_pods(family, 3, 8080);
                let mut length_with = |services: u16| {
                    let names: Vec<_> = (0..services).map(|number| format!("web-{number}")).collect();
                    let services: Vec<_> = (0..)
                        .zip(&names)
                        .map(|(number, name)| PlainService::new(name, cluster_ip(family, number), &endpoints))
                        .collect();
                    let outcome = node.replace(&list(&services));
                    assert!(!outcome.is_full && outcome.added > 0, "{outcome:?}");
                    length(&namespace, family)
                };
                let (one, ten_thousand) = (length_with(1), length_with(many));
                assert_eq!(one, ten_thousand);
                println!("{family}: {one:?}");
            });
        }
    });
}

/// The numbers of chains, rules and sets.
fn length(namespace: &Namespace, family: Family) -> [usize; 3] {
    use netlink::Family::{Ipv4, Ipv6};
    let family = of(family, [Ipv4, Ipv6]);
    namespace.enter(|| {
        let mut connection = NftablesSocket::open().unwrap();
        [
            connection.chains(family, TABLE).unwrap().len(),
            connection.rules(family, TABLE).unwrap().len(),
            connection.sets(family, TABLE).unwrap().len(),
        ]
    })
}

#[test]
fn nft_can_list_and_load_the_table() {
    let namespace = Namespace::new();
    for family in Family::BOTH {
        let mut node = NftablesNode::new(&namespace, family, &Options::default());
        node.apply(&write(&everything(), family));
        let ip = of(family, ["ip", "ip6"]);
        let output =
            namespace.enter(|| Command::new("nft").args(["list", "table", ip, TABLE]).output().unwrap());
        let listing = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert!(listing.contains("comment \"short-circuit pod traffic\""), "{listing}");
        for odd in ["unknown", "0x0000000000", "[invalid", "(null)"] {
            assert!(!listing.contains(odd), "{odd} in {listing}");
        }
        // `nft` cannot parse its own output of rules that use the result of a map lookup as part of another key.
        let hidden = [" map @endpoints", " map @sticky-endpoints", " @affinity {"];
        let is_hidden = |line: &&str| hidden.iter().any(|part| line.contains(part));
        let readable: Vec<&str> = listing.lines().filter(|line| !is_hidden(line)).collect();
        Namespace::new().run_with_input(Command::new("nft").args(["-c", "-f", "-"]), &readable.join("\n"));
    }
}
