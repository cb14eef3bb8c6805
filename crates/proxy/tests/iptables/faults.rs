//! Failed commands are reported as errors, and the next sync repairs the rules.

use std::fs;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use kernel::iptables::{Programs, Rules, Variant};
use model::address::Family;
use netlink::testing::in_fresh_netns;
use rustix::fs::{FlockOperation, flock};

use proxy::backend::Backend as _;

use crate::commands::{Commands, VARIANTS};
use crate::machine::Machine;
use crate::options::Options;

const TWO_SERVICES: &str = "
    service ns/a 10.96.1.1 p:80@30080 NodePort
    service ns/b 10.96.1.2 p:80
    slice ns/a of a p:80 10.244.1.1@node-1
    slice ns/b of b p:80 10.244.1.2@node-1 10.244.2.2@node-2";

fn two_services(commands: &Commands) -> Machine<'_> {
    let mut machine = Machine::new(commands, Options::default());
    machine.apply_lines(TWO_SERVICES).sync();
    machine
}

/// Asserts that the kernel holds what one full sync would have written.
fn assert_repaired(machine: Machine<'_>, what: &str) {
    let saved = machine.saved();
    saved.assert_same(&machine.ideal(), what);
}

#[test]
fn a_refused_partial_restore_is_followed_by_a_full_one() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = two_services(&commands);
            commands.fail_once("iptables-restore");
            let outcome = machine.apply_lines("slice ns/a of a p:80 10.244.1.7@node-1").sync();
            assert!(outcome.is_full);
            assert_repaired(machine, "restore failed once");
        });
    }
}

#[test]
fn after_a_failed_full_restore_the_next_sync_writes_everything() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = two_services(&commands);
            commands.rewrite("iptables-restore", "echo 'iptables-restore: line 3 failed' >&2; exit 1");
            machine.rules.plan.require_full();
            let error = machine
                .apply_lines("slice ns/a of a p:80 10.244.1.7@node-1")
                .try_sync()
                .unwrap_err()
                .to_string();
            let parts = ["iptables-restore", "status 1", "line 3 failed", "| line 3: :KUBE-"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            commands.rewrite("iptables-restore", "");
            assert!(machine.sync().is_full, "the changes of the failed sync are not lost");
            assert_repaired(machine, "restore failed");
        });
    }
}

#[test]
fn a_kernel_without_the_nfacct_match_gets_rules_without_counters() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Legacy);
        let input = commands.path("text");
        let refuse = format!(
            "cat > {0}; if grep -q nfacct {0}; then echo 'nfacct match: unknown' >&2; exit 2; fi; exec < {0}",
            input.display()
        );
        commands.rewrite("iptables-restore", &refuse);
        let machine = two_services(&commands);
        let saved = machine.saved();
        assert!(saved.of("filter", "KUBE-FORWARD").unwrap()[0].ends_with("--ctstate INVALID -j DROP"));
        saved.assert_same(&saved.clone().without_counters(), "no rule counts");
    });
}

#[test]
fn a_sync_waits_for_a_lock_that_is_held_for_three_seconds() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Legacy);
        let mut machine = two_services(&commands);
        let lock = fs::OpenOptions::new().write(true).open(commands.lock()).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let held = Instant::now();
        let holder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(3));
            drop(lock);
        });
        let outcome = machine.apply_lines("slice ns/a of a p:80 10.244.1.7@node-1").sync();
        assert!(!outcome.is_full && held.elapsed() >= Duration::from_secs(3));
        holder.join().unwrap();
        assert_repaired(machine, "lock held for a while");
    });
}

#[test]
fn a_sync_fails_if_the_lock_is_not_released_and_is_retried() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Legacy);
        let mut machine = two_services(&commands);
        let lock = fs::OpenOptions::new().write(true).open(commands.lock()).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let started = Instant::now();
        let error = machine.apply_lines("slice ns/a of a p:80 10.244.1.7@node-1").try_sync().unwrap_err();
        assert!(error.is_contention() && error.to_string().contains("xtables lock"), "{error}");
        assert!(
            started.elapsed() < Duration::from_secs(9),
            "one wait of five seconds, not one for each attempt"
        );
        drop(lock);
        assert!(machine.sync().is_full);
        assert_repaired(machine, "lock held for long");
    });
}

#[test]
fn the_error_names_a_lock_that_cannot_be_created() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Legacy);
        let mut machine = two_services(&commands);
        // Stands for a read-only file system: root could write to any other.
        commands.rewrite("iptables-restore", "export XTABLES_LOCKFILE=/proc/xtables.lock");
        let error = machine.apply_lines("slice ns/a of a p:80 10.244.1.7@node-1").try_sync().unwrap_err();
        assert!(error.to_string().contains("/proc/xtables.lock"), "{error}");
        commands.rewrite("iptables-restore", "");
        assert!(machine.sync().is_full);
        assert_repaired(machine, "lock could not be created");
    });
}

#[test]
fn the_error_names_a_missing_command() {
    let nowhere = tempfile::tempdir().unwrap();
    let programs = std::sync::Arc::new(Programs::of(nowhere.path()));
    let error = Rules::through(programs, Family::V6).unwrap_err();
    assert!(error.is_missing());
    let text = error.to_string();
    assert!(text.contains("ip6tables") && text.contains("is installed"), "{text}");

    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let mut machine = two_services(&commands);
        fs::rename(commands.path("iptables-restore"), commands.path("away")).unwrap();
        let error = machine.apply_lines("slice ns/a of a p:80 10.244.1.7@node-1").try_sync().unwrap_err();
        assert!(error.is_missing() && error.to_string().contains("iptables-restore"), "{error}");
        fs::rename(commands.path("away"), commands.path("iptables-restore")).unwrap();
        assert!(machine.sync().is_full);
        assert_repaired(machine, "command was missing");
    });
}

#[test]
fn a_table_that_cannot_be_read_is_written_nevertheless() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            commands.rewrite("iptables-save", "echo not today >&2; exit 1");
            let mut machine = two_services(&commands);
            assert!(machine.sync().is_full, "every sync is full until the table can be read");
            commands.rewrite("iptables-save", "");
            assert!(machine.sync().is_full);
            assert!(!machine.sync().is_full);
            assert_repaired(machine, "table could not be read");
        });
    }
}

#[test]
fn rules_flushed_by_a_foreign_writer_are_written_again() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = two_services(&commands);
            let before = machine.saved();
            let (notify, notified) = channel();
            let listen = machine.rules.drift_listener().unwrap();
            std::thread::spawn(move || listen(&mut |_| notify.send(()).is_ok()));
            wait_for_canaries(&commands);
            commands.flush(Family::V4);
            if variant == Variant::Nft {
                notified.recv_timeout(Duration::from_secs(60)).expect("the kernel notifies of it");
            }
            machine.rules.suspect_drift();
            assert!(machine.sync().is_full);
            machine.saved().without_canaries().assert_same(&before, &format!("{variant:?}"));
        });
    }
}

pub fn wait_for_canaries(commands: &Commands) {
    testkit::wait::within(Duration::from_secs(60), "canaries", || {
        commands.try_run("iptables -S KUBE-PROXY-CANARY -t filter").status.success()
    });
}
