//! When a sync is full, what a partial one writes, and what happens after a failure.

use std::time::Instant;

use plan::iptables::plan::{Attempt, IptablesPlan, RestoreLimits, RuleCounts, Scope};
use plan::iptables::program::Counters;

use crate::fake::Kernel;
use crate::options::{Options, interfaces};
use crate::world::World;

const TWO_SERVICES: &str = "
    service ns/a 10.96.1.1 p:80
    service ns/b 10.96.1.2 p:80
    slice ns/a of a p:80 10.244.1.1@node-1
    slice ns/b of b p:80 10.244.1.2@node-1";

fn two_services() -> World {
    let mut world = World::new(Options::default());
    world.apply_lines(TWO_SERVICES).sync();
    world
}

// Upstream's TestSyncProxyRulesRepeated; its exact texts are examples E10-1 to E10-5.
#[test]
fn every_change_is_partial_until_one_fails() {
    let mut world = two_services();
    for (change, total, written) in [
        ("service ns/c 10.96.1.3 p:80", 15, 0), // no endpoints yet: a rule in filter
        ("slice ns/c of c p:80 10.244.1.3@node-1", 20, 5),
        ("slice ns/c of c p:80 10.244.1.4@node-1", 20, 4),
        ("slice ns/c of c p:80 10.244.1.4@node-1 10.244.2.4@node-2", 23, 5),
        ("delete service ns/c", 15, 0),
        ("delete slice ns/c", 15, 0),
    ] {
        let synced = world.apply_lines(change).sync();
        assert_eq!(synced.scope, Scope::Partial, "{change}");
        assert_eq!((synced.counts.nat, synced.counts.nat_written), (total, written), "{change}");
        assert_eq!(world.kernel, world.ideal(), "{change}");
    }

    world.apply_lines("slice ns/a of a p:80 10.244.1.9@node-1");
    let (synced, refused) = world.try_sync(|_, _| false);
    assert!(synced.scope == Scope::Partial && refused.is_some());
    assert_eq!(world.sync().scope, Scope::Full);
    assert_eq!(world.kernel, world.ideal());
    assert_eq!(world.sync().scope, Scope::Partial);
}

#[test]
fn an_attempt_that_is_not_settled_has_failed() {
    let mut world = two_services();
    drop(world.plan.partial(world.now));
    assert_eq!(world.plan.scope(world.now), Scope::Full);
}

#[test]
fn small_clusters_are_written_in_full_every_hour() {
    let mut world = two_services();
    assert_eq!(world.wait(3600).sync().scope, Scope::Partial);
    assert_eq!(world.wait(1).sync().scope, Scope::Full);
    assert_eq!(world.sync().scope, Scope::Partial);
}

#[test]
fn new_settings_are_written_in_full() {
    let mut world = two_services();
    let mut settings = world.plan.settings().clone();
    world.plan.change_settings(settings.clone());
    assert_eq!(world.sync().scope, Scope::Partial, "they are the same");
    settings.abilities.counters = Counters::default();
    world.plan.change_settings(settings);
    let synced = world.sync();
    assert_eq!(synced.scope, Scope::Full);
    assert!(!synced.texts[0].contains("nfacct"));
}

// Upstream's TestSyncProxyRulesLargeClusterMode.
#[test]
fn large_clusters_drop_comments_full_syncs_and_haste() {
    let endpoints = |service: &str, count: usize| {
        let ips = (0..count).map(|n| format!("10.244.{}.{}@node-2", n / 250, 1 + n % 250));
        format!("slice ns/{service} of {service} p:80 {}", ips.collect::<Vec<_>>().join(" "))
    };
    let mut world = World::new(Options::default());
    world.apply_lines("service ns/a 10.96.1.1 p:80").apply_lines("service ns/b 10.96.1.2 p:80");
    world.apply_lines(&endpoints("a", 499)).apply_lines(&endpoints("b", 500));
    let comments = |kernel: &Kernel| {
        let rules = kernel.nat.values().flatten();
        rules.filter(|rule| rule.contains("->")).count()
    };
    world.sync();
    assert_eq!(comments(&world.kernel), 999);

    // Two more make it large. Only what changes is written without comments.
    world
        .apply_lines("service ns/c 10.96.1.3 p:80")
        .apply_lines("slice ns/c of c p:80 10.244.9.1@node-2 10.244.9.2@node-2");
    let synced = world.sync();
    assert_eq!(synced.scope, Scope::Partial);
    assert!(!synced.texts[0].contains("->") && synced.texts[0].contains("--probability 0.5000000000"));
    assert_eq!(comments(&world.kernel), 999);

    // Stale chains wait for the sync period, and nothing is written in full for their sake.
    world.apply_lines("slice ns/c of c p:80 10.244.9.1@node-2 10.244.9.3@node-2");
    assert!(!world.sync().texts[0].contains("-X"));
    assert_eq!(world.kernel.nat_chains().len(), world.ideal().nat_chains().len() + 1);
    assert!(!world.wait(29).sync().texts.iter().any(|text| text.contains("-X")));
    let synced = world.wait(4_000).sync();
    assert_eq!(synced.scope, Scope::Partial);
    assert!(synced.texts[0].contains("-X KUBE-SEP-"));
    assert_eq!(world.kernel.nat_chains(), world.ideal().nat_chains());
    assert_eq!(comments(&world.kernel), 999);

    // Forced, it is written in full, and the last comments go.
    world.plan.require_full();
    assert_eq!(world.sync().scope, Scope::Full);
    assert_eq!(comments(&world.kernel), 0);
    assert_eq!(world.kernel, world.ideal());

    // Small again: a full sync has long been due, and comes with the sync after that.
    world.apply_lines("delete service ns/c").apply_lines("delete slice ns/c");
    assert_eq!(world.wait(4_000).sync().scope, Scope::Partial);
    assert_eq!(comments(&world.kernel), 0);
    assert_eq!(world.sync().scope, Scope::Full);
    assert_eq!(world.kernel, world.ideal());
    assert_eq!(comments(&world.kernel), 999);
}

#[test]
fn a_stale_chain_that_is_needed_again_stays() {
    let mut world = World::new(Options::default());
    world.imagined = 2_000;
    world.apply_lines(TWO_SERVICES).sync();
    world.apply_lines("slice ns/a of a p:80 10.244.1.5@node-1").sync();
    world.apply_lines("slice ns/a of a p:80 10.244.1.1@node-1").sync();
    let synced = world.wait(60).sync();
    assert_eq!(synced.texts[0].matches("-X").count(), 1, "{}", synced.texts[0]);
    assert_eq!(world.kernel, world.ideal());
}

#[test]
fn what_an_earlier_process_left_is_found_and_removed() {
    let mut world = World::new(Options::default());
    let left = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-OLD - [0:0]\n:KUBE-SEP-OLD - [0:0]\n:KUBE-EXT-OLD - [0:0]\n\
                :KUBE-SVC-ZOE7WQMSI2YE7I74 - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n:CNI-OLD - [0:0]\n\
                -A KUBE-SERVICES -j KUBE-EXT-OLD\n-A KUBE-EXT-OLD -j KUBE-SVC-OLD\n-A KUBE-SVC-OLD -j KUBE-SEP-OLD\n\
                -A KUBE-SEP-OLD -j ACCEPT\n-A KUBE-SVC-ZOE7WQMSI2YE7I74 -j ACCEPT\nCOMMIT\n";
    for limits in [RestoreLimits::LEGACY, RestoreLimits::NFT, RestoreLimits { batch: 1, edits: 0 }] {
        world = World::with_limits(Options::default(), limits);
        world.kernel.restore(left).unwrap();
        world.apply_lines(TWO_SERVICES).sync();
        let chains = world.kernel.nat_chains();
        assert!(chains.contains(&"KUBE-KUBELET-CANARY") && chains.contains(&"CNI-OLD"));
        assert!(
            !chains.iter().any(|chain| chain.starts_with("KUBE") && chain.ends_with("-OLD")),
            "{chains:?}"
        );
    }
    assert!(world.kernel.nat["KUBE-SVC-ZOE7WQMSI2YE7I74"].len() == 2, "ours now");
}

#[test]
fn as_long_as_the_kernel_cannot_be_read_every_sync_is_full() {
    let mut world = two_services();
    world.can_save = false;
    world.plan.require_full();
    world.apply_lines("slice ns/a of a p:80 10.244.1.9@node-1");
    assert_eq!(world.sync().scope, Scope::Full);
    assert_eq!(world.kernel, world.ideal(), "what we wrote ourselves is removed even so");
    world.can_save = true;
    assert_eq!(world.sync().scope, Scope::Full);
    assert_eq!(world.sync().scope, Scope::Partial);
}

#[test]
fn an_address_that_comes_or_goes_changes_one_line() {
    let options = Options { node_port_addresses: vec!["192.168.0.0/16".into()], ..Options::default() };
    let mut world = World::new(options);
    world.apply_lines(TWO_SERVICES).sync();
    let mut addresses = interfaces();
    addresses.push("192.168.7.7".parse().unwrap());
    world.set_node_port_ips(&addresses);
    let tail = r#"-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain""#;
    assert_eq!(
        world.sync().texts,
        [format!("*nat\n-I KUBE-SERVICES 5 {tail} -d 192.168.7.7 -j KUBE-NODEPORTS\nCOMMIT\n")]
    );
    world.set_node_port_ips(&interfaces());
    assert_eq!(world.sync().texts, ["*nat\n-D KUBE-SERVICES 5\nCOMMIT\n"]);
    assert_eq!(world.kernel, world.ideal());
}

#[test]
fn a_line_goes_to_its_place_and_too_many_are_written_anew() {
    let mut world =
        World::with_limits(Options::default(), RestoreLimits { edits: 3, ..RestoreLimits::LEGACY });
    for n in [1, 3, 5, 7, 9] {
        world.apply_lines(&format!(
            "service ns/s{n} 10.96.2.{n} p:80\nslice ns/s{n} of s{n} p:80 10.244.1.{n}@node-1"
        ));
    }
    world.sync();
    world.apply_lines(
        "service ns/s4 10.96.2.4 p:80\nslice ns/s4 of s4 p:80 10.244.1.4@node-1\ndelete service ns/s9",
    );
    let text = world.sync().texts.swap_remove(0);
    assert!(text.contains("\n-I KUBE-SERVICES 3 -m comment --comment \"ns/s4:p cluster IP\""), "{text}");
    assert!(text.contains("\n-D KUBE-SERVICES 6\n") && !text.contains(":KUBE-SERVICES"), "{text}");
    assert_eq!(world.kernel, world.ideal());

    for n in [2, 6, 8, 9] {
        world.apply_lines(&format!(
            "service ns/s{n} 10.96.2.{n} p:80\nslice ns/s{n} of s{n} p:80 10.244.1.{n}@node-1"
        ));
    }
    let text = world.sync().texts.swap_remove(0);
    assert!(
        text.contains(":KUBE-SERVICES - [0:0]") && !text.contains("-I ") && !text.contains("-D "),
        "{text}"
    );
    assert_eq!(world.kernel, world.ideal());
}

#[test]
fn in_batches_the_ways_in_come_last() {
    let limits = RestoreLimits { batch: 20, edits: 100 };
    let mut world = World::with_limits(Options::default(), limits);
    for n in 1..=20 {
        world.apply_lines(&format!("service ns/s{n} 10.96.2.{n} p:80@{}", 30_000 + n));
        world.apply_lines(&format!("slice ns/s{n} of s{n} p:80 10.244.1.{n}@node-1 10.244.2.{n}@node-2"));
    }
    let synced = world.sync();
    let rules = |text: &str| text.lines().filter(|line| line.starts_with("-A")).count();
    let (last, others) = synced.texts.split_last().unwrap();
    assert!(others.len() >= 8, "{} runs", others.len());
    assert!(others.iter().all(|text| rules(text) <= 20 && !text.contains("*filter")));
    assert!(
        others.iter().all(|text| !text.contains("-A KUBE-SERVICES") && !text.contains("-A KUBE-NODEPORTS"))
    );
    assert!(others[0].contains("-A KUBE-MARK-MASQ"), "{}", others[0]);
    assert!(
        last.contains("*filter") && last.contains("-A KUBE-SERVICES") && last.contains("-A KUBE-NODEPORTS")
    );
    assert_eq!(world.kernel, world.ideal());

    for n in 1..=20 {
        world.apply_lines(&format!("delete service ns/s{n}"));
    }
    assert!(world.sync().texts.len() > 3);
    assert_eq!(world.kernel, world.ideal());
}

// Upstream's TestNumberIptablesRules and TestProxierMetricsIPTablesTotalRules.
#[test]
fn rules_are_counted_as_upstream_counts_them() {
    let counts = |services: usize, endpoints: usize, extras: &str| {
        let mut world = World::new(Options::default());
        for n in 1..=services {
            let ips: Vec<String> = (1..=endpoints).map(|ip| format!("10.244.{n}.{ip}@node-1")).collect();
            let extras = extras.replace('#', &n.to_string());
            world.apply_lines(&format!("service ns/s{n} 10.96.0.{n} p:80{extras}"));
            world.apply_lines(&format!("slice ns/s{n} of s{n} p:80 {}", ips.join(" ")));
        }
        let first = world.sync();
        let rules = |table: &str| {
            first.texts[0].split(table).nth(1).unwrap().lines().filter(|line| line.starts_with("-A")).count()
        };
        assert_eq!(first.counts.nat, rules("*nat"), "counted and written");
        assert_eq!(first.counts.nat_written, first.counts.nat);
        assert_eq!(first.counts.filter_written, first.counts.filter);
        let RuleCounts { filter, nat, .. } = first.counts;
        world.apply_lines("service other/x 10.96.7.7 p:80").sync();
        let after = world.apply_lines("delete service other/x").sync().counts;
        assert_eq!((after.filter, after.nat), (filter, nat), "the same after something came and went");
        (filter, nat)
    };
    let balancer = "@3000# external-ips=198.51.100.# LoadBalancer lb-ips=203.0.113.# ranges=203.0.113.0/24";
    assert_eq!(counts(0, 0, ""), (4, 5));
    for (services, endpoints) in [(1, 1), (3, 2), (9, 7)] {
        assert_eq!(counts(services, endpoints, ""), (4, 5 + services * (2 + 3 * endpoints)));
        let want = (4 + services, 5 + services * (10 + 3 * endpoints));
        assert_eq!(counts(services, endpoints, balancer), want);
        assert_eq!(counts(services, 0, ""), (4 + services, 5));
        assert_eq!(counts(services, 0, balancer), (4 + 4 * services, 5));
    }
}

const COUNTERS: Counters = Counters { invalid_dropped: true, localhost_node_ports: true };

/// A full sync in which the kernel has these counters, if the plan asks for them.
fn full(plan: &mut IptablesPlan, now: Instant) -> Attempt<'_> {
    let counters = if plan.uses_counters() { COUNTERS } else { Counters::default() };
    plan.use_counters(counters);
    plan.full(now, Some(&[]))
}

fn counts(attempt: &Attempt<'_>) -> bool {
    attempt.restores().iter().any(|restore| restore.to_string().contains("nfacct"))
}

#[test]
fn counters_are_tried_once_more_after_a_refusal_that_does_not_name_them() {
    for is_refused_again in [false, true] {
        let mut plan = World::new(Options::default()).plan;
        let now = Instant::now();
        full(&mut plan, now).refused(false);
        full(&mut plan, now).settle();
        assert_eq!(plan.scope(now), Scope::Full, "the rules lack the counters");
        let attempt = full(&mut plan, now);
        assert!(counts(&attempt));
        if is_refused_again {
            attempt.refused(false);
            full(&mut plan, now).settle();
        } else {
            attempt.settle();
        }
        assert_eq!(plan.scope(now), Scope::Partial, "no second trial");
        assert_eq!(counts(&full(&mut plan, now)), !is_refused_again);
    }
}

#[test]
fn a_refused_full_sync_is_tried_at_once_without_counters() {
    // Whether the refusal names them, and whether it is accepted without them: then the next full sync has none either.
    for (is_named, is_accepted, has_none) in
        [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
    {
        let mut plan = World::new(Options::default()).plan;
        let now = Instant::now();
        let attempt = full(&mut plan, now);
        assert!(counts(&attempt));
        assert!(attempt.refused(is_named), "at once");
        let attempt = full(&mut plan, now);
        assert!(!counts(&attempt));
        if is_accepted {
            attempt.settle();
        } else {
            assert!(!attempt.refused(false), "nothing else can be tried");
        }
        plan.require_full();
        assert_eq!(counts(&full(&mut plan, now)), !has_none, "{is_named} {is_accepted}");
    }
}

#[test]
fn tables_that_may_have_drifted_are_compared_and_written_only_if_they_differ() {
    let mut plan = World::new(Options::default()).plan;
    let now = Instant::now();
    plan.suspect_drift();
    assert!(!plan.needs_comparison(now), "everything is to be written anyway");
    plan.full(now, Some(&[])).settle();
    assert!(plan.needs_comparison(now));
    plan.compared(false);
    assert!(!plan.needs_comparison(now));
    let attempt = plan.partial(now);
    assert!(attempt.restores().is_empty() && !attempt.has_drifted());
    attempt.settle();

    plan.suspect_drift();
    plan.compared(true);
    assert_eq!(plan.scope(now), Scope::Full);
    drop(plan.full(now, Some(&[])));
    let attempt = plan.full(now, Some(&[]));
    assert!(attempt.has_drifted(), "also after an attempt that failed");
    attempt.settle();
    assert_eq!(plan.scope(now), Scope::Partial);
    assert!(!plan.partial(now).has_drifted());
}
