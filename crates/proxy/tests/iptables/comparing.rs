//! Differences between the tables and the desired state, as both variants print the tables.

use kernel::iptables::{Rules, RulesInspection, RulesSnapshot, Variant};
use netlink::testing::in_fresh_netns;
use plan::difference::{Difference, DifferenceKind};
use plan::served::KernelComparison;

use crate::commands::{Commands, VARIANTS};
use crate::given::{events, names, options};
use crate::machine::{Machine, snapshot};
use crate::options::{Options, interfaces};

fn texts(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(ToString::to_string).collect()
}

fn differences(machine: &Machine<'_>) -> Vec<String> {
    texts(&RulesInspection::new(snapshot(&machine.rules)).compare_all().unwrap().differences)
}

/// What another process with the same objects finds.
fn compare_in_another_process(machine: &mut Machine<'_>) -> KernelComparison {
    machine.cluster.discard_changes();
    let rules = Rules::through(machine.commands.programs(), machine.options.family()).unwrap();
    let routings = machine.cluster.routings().into_iter();
    let mut routings: Vec<_> = routings.map(|(name, routing)| (name.clone(), routing.clone())).collect();
    routings.sort_by(|a, b| a.0.cmp(&b.0));
    let endpoints = machine.cluster.counts().endpoints + machine.imagined;
    let desired = RulesSnapshot::new(&rules, machine.options.settings(), routings, endpoints, &interfaces());
    RulesInspection::new(desired).compare_all().unwrap()
}

#[test]
fn there_are_no_differences_after_a_sync() {
    for variant in VARIANTS {
        let examples = names("yaml").into_iter().map(|example| (example.clone(), options(&example)));
        for (example, options) in examples.filter(|(_, options)| options.after.is_none()) {
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                let mut machine = Machine::new(&commands, options);
                events(&example).iter().for_each(|event| machine.apply(event));
                machine.sync();
                assert_eq!(differences(&machine), [""; 0], "{example} {variant:?}");
                assert_eq!(
                    texts(&compare_in_another_process(&mut machine).differences),
                    [""; 0],
                    "{example} {variant:?}"
                );
            });
        }
    }
}

fn synced(commands: &Commands) -> Machine<'_> {
    let mut machine = Machine::new(commands, Options::default());
    machine.apply_lines(
        "service ns/a 10.96.1.1 p:80@30080 NodePort\nslice ns/a of a p:8080 10.244.1.1@node-1 10.244.2.1@node-2",
    );
    machine.apply_lines("service ns/b 10.96.1.2 p:80/UDP\nslice ns/b of b p:53 10.244.1.2@node-1").sync();
    machine
}

#[test]
fn differences_name_the_rule() {
    for (damage, want) in [
        (
            "iptables -t nat -D KUBE-SERVICES 1",
            &[
                r#"missing: -t nat -A KUBE-SERVICES -d 10.96.1.1/32 -p tcp -m comment --comment "ns/a:p cluster IP" -m tcp --dport 80 -j KUBE-SVC-"#,
            ][..],
        ),
        ("iptables -t nat -I KUBE-SERVICES -j RETURN", &["unexpected: -t nat -A KUBE-SERVICES -j RETURN"]),
        ("iptables -t nat -N KUBE-SVC-NOBODYWANTSTHIS0", &["unexpected: -t nat :KUBE-SVC-NOBODYWANTSTHIS0"]),
        (
            "iptables -t nat -F POSTROUTING",
            &[
                r#"missing: -t nat -A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING"#,
            ],
        ),
        // Rules and chains of other programs are not ours.
        ("iptables -I FORWARD -j ACCEPT", &[]),
        ("iptables -t nat -N KUBE-KUBELET-CANARY", &[]),
        ("iptables -A KUBE-FIREWALL -s 192.0.2.1 -j DROP", &[]),
    ] {
        for variant in VARIANTS {
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                let machine = synced(&commands);
                commands.run(damage);
                let found = differences(&machine);
                assert_eq!(found.len(), want.len(), "{damage} {variant:?}: {found:?}");
                for (found, want) in found.iter().zip(want) {
                    assert!(found.starts_with(want), "{damage} {variant:?}: {found}");
                }
            });
        }
    }
}

#[test]
fn a_replaced_endpoint_is_the_only_difference() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = synced(&commands);
            machine.apply_lines("slice ns/a of a p:8080 10.244.1.1@node-1 10.244.2.7@node-2");
            let found = compare_in_another_process(&mut machine);
            let changes = found.changes();
            let [change] = changes.as_slice() else { panic!("{changes:?}") };
            assert_eq!(change.service.as_ref().unwrap().to_string(), "ns/a:p");
            let facts = change.facts.iter().map(|fact| format!("{} {}", fact.kind, fact.text));
            let facts: Vec<String> = facts.collect();
            assert_eq!(facts, ["unexpected endpoint 10.244.2.1:8080", "missing endpoint 10.244.2.7:8080"]);
        });
    }
}

#[test]
fn a_cluster_that_became_large_may_still_have_comments() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = synced(&commands);
        machine.imagined = 1_000;
        assert_eq!(texts(&compare_in_another_process(&mut machine).differences), [""; 0]);
        machine.apply_lines("slice ns/b of b p:53 10.244.1.3@node-1").sync();
        assert_eq!(differences(&machine), [""; 0], "stale chains are deleted later");
        let found = compare_in_another_process(&mut machine).differences;
        assert!(
            found.iter().all(|it| it.kind == DifferenceKind::Unexpected && it.text().contains("KUBE-SEP-")),
            "{found:?}"
        );
    });
}
