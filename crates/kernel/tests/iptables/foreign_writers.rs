//! What others do to our rules is heard of: at once with the nft variant, by and by with the legacy one.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kernel::iptables::{Rules, Variant, remove_through};
use model::address::Family;
use netlink::testing::in_fresh_netns;

use crate::commands::{Commands, VARIANTS};
use crate::drive::IptablesSync;
use crate::faults::wait_for_canaries;
use crate::machine::Machine;
use crate::options::Options;

const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than it takes to hear of something.
const SILENCE: Duration = Duration::from_millis(700);
/// Between two looks at the canary.
const PERIOD: Duration = Duration::from_millis(50);

fn machine(commands: &Commands) -> Machine<'_> {
    let mut machine = Machine::new(commands, Options::default());
    let rules = Rules::through(commands.programs(), machine.options.family()).unwrap();
    machine.rules = IptablesSync::with_period(rules, machine.options.settings(), PERIOD);
    machine.hear("service ns/a 10.96.1.1 p:80\nslice ns/a of a p:80 10.244.1.1@node-1").sync();
    machine
}

fn watched(machine: &mut Machine<'_>) -> Receiver<()> {
    let (told, hear) = channel();
    let watch = machine.rules.watch(PERIOD);
    std::thread::spawn(move || watch.run(|_| told.send(()).is_ok()));
    wait_for_canaries(machine.commands);
    hear
}

#[test]
fn a_flush_of_everything_is_heard_of_once_it_is_complete() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = machine(&commands);
            let before = machine.saved();
            let hear = watched(&mut machine);
            for round in ["first", "second"] {
                commands.flush(Family::V4);
                hear.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{variant:?} {round}"));
                // A machine may be so busy that the flush of one table is news and that of the next is, too.
                while hear.recv_timeout(SILENCE).is_ok() {}
                machine.rules.distrust();
                assert!(machine.sync().is_full);
                machine.saved().without_canaries().assert_same(&before, round);
                wait_for_canaries(&commands);
                assert!(
                    hear.recv_timeout(SILENCE).is_err(),
                    "{variant:?} {round}: what we do ourselves is no news"
                );
            }
        });
    }
}

#[test]
fn with_nft_every_change_to_our_rules_is_heard_of() {
    for command in [
        "iptables -t nat -F KUBE-SERVICES",
        "iptables -t nat -D KUBE-SERVICES 1",
        "iptables -t nat -I KUBE-SERVICES -j RETURN",
        "iptables -t filter -F FORWARD",
        "iptables -t nat -D OUTPUT 1",
    ] {
        in_fresh_netns(move || {
            let commands = Commands::of(Variant::Nft);
            let mut machine = machine(&commands);
            let before = machine.saved();
            let hear = watched(&mut machine);
            commands.run(command);
            hear.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{command}"));
            machine.rules.distrust();
            machine.sync();
            machine.saved().without_canaries().assert_same(&before, command);
        });
    }
}

#[test]
fn with_nft_a_flush_from_below_is_heard_of() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = machine(&commands);
        let before = machine.saved();
        let hear = watched(&mut machine);
        netlink::testing::run("nft flush ruleset");
        hear.recv_timeout(PATIENCE).expect("the tables are gone");
        machine.rules.distrust();
        machine.sync();
        machine.saved().without_canaries().assert_same(&before, "flushed by nft");
    });
}

/// Two proxies on one node would otherwise repair each other for ever.
#[test]
fn what_another_process_wrote_the_same_is_not_written_again() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let (mut one, mut other) = (machine(&commands), machine(&commands));
            let hear = watched(&mut one);
            let before = one.saved();
            other.rules.require_full();
            assert!(other.sync().writes > 0);
            if variant == Variant::Nft {
                hear.recv_timeout(PATIENCE).expect("the kernel tells of it");
            }
            one.rules.distrust();
            let outcome = one.sync();
            assert_eq!(
                (outcome.is_full, outcome.has_drifted, outcome.writes),
                (false, false, 0),
                "{variant:?}"
            );
            one.saved().assert_same(&before, "nothing was written");

            one.rules.distrust();
            let outcome = one.hear("slice ns/a of a p:80 10.244.1.7@node-1").sync();
            assert_eq!(
                (outcome.is_full, outcome.has_drifted),
                (false, false),
                "{variant:?}: our own change is no drift"
            );
            let before = one.saved();

            other.hear("slice ns/a of a p:80 10.244.1.9@node-1").sync();
            one.rules.distrust();
            let outcome = one.sync();
            assert_eq!(
                (outcome.is_full, outcome.has_drifted),
                (true, true),
                "{variant:?}: it wrote something else"
            );
            one.saved().assert_same(&before, "repaired");
            assert!(!one.sync().has_drifted, "once");
        });
    }
}

#[test]
fn a_repair_that_fails_is_told_when_it_succeeds() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = machine(&commands);
        commands.flush(Family::V4);
        machine.rules.distrust();
        commands.fail_once("iptables-restore");
        machine.try_sync().unwrap_err();
        let outcome = machine.sync();
        assert_eq!((outcome.is_full, outcome.has_drifted), (true, true));
    });
}

#[test]
fn canaries_that_cannot_be_set_out_are_tried_again() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = machine(&commands);
            commands.rewrite("iptables", "case \"$*\" in *KUBE-PROXY-CANARY*) exit 3;; esac");
            let watch = machine.rules.watch(PERIOD);
            let (told, hear) = channel();
            std::thread::spawn(move || watch.run(|_| told.send(()).is_ok()));
            assert!(hear.recv_timeout(SILENCE).is_err());
            commands.rewrite("iptables", "");
            wait_for_canaries(&commands);
            // The filter table has its canary last: from here on someone watches.
            commands.flush(Family::V4);
            hear.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{variant:?}"));
        });
    }
}

#[test]
fn with_nft_what_does_not_concern_us_is_no_news() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = machine(&commands);
        let hear = watched(&mut machine);
        for command in [
            "iptables -I INPUT -i lo -j ACCEPT",
            "iptables -D INPUT -i lo -j ACCEPT",
            "iptables -t nat -N CNI-X",
            "iptables -t nat -A CNI-X -j RETURN",
            "iptables -t nat -F CNI-X",
            "iptables -t nat -A CNI-X -j RETURN",
            "iptables -t nat -F CNI-X",
            "iptables -t nat -X CNI-X",
            "iptables -N KUBE-KUBELET-CANARY",
            "ip6tables -t nat -N KUBE-SERVICES",
        ] {
            commands.run(command);
        }
        machine.hear("slice ns/a of a p:80 10.244.1.1@node-1 10.244.2.2@node-2").sync();
        machine.rules.require_full();
        machine.sync();
        assert!(hear.recv_timeout(SILENCE).is_err());
    });
}

// Upstream's TestIPTablesMonitor: a flush of one table is none, and neither is a lock that somebody holds.
#[test]
fn with_legacy_only_a_flush_of_all_tables_counts() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Legacy);
        let mut machine = machine(&commands);
        let hear = watched(&mut machine);
        commands.run("iptables -t nat -F KUBE-PROXY-CANARY");
        commands.run("iptables -t nat -X KUBE-PROXY-CANARY");
        assert!(hear.recv_timeout(SILENCE).is_err(), "mangle still has its canary");
        commands.rewrite("iptables", "echo Another app is currently holding the xtables lock. >&2; exit 4");
        assert!(hear.recv_timeout(SILENCE).is_err(), "nobody knows");
        commands.rewrite("iptables", "");
        for table in ["mangle", "filter"] {
            commands.run(&format!("iptables -t {table} -X KUBE-PROXY-CANARY"));
        }
        hear.recv_timeout(PATIENCE).expect("now all are gone");
    });
}

/// `iptables-save` says of a table with a rule that only `nft` has words for that it is incompatible, and nothing else.
#[test]
fn with_nft_a_table_beyond_words_is_not_taken_for_an_empty_one() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = machine(&commands);
        let hear = watched(&mut machine);
        let rule =
            "ip daddr 203.0.113.99 tcp dport 80 dnat to numgen inc mod 2 map { 0 : 10.0.0.1, 1 : 10.0.0.2 }";
        netlink::testing::run(&format!("nft add rule ip nat OUTPUT {rule}"));
        let saved = commands.run("iptables-save -t nat");
        assert!(saved.contains("incompatible"), "or this test tests nothing: {saved}");
        let chain = |name: &str| netlink::testing::run(&format!("nft list chain ip nat {name}"));
        let services = chain("KUBE-SERVICES");
        for _ in 0..2 {
            machine.rules.distrust();
            machine.sync();
            assert_eq!(chain("OUTPUT").matches("jump KUBE-SERVICES").count(), 1);
            assert_eq!(chain("KUBE-SERVICES"), services);
        }
        commands.run("iptables -t nat -I OUTPUT -j ACCEPT");
        commands.run("iptables -t nat -D OUTPUT -j ACCEPT");
        assert!(hear.recv_timeout(SILENCE).is_err(), "our jump stands");
        commands.run("iptables -t nat -D OUTPUT 1");
        hear.recv_timeout(PATIENCE).expect("our jump is gone");
        remove_through(commands.programs(), Family::V4).expect_err("nobody can tell which chains are left");
        assert!(!chain("PREROUTING").contains("KUBE-"));
    });
}
