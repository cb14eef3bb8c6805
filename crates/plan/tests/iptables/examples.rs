//! The worked examples: each `examples/*.yaml` gives `examples/*.restore`, to the byte.

use std::collections::BTreeSet;

use plan::iptables::chains::{IptablesTable, Jump, Purpose};
use plan::iptables::cleanup;
use plan::iptables::plan::Scope;

use crate::fake::{Kernel, target};
use crate::given::{events, names, options, read};
use crate::options::Options;
use crate::world::{Synced, World};

pub fn apply(world: &mut World, example: &str) {
    events(example).iter().for_each(|event| world.apply(event));
}

pub fn world(example: &str) -> World {
    let mut world = World::new(options(example));
    apply(&mut world, example);
    world
}

/// The first line that differs says more than two pages of text.
fn assert_same(example: &str, got: &str, want: &str) {
    for ((got, want), number) in got.lines().zip(want.lines()).zip(1..) {
        assert_eq!(got, want, "{example} line {number}");
    }
    assert_eq!(got, want, "{example}");
}

#[test]
fn every_example_is_rendered_to_the_byte() {
    let mut compared = BTreeSet::new();
    for example in names("yaml") {
        let options = options(&example);
        if options.after.is_some() {
            continue; // see below
        }
        let expected = options.same_as.unwrap_or(example.clone());
        let Synced { scope, texts, .. } = world(&example).sync();
        assert_eq!((scope, texts.len()), (Scope::Full, 1), "{example}");
        assert_same(&example, &texts[0], &read(&format!("{expected}.restore")));
        compared.insert(expected);
    }
    let elsewhere = ["E10-2", "E10-3", "E10-4", "E10-5", "E16-nat", "E16-filter"].map(String::from);
    compared.extend(elsewhere);
    assert_eq!(compared, names("restore"), "every expectation has been compared");
}

/// Upstream's partial sync writes the shared chains and the chains of changed services. Ours writes less, but what
/// upstream writes must be a part of what we would write in full, and lead to the same state.
#[test]
fn a_sequence_of_partial_syncs_follows_the_reference() {
    let mut world = world("E10-1");
    let mut reference = Kernel::empty();
    reference.ensure_jumps();
    world.sync();
    reference.restore(&read("E10-1.restore")).unwrap();
    assert_eq!(world.kernel, reference, "E10-1");

    for (example, unchanged, total) in
        [("E10-2", "ns/a:p", 18), ("E10-3", "ns/", 18), ("E10-4", "ns/b:p", 13), ("E10-5", "", 5)]
    {
        let found = world.kernel.clone();
        apply(&mut world, example);
        let synced = world.sync();
        assert_eq!(synced.scope, Scope::Partial, "{example}");
        assert_eq!(synced.counts.nat, total, "{example}");
        let want = read(&format!("{example}.restore"));
        reference.restore(&want).unwrap();
        assert_eq!(world.kernel, reference, "{example}");

        let mut again = World { kernel: found, ..World::new(options("E10-1")) };
        for (name, routing) in world.cluster.routings() {
            again.plan.replace(name.clone(), Some(routing.clone()));
        }
        let full = again.sync().texts.swap_remove(0);
        assert_same(example, &without_chains_of(&full, unchanged), &want);
    }
}

/// The text without the own chains of service ports whose name begins like this.
fn without_chains_of(text: &str, service: &str) -> String {
    let comments = [format!("--comment {service}"), format!("--comment \"{service}")];
    let says_so = |line: &&str| !service.is_empty() && comments.iter().any(|comment| line.contains(comment));
    let chain_of = |line: &str| {
        let name = line.strip_prefix(':').or(line.strip_prefix("-A "))?.split(' ').next()?;
        Purpose::of(name).map(|_| name.to_owned())
    };
    let chains: BTreeSet<String> = text.lines().filter(says_so).filter_map(chain_of).collect();
    let stays = |line: &&str| chain_of(line).is_none_or(|chain| !chains.contains(&chain));
    text.lines().filter(stays).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_partial_sync_writes_only_what_changed() {
    let mut world = world("E10-1");
    world.sync();
    apply(&mut world, "E10-2");
    let synced = world.sync();
    assert_same("E10-2", &synced.texts[0], E10_2_OURS);
    assert_eq!((synced.counts.nat_written, synced.counts.filter_written), (7, 0));
    apply(&mut world, "E10-3");
    assert_eq!(world.sync().texts, [""; 0]);
    apply(&mut world, "E10-4");
    assert_same("E10-4", &world.sync().texts[0], E10_4_OURS);
    apply(&mut world, "E10-5");
    assert_same("E10-5", &world.sync().texts[0], E10_5_OURS);
}

const E10_2_OURS: &str = r#"*nat
:KUBE-SEP-JQE7TFECPZL2NASZ - [0:0]
:KUBE-SEP-QQP75P7NIGA4OUI3 - [0:0]
:KUBE-SVC-M7WRKUUGGLVBVVX5 - [0:0]
:KUBE-SEP-2Z3UTZT364RVXQ6B - [0:0]
-A KUBE-SEP-JQE7TFECPZL2NASZ -m comment --comment ns/b:p -s 10.244.1.3 -j KUBE-MARK-MASQ
-A KUBE-SEP-JQE7TFECPZL2NASZ -m comment --comment ns/b:p -m tcp -p tcp -j DNAT --to-destination 10.244.1.3:80
-A KUBE-SEP-QQP75P7NIGA4OUI3 -m comment --comment ns/b:p -s 10.244.2.3 -j KUBE-MARK-MASQ
-A KUBE-SEP-QQP75P7NIGA4OUI3 -m comment --comment ns/b:p -m tcp -p tcp -j DNAT --to-destination 10.244.2.3:80
-A KUBE-SVC-M7WRKUUGGLVBVVX5 -m comment --comment "ns/b:p cluster IP" -m tcp -p tcp -d 10.96.1.2 --dport 80 ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ
-A KUBE-SVC-M7WRKUUGGLVBVVX5 -m comment --comment "ns/b:p -> 10.244.1.3:80" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-JQE7TFECPZL2NASZ
-A KUBE-SVC-M7WRKUUGGLVBVVX5 -m comment --comment "ns/b:p -> 10.244.2.3:80" -j KUBE-SEP-QQP75P7NIGA4OUI3
-X KUBE-SEP-2Z3UTZT364RVXQ6B
COMMIT
"#;

const E10_4_OURS: &str = "*nat
:KUBE-SVC-ZOE7WQMSI2YE7I74 - [0:0]
:KUBE-SEP-D3YZN3XAX3DDTQO3 - [0:0]
-D KUBE-SERVICES 1
-X KUBE-SVC-ZOE7WQMSI2YE7I74
-X KUBE-SEP-D3YZN3XAX3DDTQO3
COMMIT
";

const E10_5_OURS: &str = r#"*filter
-I KUBE-SERVICES 1 -m comment --comment "ns/b:p has no endpoints" -m tcp -p tcp -d 10.96.1.2 --dport 80 -j REJECT
COMMIT
*nat
:KUBE-SVC-M7WRKUUGGLVBVVX5 - [0:0]
:KUBE-SEP-JQE7TFECPZL2NASZ - [0:0]
:KUBE-SEP-QQP75P7NIGA4OUI3 - [0:0]
-D KUBE-SERVICES 1
-X KUBE-SVC-M7WRKUUGGLVBVVX5
-X KUBE-SEP-JQE7TFECPZL2NASZ
-X KUBE-SEP-QQP75P7NIGA4OUI3
COMMIT
"#;

#[test]
fn e13_a_large_cluster_leaves_out_what_names_endpoints() {
    let mut world = World::new(Options::default());
    let ips = (0..1001).map(|n| format!("10.244.{}.{}@node-2", n / 250, 1 + n % 250));
    let ips: Vec<String> = ips.collect();
    world.apply_lines("service big/svc 10.96.9.9 p:80@30999 NodePort affinity=300");
    world.apply_lines(&format!("slice big/svc of svc p:80 {}", ips.join(" ")));
    let text = world.sync().texts.swap_remove(0);
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!(count("--rcheck --seconds 300 --reap"), 1001);
    assert_eq!(count("--mode random"), 1000);
    assert_eq!(count("-A KUBE-SEP-"), 2002);
    assert_eq!(count("->"), 0);
    for line in read("E13.excerpt").lines() {
        assert_eq!(count(line), 1, "{line}");
    }
}

#[test]
fn e16_cleanup_removes_only_our_chains() {
    let mut world = world("E8a");
    world.sync();
    let mut nat = world.kernel.nat_chains();
    nat.extend(["KUBE-PROXY-CANARY", "KUBE-KUBELET-CANARY", "KUBE-MARK-DROP", "CNI-X"]);
    let filter: Vec<&str> =
        world.kernel.filter.keys().map(String::as_str).chain(["KUBE-PROXY-CANARY"]).collect();
    let got = cleanup::leftovers(cleanup::Leftovers::All, IptablesTable::Nat, &nat).to_string();
    assert_same("E16", &got, &read("E16-nat.restore"));
    assert_same(
        "E16",
        &cleanup::leftovers(cleanup::Leftovers::All, IptablesTable::Filter, &filter).to_string(),
        &read("E16-filter.restore"),
    );

    let old = ["KUBE-SERVICES", "KUBE-XLB-7OZUAIGE4YF4IZGV"];
    let got = cleanup::leftovers(cleanup::Leftovers::All, IptablesTable::Nat, &old).to_string();
    assert!(got.contains(":KUBE-XLB-7OZUAIGE4YF4IZGV - [0:0]\n") && got.contains("-X KUBE-XLB-"), "{got}");

    let jumps = Jump::own().map(|jump| {
        let arguments: Vec<String> = jump.arguments().iter().map(|word| format!("{word:?}")).collect();
        format!("{} {} [{}]\n", jump.table.name(), jump.from, arguments.join(" "))
    });
    assert_same("E16", &jumps.collect::<String>(), &read("E16.jumps"));
}

#[test]
fn jumps_are_prepended_in_the_order_that_packets_then_meet() {
    let mut kernel = Kernel::empty();
    kernel.ensure_jumps();
    let targets =
        |chain: &str| kernel.filter[chain].iter().map(|rule| target(rule).unwrap()).collect::<Vec<_>>();
    assert_eq!(
        targets("INPUT"),
        ["KUBE-FIREWALL", "KUBE-PROXY-FIREWALL", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"]
    );
    assert_eq!(
        targets("FORWARD"),
        ["KUBE-PROXY-FIREWALL", "KUBE-FORWARD", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"]
    );
    assert_eq!(targets("OUTPUT"), ["KUBE-FIREWALL", "KUBE-PROXY-FIREWALL", "KUBE-SERVICES"]);
}
