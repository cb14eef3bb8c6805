//! Chains and ids of session affinity are removed with their last use, and adopted after a restart.

use plan::nftables::sets::{EndpointList, Sticky};

use super::*;

fn sticky(number: u8, seconds: Option<u32>) -> RoutingChange {
    let affinity = seconds.map(|seconds| format!("affinity={seconds}")).unwrap_or_default();
    service_with(Family::V4, &format!("s{number}"), number, &[1, 2, 3], &affinity)
}

/// The sets with their numbers of elements, the chains, and the handles of rules. Leaves out the set that packets change.
fn objects() -> (Vec<String>, Vec<String>, Vec<u64>) {
    let family = netlink::Family::Ipv4;
    let mut connection = NftablesSocket::open().unwrap();
    let sets = connection.sets(family, TABLE).unwrap();
    let mut sets: Vec<String> = sets
        .into_iter()
        .filter(|set| set.name != "affinity")
        .map(|set| {
            let count = connection.elements(family, TABLE, &set.name, |_| ()).unwrap().len();
            format!("{}: {count}", set.name)
        })
        .collect();
    sets.sort();
    let mut chains: Vec<String> =
        connection.chains(family, TABLE).unwrap().into_iter().map(|chain| chain.name).collect();
    chains.sort();
    let rules = connection.rules(family, TABLE).unwrap().into_iter().map(|rule| rule.handle).collect();
    (sets, chains, rules)
}

/// The ids that frontends have in the kernel, by address.
fn ids() -> Vec<(Vec<u8>, Sticky)> {
    let read = |element: netlink::nftables::FoundElement<'_>| {
        let Some(netlink::nftables::FoundDatum::Value(data)) = element.data else { panic!("no data") };
        (element.key.to_vec(), Sticky::from_wire(data).unwrap())
    };
    let mut ids =
        NftablesSocket::open().unwrap().elements(netlink::Family::Ipv4, TABLE, "sticky", read).unwrap();
    ids.sort();
    ids
}

#[test]
fn unused_timeouts_leave_nothing_behind() {
    in_fresh_netns(|| {
        let mut table = open(Family::V4);
        table.sync(everything(Family::V4, vec![sticky(1, Some(60))])).unwrap();
        let before = objects();
        let many = || 2..=250_u8;
        // Each timeout for two services, which are not deleted in the same sync.
        let seconds = |number: u8| {
            let nth = u32::from(number / 2);
            Some(if nth < 60 { nth } else { 3_600 + (nth - 59) * 900 })
        };
        table.sync(change(many().map(|number| sticky(number, seconds(number))).collect())).unwrap();
        let (_, chains, rules) = objects();
        assert_eq!(chains.len(), before.1.len() + 2 * 125, "two chains for each timeout");
        assert_eq!(rules.len(), before.2.len() + 4 * 125);
        assert_eq!(before.2, rules[..before.2.len()], "existing rules are not touched");
        for some in many().collect::<Vec<_>>().chunks(25) {
            let gone = some.iter().map(|number| (sticky(*number, None).0, None)).collect();
            assert!(!table.sync(change(gone)).unwrap().is_full);
        }
        assert_eq!(objects(), before);

        // One service with a sequence of timeouts, then without affinity.
        for number in 0..10_u32 {
            assert!(!table.sync(change(vec![sticky(2, Some(60 + 60 * number))])).unwrap().is_full);
        }
        assert!(!table.sync(change(vec![sticky(2, None)])).unwrap().is_full);
        assert!(!table.sync(change(vec![(sticky(2, None).0, None)])).unwrap().is_full);
        assert_eq!(objects(), before);
    });
}

#[test]
fn a_restart_removes_unused_timeouts_and_keeps_ids() {
    in_fresh_netns(|| {
        let mut first = open(Family::V4);
        first.sync(change(vec![sticky(9, Some(77))])).unwrap();
        first.sync(change(vec![sticky(5, Some(10_800)), sticky(6, Some(77))])).unwrap();
        let before = ids();
        drop(first);
        let mut second = open(Family::V4);
        // In another order, in which a new table would get other ids.
        second.sync(change(vec![sticky(4, Some(60)), sticky(5, Some(10_800))])).unwrap();
        let (_, chains, _) = objects();
        let affinity_chains: Vec<&String> = chains.iter().filter(|name| name.starts_with("learn-")).collect();
        assert_eq!(affinity_chains, ["learn-10800", "learn-60"]);
        let highest = before.iter().map(|(_, sticky)| sticky.list).max().unwrap();
        for (key, sticky) in ids() {
            match before.iter().find(|(old, _)| *old == key) {
                Some((_, old)) => assert_eq!(sticky, *old),
                None => assert!(sticky.list > highest, "ids are not reused"),
            }
        }
        assert_eq!(EndpointList::Cluster.of(before[0].1.list), before[0].1.service_port());
    });
}

/// What a version that kept affinity by frontend left.
const OLD_LAYOUT: &[&str] = &[
    "add set ip kube-proxy sticky-77 { type ipv4_addr . inet_proto . inet_service . ipv4_addr . inet_service ; }",
    "add set ip kube-proxy nodeport-sticky-77 { type inet_proto . inet_service . ipv4_addr . inet_service ; }",
    "add map ip kube-proxy nodeport-affinity { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service ; flags dynamic,timeout ; }",
    "add element ip kube-proxy sticky-77 { 10.96.1.1 . tcp . 80 . 10.244.1.1 . 8080 }",
    "add chain ip kube-proxy learn-old",
    "add rule ip kube-proxy learn-old ip saddr . meta l4proto . th dport . ip daddr . th dport @sticky-77 drop",
];

#[test]
fn objects_of_an_earlier_version_are_removed_and_clients_are_kept() {
    in_fresh_netns(|| {
        let routings = || vec![sticky(1, Some(60))];
        let mut table = shared_table(Family::V4);
        table.sync(everything(Family::V4, routings())).unwrap();
        let before = objects();
        OLD_LAYOUT.iter().for_each(|command| drop(run(&format!("nft {command}"))));
        run(
            "nft add element ip kube-proxy affinity { 0x00000002 . 192.0.2.9 timeout 1h : tcp . 10.244.1.1 . 8080 }",
        );
        drop(table);
        let mut table = shared_table(Family::V4);
        table.sync(everything(Family::V4, routings())).unwrap();
        assert_eq!(objects(), before);
        let clients = run("nft list map ip kube-proxy affinity");
        assert!(clients.contains("10.244.1.1 . 8080"), "clients keep their endpoints: {clients}");
    });
}

#[test]
fn a_program_of_an_earlier_version_is_replaced_in_one_transaction() {
    in_fresh_netns(|| {
        let routings = || vec![sticky(1, Some(60))];
        let mut table = shared_table(Family::V4);
        table.sync(everything(Family::V4, routings())).unwrap();
        let (sets, chains, rules) = objects();
        OLD_LAYOUT.iter().for_each(|command| drop(run(&format!("nft {command}"))));
        run(
            "nft add rule ip kube-proxy learn ip saddr . meta l4proto . th dport . ip daddr . th dport @sticky-77 drop",
        );
        drop(table);
        let before = generation();
        let mut table = shared_table(Family::V4);
        table.sync(everything(Family::V4, routings())).unwrap();
        assert_eq!(generation() - before, 1);
        let after = objects();
        assert_eq!((after.0, after.1, after.2.len()), (sets, chains, rules.len()));
    });
}
