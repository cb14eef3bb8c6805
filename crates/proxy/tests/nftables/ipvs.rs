//! The table of the ipvs mode: another program, written and read back by the same code.

use std::collections::BTreeSet;

use super::*;

/// The table of the ipvs mode.
fn around_ipvs(family: Family) -> Nftables {
    let settings = ProgramSettings { balancer: Balancer::Ipvs, ..program_settings(family) };
    let metrics = Arc::new(Metrics::new(ProxyMode::Nftables));
    let mut table = Nftables::new(KernelTable::open(family).unwrap(), settings, metrics);
    table.plan.set_node_port_ips(node_port_ips(family));
    let node_ips: BTreeSet<IpAddr> = node_port_ips(family).into_iter().collect();
    assert_eq!(table.plan.steps_at(Changes::default(), Some(node_ips)), None);
    table
}

fn objects(family: Family) -> Vec<RoutingChange> {
    vec![service(family, "a", 1, &[1, 2, 3]), service(family, "b", 2, &[])]
}

#[test]
fn after_a_sync_the_kernel_holds_the_desired_state_and_a_restart_writes_nothing() {
    for family in Family::BOTH {
        in_fresh_netns(move || {
            let mut table = around_ipvs(family);
            table.sync(everything(family, objects(family))).unwrap();
            let steps = remaining(&mut table);
            assert!(steps.is_empty(), "{steps:?}");
            let content = content(&mut table);
            assert!(content.node_port_ips.into_iter().eq(node_port_ips(family)));
            for set in [Set::BoundIps, Set::Frontends(LookupBy::Address), Set::Hairpin] {
                assert!(content.elements.iter().any(|element| element.set == set), "{}", set.name());
            }
            drop(table);
            let outcome = around_ipvs(family).sync(everything(family, objects(family))).unwrap();
            assert_eq!((outcome.added, outcome.deleted), (0, 0));
        });
    }
}

#[test]
fn nft_lists_the_whole_program() {
    for (family, word) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
        in_fresh_netns(move || {
            let mut table = around_ipvs(family);
            table.sync(everything(family, objects(family))).unwrap();
            let listed = run(&format!("nft list table {word} kube-proxy"));
            for chain in &table.plan.desired().program().chains {
                for rule in &chain.rules {
                    let text = rule.show(family);
                    assert!(listed.contains(&text), "{}: {text}\nis not in\n{listed}", chain.name);
                }
            }
        });
    }
}

#[test]
fn the_table_of_the_other_mode_is_replaced() {
    in_fresh_netns(|| {
        open(Family::V4).sync(everything(Family::V4, objects(Family::V4))).unwrap();
        let mut table = around_ipvs(Family::V4);
        table.sync(everything(Family::V4, objects(Family::V4))).unwrap();
        assert!(remaining(&mut table).is_empty());
        let listed = run("nft list table ip kube-proxy");
        assert!(!listed.contains("map endpoints"), "{listed}");
        drop(table);
        let mut back = open(Family::V4);
        back.sync(everything(Family::V4, objects(Family::V4))).unwrap();
        assert!(remaining(&mut back).is_empty());
    });
}
