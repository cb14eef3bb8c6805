//! Session affinity leaves nothing behind, and takes over what is left.

use plan::nftables::sets::{List, Sticky};

use super::*;

fn sticky(number: u8, seconds: Option<u32>) -> Changed {
    let affinity = seconds.map(|seconds| format!("affinity={seconds}")).unwrap_or_default();
    service_with(Family::V4, &format!("s{number}"), number, &[1, 2, 3], &affinity)
}

/// Everything in the table but what packets put there: sets with how much they hold, chains, and rules by their handles.
fn objects() -> (Vec<String>, Vec<String>, Vec<u64>) {
    let family = netlink::Family::Ipv4;
    let mut connection = Connection::open().unwrap();
    let sets = connection.sets(family, TABLE).unwrap();
    let mut sets: Vec<String> = sets
        .into_iter()
        .filter(|set| set.name != "affinity")
        .map(|set| {
            let held = connection.elements(family, TABLE, &set.name, |_| ()).unwrap().len();
            format!("{}: {held}", set.name)
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
    let mut ids = Connection::open().unwrap().elements(netlink::Family::Ipv4, TABLE, "sticky", read).unwrap();
    ids.sort();
    ids
}

#[test]
fn timeouts_that_come_and_go_leave_nothing() {
    in_fresh_netns(|| {
        let mut table = open(Family::V4);
        table.sync(everything(Family::V4, vec![sticky(1, Some(60))])).unwrap();
        let before = objects();
        let many = || 2..=250_u8;
        // Two of each, and never all at once.
        let seconds = |number: u8| {
            let nth = u32::from(number / 2);
            Some(if nth < 60 { nth } else { 3_600 + (nth - 59) * 900 })
        };
        table.sync(change(many().map(|number| sticky(number, seconds(number))).collect())).unwrap();
        let (_, chains, rules) = objects();
        assert_eq!(chains.len(), before.1.len() + 2 * 125, "two chains for each timeout");
        assert_eq!(rules.len(), before.2.len() + 4 * 125);
        assert_eq!(before.2, rules[..before.2.len()], "no rule that was there is touched");
        for some in many().collect::<Vec<_>>().chunks(25) {
            let gone = some.iter().map(|number| (sticky(*number, None).0, None)).collect();
            assert!(!table.sync(change(gone)).unwrap().is_full);
        }
        assert_eq!(objects(), before);

        // The same service, with one timeout after the other and then with none.
        for number in 0..10_u32 {
            assert!(!table.sync(change(vec![sticky(2, Some(60 + 60 * number))])).unwrap().is_full);
        }
        assert!(!table.sync(change(vec![sticky(2, None)])).unwrap().is_full);
        assert!(!table.sync(change(vec![(sticky(2, None).0, None)])).unwrap().is_full);
        assert_eq!(objects(), before);
    });
}

#[test]
fn what_nobody_uses_any_more_is_gone_after_a_restart_and_ids_are_kept() {
    in_fresh_netns(|| {
        let mut first = open(Family::V4);
        first.sync(change(vec![sticky(9, Some(77))])).unwrap();
        first.sync(change(vec![sticky(5, Some(10_800)), sticky(6, Some(77))])).unwrap();
        let before = ids();
        drop(first);
        let mut second = open(Family::V4);
        // In another order, so that it would give other ids.
        second.sync(change(vec![sticky(4, Some(60)), sticky(5, Some(10_800))])).unwrap();
        let (_, chains, _) = objects();
        let learners: Vec<&String> = chains.iter().filter(|name| name.starts_with("learn-")).collect();
        assert_eq!(learners, ["learn-10800", "learn-60"]);
        let highest = before.iter().map(|(_, sticky)| sticky.list).max().unwrap();
        for (key, sticky) in ids() {
            match before.iter().find(|(old, _)| *old == key) {
                Some((_, old)) => assert_eq!(sticky, *old),
                None => assert!(sticky.list > highest, "an id is not given twice"),
            }
        }
        assert_eq!(List::Cluster.of(before[0].1.list), before[0].1.service_port());
    });
}

/// As it was when affinity was kept by frontend.
const OLD_LAYOUT: &[&str] = &[
    "add set ip kube-proxy sticky-77 { type ipv4_addr . inet_proto . inet_service . ipv4_addr . inet_service ; }",
    "add set ip kube-proxy nodeport-sticky-77 { type inet_proto . inet_service . ipv4_addr . inet_service ; }",
    "add map ip kube-proxy nodeport-affinity { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service ; flags dynamic,timeout ; }",
    "add element ip kube-proxy sticky-77 { 10.96.1.1 . tcp . 80 . 10.244.1.1 . 8080 }",
    "add chain ip kube-proxy learn-old",
    "add rule ip kube-proxy learn-old ip saddr . meta l4proto . th dport . ip daddr . th dport @sticky-77 drop",
];

#[test]
fn leftovers_of_an_earlier_version_are_removed_and_the_rest_stays() {
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
        let remembered = run("nft list map ip kube-proxy affinity");
        assert!(remembered.contains("10.244.1.1 . 8080"), "clients are still known: {remembered}");
    });
}

#[test]
fn a_program_that_learned_otherwise_is_replaced_in_one_transaction() {
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
