//! Whatever happens to the cluster, and whatever fails on the way, the kernel ends where one full sync would end.

use std::collections::{BTreeMap, BTreeSet};

use plan::iptables::chains::{Purpose, Table};
use plan::iptables::plan::Manner;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::fake::{Kernel, target};
use crate::world::{Options, World, interfaces};

#[derive(Clone, Debug)]
enum Op {
    /// A line as people say it.
    Say(String),
    Move(Vec<usize>),
    Wait(u64),
    /// The cluster becomes large, or small again.
    Grow(bool),
    Flush,
    CannotSave,
    Sync,
    /// The run of this number fails, and with it the sync.
    Fail(usize),
}

fn service() -> impl Strategy<Value = String> {
    let ports = select(vec![
        "p:80",
        "p:80@30080 NodePort",
        "p:80 q:81/UDP@30081 NodePort",
        "p:53/UDP p:53/TCP",
        "p:80/SCTP@30082 NodePort",
    ]);
    let extras = subsequence(
        vec![
            "etp=Local",
            "itp=Local",
            "external=198.51.100.1,198.51.100.2,198.51.100.1",
            "lb=203.0.113.1,203.0.113.2",
            "ranges=10.0.0.0/8,192.168.0.0/24",
            "health=32100",
            "affinity=300",
        ],
        0..=7,
    );
    (0..4, 1..4, ports, extras).prop_map(|(name, ip, ports, extras)| {
        format!("service ns/s{name} 10.96.0.{ip} {ports} {}", extras.join(" "))
    })
}

fn slice() -> impl Strategy<Value = String> {
    let ports = select(vec!["p:80", "p:80,q:81/UDP", "p:53/UDP,p:53/TCP", "p:80/SCTP,p:80"]);
    let endpoint = (1..5, 1..3, select(vec!["ready", "ready", "ready", "draining", "gone"]));
    (0..4, ports, vec(endpoint, 0..5)).prop_map(|(name, ports, endpoints)| {
        let endpoints: BTreeMap<_, _> = endpoints
            .into_iter()
            .map(|(ip, node, state)| (format!("10.244.{node}.{ip}@node-{node}"), state))
            .collect();
        let endpoints: Vec<String> = endpoints.iter().map(|(ip, state)| format!("{ip}/{state}")).collect();
        format!("slice ns/s{name} {ports} {}", endpoints.join(" "))
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => service().prop_map(Op::Say),
        6 => slice().prop_map(Op::Say),
        2 => (0..4).prop_map(|name| Op::Say(format!("delete service ns/s{name}"))),
        1 => (0..4).prop_map(|name| Op::Say(format!("delete slice ns/s{name}"))),
        1 => subsequence((0..5).collect::<Vec<usize>>(), 0..=5).prop_map(Op::Move),
        1 => select(vec![10, 60, 4_000]).prop_map(Op::Wait),
        1 => any::<bool>().prop_map(Op::Grow),
        1 => Just(Op::Flush),
        1 => Just(Op::CannotSave),
        8 => Just(Op::Sync),
        2 => (0..4usize).prop_map(Op::Fail),
    ]
}

fn manner() -> impl Strategy<Value = Manner> {
    (select(vec![1, 3, 10, 40, usize::MAX]), select(vec![0, 1, 3, 100]))
        .prop_map(|(batch, edits)| Manner { batch, edits })
}

fn options() -> impl Strategy<Value = Options> {
    let addresses = select(vec![&[][..], &["192.168.0.0/16"], &["192.168.0.0/16", "127.0.0.0/8"]]);
    addresses.prop_map(|cidrs| Options {
        node_port_addresses: cidrs.iter().map(|cidr| (*cidr).to_owned()).collect(),
        ..Options::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn partial_syncs_end_where_a_full_one_would(
        options in options(),
        manner in manner(),
        ops in vec(op(), 1..40),
    ) {
        let mut world = World::with_manner(options, manner);
        for op in ops {
            match op {
                Op::Say(line) => drop(world.hear(&line)),
                Op::Move(kept) => {
                    let interfaces: Vec<_> = kept.iter().map(|at| interfaces()[*at]).collect();
                    world.move_to(&interfaces);
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
fn what_counts(kernel: &Kernel) -> BTreeMap<(Table, String), Vec<String>> {
    let mut counts = BTreeMap::new();
    for table in [Table::Filter, Table::Nat] {
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
