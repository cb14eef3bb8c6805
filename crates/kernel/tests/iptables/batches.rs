//! With the nft variant a full sync comes in several runs; what they lead to is what one would.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use kernel::iptables::Variant;
use model::address::Family;
use model::cluster::Changes;
use netlink::testing::in_fresh_netns;
use plan::iptables::plan::{Manner, Plan};
use plan::iptables::program::Counters;

use crate::commands::Commands;
use crate::machine::Machine;
use crate::options::{Options, interfaces};
use crate::saved::Saved;

/// Enough rules for several runs.
const SERVICES: usize = 250;

fn objects(number: usize, endpoints: usize) -> String {
    let (high, low) = (number / 200, 1 + number % 200);
    let ips = (0..endpoints).map(|pod| format!(" 10.244.{}.{low}@node-{}", 10 * high + pod, pod % 3));
    let ips: String = ips.collect();
    format!(
        "service ns/s{number} 10.96.{high}.{low} p:80@{} NodePort affinity=600\nslice ns/s{number} of s{number} p:8080{ips}",
        30_000 + number
    )
}

/// What one run would make of it, as the examples show that it is saved.
fn in_one_run(machine: &Machine<'_>) -> Saved {
    let mut settings = machine.options.settings();
    settings.abilities.counters = Counters::default();
    let mut plan = Plan::new(settings, Manner::LEGACY, Duration::from_secs(30));
    plan.move_to(&interfaces());
    for (name, routing) in machine.cluster.routings() {
        plan.replace(name.clone(), Some(routing.clone()));
    }
    let endpoints = Some(machine.cluster.counts().endpoints);
    plan.accept(Changes { endpoints, ..Changes::default() });
    let attempt = plan.full(Instant::now(), None);
    let [restore] = attempt.restores() else { panic!("one run") };
    Saved::expected(&restore.to_string(), Family::V4)
}

#[test]
fn several_runs_lead_to_what_one_would() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let options = Options { nfacct: false, ..Options::default() };
        let mut machine = Machine::new(&commands, options);
        let same = |machine: &Machine<'_>, what: &str| {
            machine.saved().without_counters().without_canaries().assert_same(&in_one_run(machine), what);
        };

        let (told, hear) = channel();
        let watch = machine.rules.watch(Duration::from_secs(30));
        std::thread::spawn(move || watch.run(|_| told.send(()).is_ok()));
        machine.hear(&(0..SERVICES).map(|number| objects(number, 3)).collect::<Vec<String>>().join("\n"));
        let outcome = machine.sync();
        assert!(outcome.is_full && outcome.writes > 1, "{outcome:?}");
        same(&machine, "over empty tables");
        assert!(
            hear.recv_timeout(Duration::from_millis(700)).is_err(),
            "however much we write, it is no stranger's"
        );

        // A third is gone, a third has other endpoints, and the next process finds what is left of the first.
        for number in 0..SERVICES {
            machine.hear(&match number % 3 {
                0 => format!("delete service ns/s{number}\ndelete slice ns/s{number}"),
                1 => objects(number, 4),
                _ => String::new(),
            });
        }
        machine.cluster.take_changes();
        let mut machine = machine.restart();
        same(&machine, "over existing rules, with chains to delete");

        machine
            .hear(&(0..SERVICES).map(|number| format!("delete service ns/s{number}\n")).collect::<String>());
        let outcome = machine.sync();
        assert!(!outcome.is_full && outcome.writes >= 1);
        same(&machine, "after everything was deleted");
    });
}
