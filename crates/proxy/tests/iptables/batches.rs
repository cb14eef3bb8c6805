//! With the nft variant a full sync takes several restores, which lead to the same rules as one.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use kernel::iptables::Variant;
use model::address::Family;
use model::cluster::Changes;
use netlink::testing::in_fresh_netns;
use plan::iptables::plan::{IptablesPlan, RestoreLimits};
use plan::iptables::program::Counters;

use proxy::backend::Backend as _;

use crate::commands::Commands;
use crate::machine::Machine;
use crate::options::{Options, interfaces};
use crate::saved::Saved;

/// Enough rules for several restores.
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

/// What `iptables-save` prints after one restore of everything.
fn after_one_restore(machine: &Machine<'_>) -> Saved {
    let mut settings = machine.options.settings();
    settings.abilities.counters = Counters::default();
    let mut plan = IptablesPlan::new(settings, RestoreLimits::LEGACY, Duration::from_secs(30));
    plan.set_node_port_ips(&interfaces());
    for (name, routing) in machine.cluster.routings() {
        plan.replace(name.clone(), Some(routing.clone()));
    }
    let endpoints = Some(machine.cluster.counts().endpoints);
    plan.accept(Changes { endpoints, ..Changes::default() });
    let attempt = plan.full(Instant::now(), None);
    let [restore] = attempt.restores() else { panic!("not one restore") };
    Saved::expected(&restore.to_string(), Family::V4)
}

#[test]
fn several_restores_lead_to_the_same_rules_as_one() {
    in_fresh_netns(|| {
        let commands = Commands::of(Variant::Nft);
        let options = Options { nfacct: false, ..Options::default() };
        let mut machine = Machine::new(&commands, options);
        let same = |machine: &Machine<'_>, what: &str| {
            machine
                .saved()
                .without_counters()
                .without_canaries()
                .assert_same(&after_one_restore(machine), what);
        };

        let (notify, notified) = channel();
        let listen = machine.rules.drift_listener().unwrap();
        std::thread::spawn(move || listen(&mut |_| notify.send(()).is_ok()));
        machine
            .apply_lines(&(0..SERVICES).map(|number| objects(number, 3)).collect::<Vec<String>>().join("\n"));
        let outcome = machine.sync();
        assert!(outcome.is_full && outcome.writes > 1, "{outcome:?}");
        same(&machine, "over empty tables");
        assert!(
            notified.recv_timeout(Duration::from_millis(700)).is_err(),
            "our own changes are not reported as drift, however many there are"
        );

        // The next process finds the rules of the first, while a third of the Services is gone and a third has other endpoints.
        for number in 0..SERVICES {
            machine.apply_lines(&match number % 3 {
                0 => format!("delete service ns/s{number}\ndelete slice ns/s{number}"),
                1 => objects(number, 4),
                _ => String::new(),
            });
        }
        machine.cluster.take_changes();
        let mut machine = machine.restart();
        same(&machine, "over existing rules, with stale chains");

        machine.apply_lines(
            &(0..SERVICES).map(|number| format!("delete service ns/s{number}\n")).collect::<String>(),
        );
        let outcome = machine.sync();
        assert!(!outcome.is_full && outcome.writes >= 1);
        same(&machine, "after everything was deleted");
    });
}
