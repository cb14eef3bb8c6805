//! Changes by foreign writers are reported: at once with the nft variant, by polling with the legacy one.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kernel::iptables::{Rules, Variant, remove_through};
use model::address::Family;
use netlink::testing::in_fresh_netns;
use plan::iptables::cleanup::Leftovers;

use proxy::backend::Backend as _;

use crate::commands::{Commands, VARIANTS};
use crate::faults::wait_for_canaries;
use crate::machine::{Machine, backend};
use crate::options::Options;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than a notification takes.
const SETTLE_TIME: Duration = Duration::from_millis(700);
/// The time between two checks of the canary.
const PERIOD: Duration = Duration::from_millis(50);

fn machine(commands: &Commands) -> Machine<'_> {
    let mut machine = Machine::new(commands, Options::default());
    let rules = Rules::through(commands.programs(), machine.options.family()).unwrap();
    machine.rules = backend(rules, &machine.options, PERIOD);
    machine.apply_lines("service ns/a 10.96.1.1 p:80\nslice ns/a of a p:80 10.244.1.1@node-1").sync();
    machine
}

fn watched(machine: &mut Machine<'_>) -> Receiver<()> {
    let (notify, notified) = channel();
    let listen = machine.rules.drift_listener().unwrap();
    std::thread::spawn(move || listen(&mut |_| notify.send(()).is_ok()));
    wait_for_canaries(machine.commands);
    notified
}

#[test]
fn a_complete_flush_is_reported() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = machine(&commands);
            let before = machine.saved();
            let notified = watched(&mut machine);
            for round in ["first", "second"] {
                commands.flush(Family::V4);
                notified.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{variant:?} {round}"));
                // On a busy machine, the flushes of single tables may be reported separately.
                while notified.recv_timeout(SETTLE_TIME).is_ok() {}
                machine.rules.suspect_drift();
                assert!(machine.sync().is_full);
                machine.saved().without_canaries().assert_same(&before, round);
                wait_for_canaries(&commands);
                assert!(
                    notified.recv_timeout(SETTLE_TIME).is_err(),
                    "{variant:?} {round}: our own changes are not reported"
                );
            }
        });
    }
}

#[test]
fn nft_reports_every_change_of_our_rules() {
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
            let notified = watched(&mut machine);
            commands.run(command);
            notified.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{command}"));
            machine.rules.suspect_drift();
            machine.sync();
            machine.saved().without_canaries().assert_same(&before, command);
        });
    }
}

#[test]
fn nft_reports_a_flush_of_the_ruleset() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = machine(&commands);
        let before = machine.saved();
        let notified = watched(&mut machine);
        netlink::testing::run("nft flush ruleset");
        notified.recv_timeout(TIMEOUT).expect("the tables are gone");
        machine.rules.suspect_drift();
        machine.sync();
        machine.saved().without_canaries().assert_same(&before, "flushed by nft");
    });
}

/// Otherwise two proxies on one node would repair each other's rules endlessly.
#[test]
fn rules_that_another_process_has_written_identically_are_not_written_again() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let (mut one, mut other) = (machine(&commands), machine(&commands));
            let notified = watched(&mut one);
            let before = one.saved();
            other.rules.plan.require_full();
            assert!(other.sync().writes > 0);
            if variant == Variant::Nft {
                notified.recv_timeout(TIMEOUT).expect("the kernel notifies of it");
            }
            one.rules.suspect_drift();
            let outcome = one.sync();
            assert_eq!(
                (outcome.is_full, outcome.has_drifted, outcome.writes),
                (false, false, 0),
                "{variant:?}"
            );
            one.saved().assert_same(&before, "nothing was written");

            one.rules.suspect_drift();
            let outcome = one.apply_lines("slice ns/a of a p:80 10.244.1.7@node-1").sync();
            assert_eq!(
                (outcome.is_full, outcome.has_drifted),
                (false, false),
                "{variant:?}: our own change is not drift"
            );
            let before = one.saved();

            other.apply_lines("slice ns/a of a p:80 10.244.1.9@node-1").sync();
            one.rules.suspect_drift();
            let outcome = one.sync();
            assert_eq!(
                (outcome.is_full, outcome.has_drifted),
                (true, true),
                "{variant:?}: the other process wrote different rules"
            );
            one.saved().assert_same(&before, "repaired");
            assert!(!one.sync().has_drifted, "reported once");
        });
    }
}

#[test]
fn drift_is_reported_by_the_sync_that_repairs_it() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = machine(&commands);
        commands.flush(Family::V4);
        machine.rules.suspect_drift();
        commands.fail_once("iptables-restore");
        machine.try_sync().unwrap_err();
        let outcome = machine.sync();
        assert_eq!((outcome.is_full, outcome.has_drifted), (true, true));
    });
}

#[test]
fn creating_canaries_is_retried() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = machine(&commands);
            commands.rewrite("iptables", "case \"$*\" in *KUBE-PROXY-CANARY*) exit 3;; esac");
            let listen = machine.rules.drift_listener().unwrap();
            let (notify, notified) = channel();
            std::thread::spawn(move || listen(&mut |_| notify.send(()).is_ok()));
            assert!(notified.recv_timeout(SETTLE_TIME).is_err());
            commands.rewrite("iptables", "");
            wait_for_canaries(&commands);
            // The filter table gets its canary last, so the watch runs from here on.
            commands.flush(Family::V4);
            notified.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{variant:?}"));
        });
    }
}

#[test]
fn nft_does_not_report_changes_of_other_rules() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = machine(&commands);
        let notified = watched(&mut machine);
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
        machine.apply_lines("slice ns/a of a p:80 10.244.1.1@node-1 10.244.2.2@node-2").sync();
        machine.rules.plan.require_full();
        machine.sync();
        assert!(notified.recv_timeout(SETTLE_TIME).is_err());
    });
}

// Upstream's TestIPTablesMonitor: neither a flush of one table nor a held lock is reported.
#[test]
fn legacy_reports_only_a_flush_of_all_tables() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Legacy);
        let mut machine = machine(&commands);
        let notified = watched(&mut machine);
        commands.run("iptables -t nat -F KUBE-PROXY-CANARY");
        commands.run("iptables -t nat -X KUBE-PROXY-CANARY");
        assert!(notified.recv_timeout(SETTLE_TIME).is_err(), "mangle still has its canary");
        commands.rewrite("iptables", "echo Another app is currently holding the xtables lock. >&2; exit 4");
        assert!(notified.recv_timeout(SETTLE_TIME).is_err(), "whether the canary exists is unknown");
        commands.rewrite("iptables", "");
        for table in ["mangle", "filter"] {
            commands.run(&format!("iptables -t {table} -X KUBE-PROXY-CANARY"));
        }
        notified.recv_timeout(TIMEOUT).expect("all canaries are gone");
    });
}

/// For a table with a rule that only `nft` can print, `iptables-save` prints nothing but that the table is incompatible.
#[test]
fn an_incompatible_table_does_not_pass_for_an_empty_one() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = machine(&commands);
        let notified = watched(&mut machine);
        let rule =
            "ip daddr 203.0.113.99 tcp dport 80 dnat to numgen inc mod 2 map { 0 : 10.0.0.1, 1 : 10.0.0.2 }";
        netlink::testing::run(&format!("nft add rule ip nat OUTPUT {rule}"));
        let saved = commands.run("iptables-save -t nat");
        assert!(saved.contains("incompatible"), "the precondition of this test: {saved}");
        let chain = |name: &str| netlink::testing::run(&format!("nft list chain ip nat {name}"));
        let services = chain("KUBE-SERVICES");
        for _ in 0..2 {
            machine.rules.suspect_drift();
            machine.sync();
            assert_eq!(chain("OUTPUT").matches("jump KUBE-SERVICES").count(), 1);
            assert_eq!(chain("KUBE-SERVICES"), services);
        }
        commands.run("iptables -t nat -I OUTPUT -j ACCEPT");
        commands.run("iptables -t nat -D OUTPUT -j ACCEPT");
        assert!(notified.recv_timeout(SETTLE_TIME).is_err(), "our jump still exists");
        commands.run("iptables -t nat -D OUTPUT 1");
        notified.recv_timeout(TIMEOUT).expect("our jump is gone");
        remove_through(commands.programs(), Family::V4, Leftovers::All)
            .expect_err("the chains that are left are unknown");
        assert!(!chain("PREROUTING").contains("KUBE-"));
    });
}
