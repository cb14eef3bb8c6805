//! The kernel accepts what is encoded, and `nft` prints it.

use netlink::Family::{Ipv4, Ipv6};
use netlink::nftables::*;
use netlink::testing::{in_fresh_netns, run};

use super::program::*;
use super::refusals::refusal;
use super::{FAMILIES, commit};

#[test]
fn the_program_is_accepted_and_read_back() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            let mut connection = NftablesSocket::open().unwrap();
            connection.commit(&program(family)).unwrap();

            let tables = connection.tables(family).unwrap();
            assert_eq!(tables.len(), 1, "{tables:?}");
            assert_eq!(tables[0].name, TABLE);
            assert_eq!(tables[0].comment.as_deref(), Some("rules for kube-proxy"));
            assert_eq!((tables[0].owner, tables[0].persistent), (None, false));

            let chains = connection.chains(family, TABLE).unwrap();
            let found: Vec<_> =
                chains.iter().map(|c| (c.name.as_str(), c.hook, c.comment.as_deref())).collect();
            let want: Vec<_> = CHAINS.iter().map(|c| (c.name, c.hook, c.comment)).collect();
            assert_eq!(found, want);

            let found = connection.sets(family, TABLE).unwrap();
            for set in sets(family) {
                let found = found.iter().find(|found| found.name == set.name).unwrap();
                assert!(set.agrees_with(found), "{set:?} {found:?}");
                assert_eq!(found.comment.as_deref(), set.comment);
                assert_eq!(found.timeout, set.timeout);
                let size = if set.dynamic { Some(65535) } else { set.size };
                assert_eq!(found.size, size, "{set:?}");
            }

            let found = connection.rules(family, TABLE).unwrap();
            let want = rules(family);
            assert_eq!(found.len(), want.len());
            for (number, (chain, _, comment)) in (1..).zip(want) {
                let rule = found.iter().find(|rule| rule.fingerprint == Some(number)).unwrap();
                assert_eq!((rule.chain.as_str(), rule.comment.as_deref()), (chain, comment));
                assert!(rule.handle > 0);
            }
            let names = |rule: &FoundRule| rule.expression_names().collect::<Vec<_>>().join(" ");
            let services = found.iter().find(|rule| rule.fingerprint == Some(2)).unwrap();
            assert_eq!(names(services), "payload meta payload lookup immediate");
        }
    });
}

#[test]
fn the_program_can_be_added_again_and_deleted() {
    in_fresh_netns(|| {
        for family in FAMILIES {
            let mut connection = NftablesSocket::open().unwrap();
            connection.commit(&program(family)).unwrap();

            let mut again = Batch::new(family, TABLE);
            again.add_table(&Table::default());
            CHAINS.iter().for_each(|chain| again.flush_chain(chain.name));
            sets(family).iter().for_each(|set| {
                again.add_set(set);
            });
            CHAINS.iter().for_each(|chain| again.add_chain(chain));
            connection.commit(&again).unwrap();
            assert_eq!(connection.rules(family, TABLE).unwrap(), []);

            let mut parts = Batch::new(family, TABLE);
            CHAINS.iter().for_each(|chain| parts.delete_chain(chain.name));
            sets(family).iter().for_each(|set| parts.delete_set(set.name));
            connection.commit(&parts).unwrap();
            assert_eq!(connection.chains(family, TABLE).unwrap(), []);
            assert_eq!(connection.sets(family, TABLE).unwrap(), []);

            let mut all = Batch::new(family, TABLE);
            all.delete_table();
            connection.commit(&all).unwrap();
            assert_eq!(connection.tables(family).unwrap(), []);
        }
    });
}

/// Lines as both `nft` 1.0.6 and 1.1.3 print them.
#[test]
fn nft_lists_the_program_in_readable_types() {
    in_fresh_netns(|| {
        for (family, template) in [(Ipv4, "ip"), (Ipv6, "ip6")] {
            commit(&program(family));
            let service = ip(family, 10);
            let key = frontend(service, 6, 80);
            let mut elements = Batch::new(family, TABLE);
            elements.add_elements(
                "endpoints",
                [Element::pair(slot(service, 6, 80, 3), endpoint(ip(family, 200), 8080))],
            );
            elements.add_elements(
                "frontends",
                [Element { comment: Some("default/web:http"), ..Element::new(key) }],
            );
            let reject = Some(Datum::Verdict(Verdict::Goto("reject-chain")));
            elements.add_elements("no-endpoints", [Element { data: reject, ..Element::new(key) }]);
            elements.add_elements("marks", [Element::new(0x4000_u32.to_ne_bytes())]);
            commit(&elements);

            let listed = run(&format!("nft list table {template} {TABLE}"));
            let address = if family == Ipv4 { "ipv4_addr" } else { "ipv6_addr" };
            for line in [
                "comment \"rules for kube-proxy\"".to_owned(),
                format!(
                    "typeof {template} daddr . meta l4proto . th dport . numgen random mod 65536 : {template} daddr . th dport"
                ),
                format!(
                    "typeof meta l4proto . th dport . numgen random mod 65536 : {template} daddr . th dport"
                ),
                "comment \"slots\"".to_owned(),
                format!(
                    "elements = {{ {service} . tcp . 80 . 3 counter packets 0 bytes 0 : {} . 8080 }}",
                    ip(family, 200)
                ),
                format!(
                    "elements = {{ {service} . tcp . 80 counter packets 0 bytes 0 comment \"default/web:http\" }}"
                ),
                format!("elements = {{ {service} . tcp . 80 : goto reject-chain }}"),
                "elements = { 0x00004000 }".to_owned(),
                format!("type {address} . {address} . inet_proto . inet_service : {address} . inet_service"),
                "flags dynamic,timeout".to_owned(),
                format!("type {address} . inet_proto . inet_service . {address}"),
                "flags interval".to_owned(),
                format!(
                    "{template} daddr . meta l4proto . th dport @frontends goto pick-4 comment \"the only lookup most packets pay for\""
                ),
                "fib daddr type local meta mark set meta mark | 0x00004000".to_owned(),
                format!(
                    "dnat {template} to {template} daddr . meta l4proto . th dport . numgen random mod 4 map @endpoints"
                ),
                format!(
                    "dnat {template} to {template} saddr . {template} daddr . meta l4proto . th dport map @affinity"
                ),
                format!(
                    "dnat {template} to meta l4proto . th dport . numgen random mod 4 map @node-port-endpoints"
                ),
                format!(
                    "ct status dnat {template} saddr . {template} daddr @hairpin masquerade fully-random"
                ),
                format!(
                    "{template} daddr . meta l4proto . th dport . {template} saddr != @allowed-sources counter packets 0 bytes 0 drop"
                ),
                format!("{template} daddr . meta l4proto . th dport vmap @no-endpoints"),
                "type nat hook prerouting priority dstnat; policy accept;".to_owned(),
                "type nat hook postrouting priority srcnat; policy accept;".to_owned(),
            ] {
                assert!(listed.lines().any(|have| have.trim() == line), "missing: {line}\n{listed}");
            }
        }
    });
}

#[test]
fn an_owned_table_is_protected_and_outlives_its_owner() {
    in_fresh_netns(|| {
        let mut ours = Batch::new(Ipv4, TABLE);
        ours.add_table(&Table { ownership: Ownership::OwnedPersistent, comment: None });
        let mut deletion = Batch::new(Ipv4, TABLE);
        deletion.delete_table();

        let mut owner = NftablesSocket::open().unwrap();
        owner.commit(&ours).unwrap();
        let mut other = NftablesSocket::open().unwrap();
        let found = other.tables(Ipv4).unwrap();
        assert_eq!((found[0].owner, found[0].persistent), (Some(owner.port()), true));
        assert_eq!(refusal(other.commit(&deletion)).2, 1, "EPERM");
        run("nft flush ruleset");
        assert_eq!(other.tables(Ipv4).unwrap().len(), 1, "a flush does not delete it");

        drop(owner);
        let found = other.tables(Ipv4).unwrap();
        assert_eq!((found[0].owner, found[0].persistent), (None, true));
        other.commit(&ours).unwrap();
        assert_eq!(other.tables(Ipv4).unwrap()[0].owner, Some(other.port()));
        other.commit(&deletion).unwrap();
    });
}
