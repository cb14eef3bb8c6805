//! Whatever happens to the cluster, and whatever fails on the way, the kernel ends where one full sync would end.

use std::collections::{BTreeMap, BTreeSet};

use plan::iptables::chains::{IptablesTable, Purpose};
use plan::iptables::plan::RestoreLimits;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::fake::{Kernel, target};
use crate::histories::{Op, op};
use crate::options::{Options, interfaces};
use crate::world::World;

fn limits() -> impl Strategy<Value = RestoreLimits> {
    (select(vec![1, 3, 10, 40, usize::MAX]), select(vec![0, 1, 3, 100]))
        .prop_map(|(batch, edits)| RestoreLimits { batch, edits })
}

fn options() -> impl Strategy<Value = Options> {
    let addresses = select(vec![&[][..], &["192.168.0.0/16"], &["192.168.0.0/16", "127.0.0.0/8"]]);
    addresses.prop_map(|cidrs| Options {
        node_port_addresses: cidrs.iter().map(|cidr| (*cidr).to_owned()).collect(),
        ..Options::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn partial_syncs_end_where_a_full_one_would(
        options in options(),
        limits in limits(),
        ops in vec(op(), 1..40),
    ) {
        let mut world = World::with_limits(options, limits);
        for op in ops {
            match op {
                Op::Say(line) => drop(world.apply_lines(&line)),
                Op::Move(kept) => {
                    let interfaces: Vec<_> = kept.iter().map(|at| interfaces()[*at]).collect();
                    world.set_node_port_ips(&interfaces);
                }
                Op::Wait(seconds) => drop(world.wait(seconds)),
                Op::Grow(large) => world.imagined = if large { 2_000 } else { 0 },
                Op::Flush => {
                    world.kernel = Kernel::empty();
                    world.plan.require_full();
                }
                Op::CannotSave => world.can_save = false,
                Op::Fail(number) => {
                    world.try_sync(|at, _| at != number);
                }
                Op::Sync => {
                    world.sync();
                    prop_assert_eq!(what_counts(&world.kernel), what_counts(&world.ideal()));
                    world.can_save = true;
                }
            }
        }
        world.sync();
        world.can_save = true;
        world.imagined = 0;
        world.wait(60).plan.require_full();
        world.sync();
        prop_assert_eq!(&world.kernel, &world.ideal());
        let targets: BTreeSet<&str> = world.kernel.nat.values().flatten().filter_map(|rule| target(rule)).collect();
        let own = world.kernel.nat_chains().into_iter().filter(|chain| Purpose::of(chain).is_some());
        let forgotten: Vec<&str> = own.filter(|chain| !targets.contains(chain)).collect();
        prop_assert!(forgotten.is_empty(), "no rule leads to {forgotten:?}");
        let nothing = world.sync().texts;
        prop_assert!(nothing.is_empty(), "nothing changed, but {nothing:?}");
    }
}

/// What becomes of packets: without chains that none can come to, and without comments that large clusters lack.
fn what_counts(kernel: &Kernel) -> BTreeMap<(IptablesTable, String), Vec<String>> {
    let mut counts = BTreeMap::new();
    for table in [IptablesTable::Filter, IptablesTable::Nat] {
        for chain in kernel.reachable(table) {
            let rules = kernel.table(table)[chain].iter().map(|rule| without_endpoint_comment(chain, rule));
            counts.insert((table, chain.to_owned()), rules.collect());
        }
    }
    counts
}

fn without_endpoint_comment(chain: &str, rule: &str) -> String {
    let comment = match Purpose::of(chain) {
        Some(Purpose::Endpoint) => {
            rule.strip_prefix("-m comment --comment ").and_then(|rest| rest.split_once(' '))
        }
        Some(Purpose::Cluster | Purpose::Local) => {
            rule.split_once("\" ").filter(|(start, _)| start.contains("->"))
        }
        Some(Purpose::External | Purpose::Firewall) | None => None,
    };
    comment.map_or(rule, |(_, rest)| rest).to_owned()
}
