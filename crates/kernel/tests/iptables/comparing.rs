//! What the tables hold otherwise than they should, by what both variants print.

use kernel::difference::{Difference, Fact, Kind};
use kernel::iptables::{Access, Inspection, Variant, Wanted};
use netlink::testing::in_fresh_netns;

use crate::commands::{Commands, VARIANTS};
use crate::given::{events, names, options};
use crate::machine::Machine;
use crate::options::{Options, interfaces};

fn texts(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(ToString::to_string).collect()
}

fn differences(machine: &Machine<'_>) -> Vec<String> {
    texts(&Inspection::new(machine.rules.wanted()).differences().unwrap())
}

/// What somebody finds who has the same objects, but never spoke to the one that wrote the rules.
fn as_a_stranger(machine: &mut Machine<'_>) -> Vec<Difference> {
    machine.cluster.take_changes();
    let access = Access::through(machine.commands.programs(), machine.options.family()).unwrap();
    let routings = machine.cluster.routings().into_iter();
    let mut routings: Vec<_> = routings.map(|(name, routing)| (name.clone(), routing.clone())).collect();
    routings.sort_by(|a, b| a.0.cmp(&b.0));
    let endpoints = machine.cluster.counts().endpoints + machine.imagined;
    let wanted = Wanted::new(access, machine.options.settings(), routings, endpoints, &interfaces());
    Inspection::new(wanted).differences().unwrap()
}

#[test]
fn what_was_just_written_does_not_differ() {
    for variant in VARIANTS {
        let examples = names("yaml").into_iter().map(|example| (example.clone(), options(&example)));
        for (example, options) in examples.filter(|(_, options)| options.after.is_none()) {
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                let mut machine = Machine::new(&commands, options);
                events(&example).iter().for_each(|event| machine.apply(event));
                machine.sync();
                assert_eq!(differences(&machine), [""; 0], "{example} {variant:?}");
                assert_eq!(texts(&as_a_stranger(&mut machine)), [""; 0], "{example} {variant:?}");
            });
        }
    }
}

fn synced(commands: &Commands) -> Machine<'_> {
    let mut machine = Machine::new(commands, Options::default());
    machine.hear(
        "service ns/a 10.96.1.1 p:80@30080 NodePort\nslice ns/a of a p:8080 10.244.1.1@node-1 10.244.2.1@node-2",
    );
    machine.hear("service ns/b 10.96.1.2 p:80/UDP\nslice ns/b of b p:53 10.244.1.2@node-1").sync();
    machine
}

#[test]
fn damage_is_named() {
    for (damage, want) in [
        (
            "iptables -t nat -D KUBE-SERVICES 1",
            &[
                r#"missing: -t nat -A KUBE-SERVICES -d 10.96.1.1/32 -p tcp -m comment --comment "ns/a:p cluster IP" -m tcp --dport 80 -j KUBE-SVC-"#,
            ][..],
        ),
        ("iptables -t nat -I KUBE-SERVICES -j RETURN", &["surplus: -t nat -A KUBE-SERVICES -j RETURN"]),
        ("iptables -t nat -N KUBE-SVC-NOBODYWANTSTHIS0", &["surplus: -t nat :KUBE-SVC-NOBODYWANTSTHIS0"]),
        (
            "iptables -t nat -F POSTROUTING",
            &[
                r#"missing: -t nat -A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING"#,
            ],
        ),
        // Others' rules and chains are theirs.
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
fn an_endpoint_in_place_of_another_is_the_only_difference() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = synced(&commands);
            machine.hear("slice ns/a of a p:8080 10.244.1.1@node-1 10.244.2.7@node-2");
            let found = as_a_stranger(&mut machine);
            assert!(found.iter().all(|it| it.service.as_ref().unwrap().to_string() == "ns/a:p"), "{found:?}");
            let facts = |kind| {
                let of_kind = found.iter().filter(move |it| it.kind == kind);
                of_kind.filter_map(|it| it.fact.as_ref().map(Fact::to_string)).collect::<Vec<_>>()
            };
            assert_eq!(facts(Kind::Surplus), ["endpoint 10.244.2.1:8080"]);
            assert_eq!(facts(Kind::Missing), ["endpoint 10.244.2.7:8080"]);
        });
    }
}

#[test]
fn a_cluster_that_became_large_may_still_have_comments() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = synced(&commands);
        machine.imagined = 1_000;
        assert_eq!(texts(&as_a_stranger(&mut machine)), [""; 0]);
        machine.hear("slice ns/b of b p:53 10.244.1.3@node-1").sync();
        assert_eq!(differences(&machine), [""; 0], "a stale chain waits for its time");
        let found = as_a_stranger(&mut machine);
        assert!(
            found.iter().all(|it| it.kind == Kind::Surplus && it.object.contains("KUBE-SEP-")),
            "{found:?}"
        );
    });
}
