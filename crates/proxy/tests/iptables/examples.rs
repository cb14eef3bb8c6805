//! The examples, loaded by the real commands and read back.
//!
//! They use packet counters, which the kernel that runs these tests has to support.

use model::address::Family;
use netlink::accounting::AccountingSocket;
use netlink::testing::in_fresh_netns;
use plan::iptables::chains::Jump;
use plan::iptables::program::{INVALID_DROPPED, LOCALHOST_NODE_PORTS};
use plan::iptables::restore::Restore;

use crate::commands::{Commands, VARIANTS, iptables};
use crate::given::{events, names, options, read};
use crate::machine::Machine;
use crate::options::Options;
use crate::saved::Saved;

/// Creates what exists before the restore of a full sync, by the commands of the test.
fn prepare(commands: &Commands, family: Family) {
    let mut counters = AccountingSocket::open().expect("these tests need a kernel with nfnetlink_acct");
    counters.ensure(INVALID_DROPPED).unwrap();
    counters.ensure(LOCALHOST_NODE_PORTS).unwrap();
    let mut restore = Restore::default();
    for jump in Jump::ALL {
        let section = restore.section(jump.table);
        section.chain(jump.to);
        section.insert(jump.from, 1, &jump.rule());
    }
    commands.restore(family, &restore.to_string());
}

/// The examples that begin with a full sync of empty tables, and their options.
fn first_syncs() -> impl Iterator<Item = (String, Options)> {
    let all = names("yaml").into_iter().map(|example| (example.clone(), options(&example)));
    all.filter(|(_, options)| options.after.is_none())
}

#[test]
fn every_restore_text_is_saved_as_expected() {
    for variant in VARIANTS {
        for (example, options) in first_syncs().filter(|(_, options)| options.same_as.is_none()) {
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                let family = options.family();
                prepare(&commands, family);
                let text = read(&format!("{example}.restore"));
                commands.restore(family, &text);
                let want = Saved::expected(&text, family);
                Saved::read(&commands, family).assert_same(&want, &format!("{example} {variant:?}"));
            });
        }
    }
}

#[test]
fn a_sync_of_every_example_leads_to_its_rules() {
    for variant in VARIANTS {
        // This kernel has counters, so the examples without them do not apply.
        for (example, options) in first_syncs().filter(|(_, options)| options.nfacct) {
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                let mut machine = Machine::new(&commands, options.clone());
                events(&example).iter().for_each(|event| machine.apply(event));
                let outcome = machine.sync();
                assert!(outcome.is_full && outcome.writes == 1, "{example}: {outcome:?}");
                let golden = options.same_as.clone().unwrap_or(example.clone());
                let want = Saved::expected(&read(&format!("{golden}.restore")), options.family());
                machine.saved().assert_same(&want, &format!("{example} {variant:?}"));
                let counted = machine.rules.counts.filter + machine.rules.counts.nat + Jump::ALL.len();
                assert_eq!(counted, want.rules(), "{example}");
            });
        }
    }
}

/// Includes the canaries, the jumps and the built-in chains.
#[test]
fn e3_is_saved_to_the_byte() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = Machine::new(&commands, options("E3"));
            events("E3").iter().for_each(|event| machine.apply(event));
            machine.sync();
            for table in ["mangle", "nat", "filter"] {
                commands.run(&format!("iptables -t {table} -N KUBE-PROXY-CANARY"));
            }
            let is_not_comment = |line: &&str| !line.starts_with('#');
            let save = ["mangle", "nat", "filter"].map(|table| commands.save(Family::V4, table)).concat();
            let save: Vec<&str> = save.lines().filter(is_not_comment).collect();
            let want = read("E3.save");
            for (got, want) in save.iter().zip(want.lines()) {
                assert_eq!(*got, want, "{variant:?}");
            }
            assert_eq!(save.len(), want.lines().count());
        });
    }
}

/// Upstream writes more than we do in each sync, but the results are the same.
#[test]
fn partial_syncs_lead_to_the_same_rules_as_those_of_upstream() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let upstream = Commands::of(variant);
            prepare(&upstream, Family::V4);
            let states = ["E10-1", "E10-2", "E10-3", "E10-4", "E10-5"].map(|example| {
                upstream.restore(Family::V4, &read(&format!("{example}.restore")));
                (example, Saved::read(&upstream, Family::V4))
            });
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                let mut machine = Machine::new(&commands, options("E10-1"));
                for (example, want) in &states {
                    events(example).iter().for_each(|event| machine.apply(event));
                    assert_eq!(machine.sync().is_full, *example == "E10-1");
                    machine.saved().assert_same(want, &format!("{example} {variant:?}"));
                }
            });
        });
    }
}

#[test]
fn a_foreign_rule_stays_first_and_jumps_are_not_duplicated() {
    for variant in VARIANTS {
        for family in Family::BOTH {
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                let options = if family == Family::V4 { Options::default() } else { Options::v6() };
                let mut machine = Machine::new(&commands, options);
                machine.sync();
                let iptables = iptables(family);
                commands.run(&format!("{iptables} -I INPUT -i lo -j ACCEPT"));
                let before = machine.saved();
                machine.rules.plan.require_full();
                assert!(machine.sync().is_full);
                machine.saved().assert_same(&before, "again");
                assert_eq!(before.of("filter", "INPUT").unwrap()[0], "-i lo -j ACCEPT");
            });
        }
    }
}
