//! Services that are loaded before the first lists have ended.

use super::*;

/// The base chains of our table.
fn hooks(family: Family) -> usize {
    let family = match family {
        Family::V4 => netlink::Family::Ipv4,
        Family::V6 => netlink::Family::Ipv6,
    };
    let chains = NftablesSocket::open().unwrap().chains(family, TABLE).unwrap();
    chains.iter().filter(|chain| chain.hook.is_some()).count()
}

fn preload(backend: &mut Nftables, routings: Vec<RoutingChange>) -> bool {
    let mut changes = Some(change(routings));
    backend.preload(&mut || changes.take().unwrap())
}

#[test]
fn no_packet_enters_the_table_before_the_first_sync() {
    for family in Family::BOTH {
        in_fresh_netns(move || {
            let mut table = open(family);
            assert!(preload(&mut table, vec![service(family, "a", 1, &[1, 2, 3])]));
            assert!(preload(&mut table, vec![service_with(family, "b", 2, &[1, 2], "affinity=60")]));
            // Another slice of the first Service has arrived.
            assert!(preload(&mut table, vec![service(family, "a", 1, &[1, 2, 3, 4, 5])]));
            assert_eq!(hooks(family), 0);

            let outcome = table.sync(everything(family, vec![service(family, "c", 3, &[])])).unwrap();
            assert!(outcome.is_full && outcome.writes == 1, "{outcome:?}");
            assert_ne!(hooks(family), 0);
            assert!(remaining(&mut table).is_empty(), "the same table as after a sync of everything");
        });
    }
}

#[test]
fn a_table_that_exists_serves_until_the_first_sync() {
    in_fresh_netns(|| {
        let family = Family::V4;
        open(family).sync(everything(family, vec![service(family, "a", 1, &[1, 2])])).unwrap();
        let before = generation();
        let mut table = open(family);
        assert!(!preload(&mut table, vec![service(family, "a", 1, &[1, 2, 3])]));
        assert_eq!(generation(), before);
        table.sync(everything(family, vec![service(family, "a", 1, &[1, 2, 3])])).unwrap();
        assert!(remaining(&mut table).is_empty());
    });
}

#[test]
fn a_table_that_was_only_preloaded_is_replaced() {
    in_fresh_netns(|| {
        let family = Family::V4;
        assert!(preload(&mut open(family), vec![service(family, "a", 1, &[1, 2])]));
        let mut table = open(family);
        assert!(!preload(&mut table, vec![service(family, "a", 1, &[1, 2])]));
        table.sync(everything(family, vec![service(family, "a", 1, &[1, 2])])).unwrap();
        assert!(remaining(&mut table).is_empty());
        assert_ne!(hooks(family), 0);
    });
}

#[test]
fn a_sync_after_a_failed_preload_loads_everything() {
    in_fresh_netns(|| {
        let family = Family::V4;
        let mut table = shared_table(family);
        assert!(preload(&mut table, vec![service(family, "a", 1, &[1, 2])]));
        run("nft flush ruleset");
        assert!(!preload(&mut table, vec![service(family, "b", 2, &[1, 2])]));
        table.sync(everything(family, vec![])).unwrap();
        assert!(remaining(&mut table).is_empty());
        assert_ne!(hooks(family), 0);
    });
}
