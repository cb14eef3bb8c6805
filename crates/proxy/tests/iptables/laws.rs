//! After any history of events, the kernel holds what one full sync would write.

use kernel::iptables::Variant;
use model::address::Family;
use netlink::testing::in_fresh_netns;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::commands::{Commands, VARIANTS, iptables};
use crate::histories::{Op, op};
use crate::machine::Machine;
use crate::options::{Options, interfaces};

/// The line with addresses of `family`.
fn translated(line: &str, family: Family) -> String {
    const PREFIXES: [(&str, &str); 7] = [
        ("10.96.0.", "fd00:96::"),
        ("10.244.1.", "fd00:10:244:1::"),
        ("10.244.2.", "fd00:10:244:2::"),
        ("198.51.100.", "2001:db8:51::"),
        ("203.0.113.", "2001:db8:203::"),
        ("10.0.0.0/8", "fd00::/16"),
        ("192.168.0.0/24", "fd00:192:168::/64"),
    ];
    match family {
        Family::V4 => line.to_owned(),
        Family::V6 => PREFIXES.iter().fold(line.to_owned(), |line, (v4, v6)| line.replace(v4, v6)),
    }
}

fn run_history(machine: &mut Machine<'_>, ops: Vec<Op>) {
    let iptables = iptables(machine.options.family());
    let (save, restore) = (format!("{iptables}-save"), format!("{iptables}-restore"));
    let mut was_large = false;
    for op in ops {
        match op {
            Op::Say(line) => _ = machine.apply_lines(&translated(&line, machine.options.family())),
            Op::Move(kept) => machine.set_node_port_ips(kept.iter().map(|at| interfaces()[*at]).collect()),
            Op::Grow(large) => {
                was_large |= large;
                machine.imagined = if large { 2_000 } else { 0 };
            }
            Op::Flush => {
                machine.commands.flush(machine.options.family());
                machine.rules.plan.suspect_drift();
            }
            Op::CannotSave => machine.commands.fail_once(&save),
            Op::Fail(_) => {
                machine.commands.fail_once(&restore);
                // A failed partial sync is retried as a full one at once; a failed full sync is not.
                let _ = machine.try_sync();
            }
            Op::Sync => _ = machine.try_sync(),
            Op::Wait(_) => {}
        }
    }
    [&save, &restore].iter().for_each(|command| machine.commands.rewrite(command, ""));
    machine.sync();
    // Only a full sync restores the comments that large clusters do not have.
    if was_large {
        machine.imagined = 0;
        machine.rules.plan.require_full();
        machine.sync();
    }
}

proptest! {
    // Most of the time is spent on starting commands.
    #![proptest_config(ProptestConfig { max_shrink_iters: 50, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn partial_syncs_lead_to_the_same_rules_as_a_full_one(
        variant in select(VARIANTS.to_vec()),
        family in select(Family::BOTH.to_vec()),
        everywhere in any::<bool>(),
        ops in vec(op(), 1..16),
    ) {
        in_fresh_netns(move || check_history(variant, family, everywhere, ops));
    }
}

fn check_history(variant: Variant, family: Family, everywhere: bool, ops: Vec<Op>) {
    let commands = Commands::of(variant);
    let (options, addresses) = match family {
        Family::V4 => (Options::default(), "192.168.0.0/16"),
        Family::V6 => (Options::v6(), "fd00:192:168::/48"),
    };
    let node_port_addresses = if everywhere { Vec::new() } else { vec![addresses.to_owned()] };
    let options = Options { node_port_addresses, ..options };
    let mut machine = Machine::new(&commands, options);
    run_history(&mut machine, ops);
    let nothing = machine.sync();
    assert!(!nothing.is_full && nothing.writes == 0, "a sync without changes writes nothing: {nothing:?}");
    let saved = machine.saved();
    saved.assert_same(&machine.ideal(), &format!("{variant:?} {family}"));
}

/// The full sync of a new address fails for a reason that passes, and succeeds without counters.
#[test]
fn a_refusal_that_passes_costs_no_counters() {
    for variant in VARIANTS {
        let ops = vec![Op::Flush, Op::Sync, Op::Move(vec![1]), Op::Fail(0)];
        in_fresh_netns(move || check_history(variant, Family::V4, false, ops));
    }
}
