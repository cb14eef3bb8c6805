//! The cost of the iptables mode from API objects to the kernel, in both variants: our own time, that of the commands, and that of
//! the commands that upstream would run for the same change.
//!
//! A process of its own measures each size in a network namespace of its own. Upstream's commands run right after ours for the
//! same change, so that other load of the machine affects both.
//!
//! With the legacy variant, each change reads and writes the whole table, which takes more than a third of upstream's time. So no
//! use of `iptables-restore` can be five times as fast there.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a benchmark stops at what it did not expect"
)]

use std::env::args;
use std::fs::read_to_string;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::iptables::{Programs, Rules, Runner};
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::{Changes, Cluster};
use model::event::Event;
use model::local::{FromPod, NodePortAddresses};
use netlink::testing::in_fresh_netns;
use plan::iptables::chains::Purpose;
use plan::iptables::plan::{IptablesPlan, RestoreLimits};
use plan::iptables::program::RuleSettings;
use plan::mark::Mark;
use tempfile::TempDir;

use proxy::backend::{Backend as _, Iptables};
use proxy::metrics::Metrics;
use settings::config::ProxyMode;
use testkit::bench::clusters::{Random, Size, deletions, here, replacements, service, slice};
use testkit::bench::figures::{Figures, goal, processor, run, say};
use testkit::bench::record::Record;

const SIZES: [Size; 3] = [
    Size { services: 1_000, endpoints: 5 },
    Size { services: 5_000, endpoints: 10 },
    Size { services: 10_000, endpoints: 5 },
];

/// The number of changes of each kind: at least the minimum, then more until the time is up.
const MIN_CHANGES: usize = 6;
const MAX_CHANGES: usize = 40;
const CHANGE_TIME: Duration = Duration::from_secs(6);

fn main() {
    // Cargo adds an argument.
    let given: Vec<String> = args().skip(1).filter(|arg| arg != "--bench").collect();
    let arguments: Vec<&str> = given.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => report(&["nft", "legacy"]),
        [variant] => report(&[variant]),
        ["size", variant, services, endpoints] => {
            let [services, endpoints] = [services, endpoints].map(|number| number.parse().unwrap());
            let variant = variant.to_owned();
            in_fresh_netns(move || measure(&variant, Size { services, endpoints }));
        }
        _ => panic!("unknown arguments {arguments:?}"),
    }
}

// The report.

fn report(variants: &[&str]) {
    for variant in variants {
        let sizes = SIZES.map(|size| {
            (size, run(&["size", variant, &size.services.to_string(), &size.endpoints.to_string()]))
        });
        let mut record = Record::of(if *variant == "nft" { "iptables-nft" } else { "iptables-legacy" });
        sizes.iter().for_each(|(size, found)| found.keep(*size, &mut record));
        println!(
            "\n{variant}: full sync, in milliseconds: our processor time, that of the commands, and elapsed"
        );
        println!(
            "{:>12} {:>8} {:>9} {:>8} {:>9} {:>9} {:>30}   ms per service{}",
            "size",
            "rules",
            "restores",
            "own",
            "commands",
            "elapsed",
            "over existing rules, elapsed",
            if *variant == "nft" { ", of that at 1000 <= 2" } else { "" }
        );
        let each = |size: &Size, found: &Figures| found.median("first_elapsed") / size.services as f64;
        let smallest = each(&sizes[0].0, &sizes[0].1);
        for (size, found) in &sizes {
            let [rules, restores, own, commands, elapsed, again] =
                ["rules", "restores", "first_own", "first_commands", "first_elapsed", "again_elapsed"]
                    .map(|name| found.median(name));
            let each = each(size, found);
            let growth = if size.services == 10_000 && *variant == "nft" {
                goal(each / smallest, 2.0)
            } else {
                format!("{:.2}", each / smallest)
            };
            println!(
                "{:>12} {rules:>8} {restores:>9} {own:>8.0} {commands:>9.0} {elapsed:>9.0} {again:>30.0}   {each:>14.2}, {growth}",
                size.name()
            );
        }

        println!(
            "\n{variant}: one change, in milliseconds: medians of our processor time, of elapsed time, and of upstream's commands"
        );
        println!(
            "{:>12} {:>36} {:>36}   10,000 x 5: own <= 2   upstream / ours >= 5",
            "size", "endpoint replaced", "service added or deleted"
        );
        for (size, found) in &sizes {
            let of = |name: &str| {
                let [own, elapsed, upstream] =
                    ["own", "elapsed", "upstream"].map(|what| found.median(&format!("{name}_{what}")));
                format!("{own:.2}, {elapsed:.0}, {upstream:.0}")
            };
            let ratio = found.median("replaced_upstream") / found.median("replaced_elapsed");
            let own = found.median("replaced_own");
            println!(
                "{:>12} {:>36} {:>36}   {:>20}   {ratio:.1} {}",
                size.name(),
                of("replaced"),
                of("added"),
                if size.services == 10_000 { goal(own, 2.0) } else { format!("{own:.2}") },
                if ratio >= 5.0 { "ok" } else { "MISSED" },
            );
        }
        let sums = |name: &str| {
            sizes.iter().map(|(_, found)| format!("{:.0}", found.median(name))).collect::<Vec<_>>()
        };
        println!(
            "{:>12} processor time of the commands for one endpoint: {}",
            "",
            sums("replaced_commands").join(", ")
        );
        let snapshots: Vec<String> =
            sizes.iter().map(|(_, found)| format!("{:.2}", found.median("snapshot"))).collect();
        println!("{:>12} our processor time for the audit's snapshot: {}", "", snapshots.join(", "));
    }
}

// The measurements.

fn measure(variant: &str, size: Size) {
    let commands = Commands::of(variant);
    let mut load = Load::new(&commands, size);
    let (first, outcome) = Spent::by(|| load.sync());
    assert!(outcome.is_full);
    first.say_as("first");
    say("rules", (load.rules.counts.filter + load.rules.counts.nat) as f64);
    say("restores", outcome.writes as f64);

    let start = processor();
    let desired = load.rules.rules.snapshot(load.rules.plan.desired());
    say("snapshot", processor() - start);
    drop(desired);

    let replaced = replacements(size, &mut Random(1)).map(|event| vec![event]);
    load.change("replaced", replaced);
    let added = (size.services..).flat_map(|number| {
        let objects = vec![service(number), slice(number, size.endpoints, None)];
        [objects, deletions(number).into()]
    });
    load.change("added", added);

    load.rules.plan.require_full();
    let (again, outcome) = Spent::by(|| load.sync());
    assert!(outcome.is_full);
    again.say_as("again");
}

/// A folder in which the names without a suffix are links to one variant.
struct Commands(TempDir);

impl Commands {
    fn of(variant: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["iptables", "iptables-save", "iptables-restore"] {
            symlink(format!("/usr/sbin/xtables-{variant}-multi"), folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    fn programs(&self) -> Arc<Programs> {
        Arc::new(Programs::of(self.0.path()))
    }
}

/// A cluster that has received all objects, rules that are synced with it, and the commands of upstream.
struct Load {
    cluster: Cluster,
    rules: Iptables,
    upstream: Upstream,
}

impl Load {
    fn new(commands: &Commands, size: Size) -> Self {
        let mut cluster = Cluster::new(here());
        for number in 0..size.services {
            cluster.apply(&service(number));
            cluster.apply(&slice(number, size.endpoints, None));
        }
        let access = Rules::through(commands.programs(), Family::V4).unwrap();
        let settings = settings(&access);
        let upstream = Upstream::new(commands, settings.clone());
        let metrics = Arc::new(Metrics::new(ProxyMode::Iptables));
        let rules = Iptables::new(access, settings, Duration::from_secs(30), metrics);
        Self { cluster, rules, upstream }
    }

    fn sync(&mut self) -> Outcome {
        self.rules.sync(self.cluster.take_changes()).unwrap()
    }

    fn change(&mut self, name: &str, changes: impl Iterator<Item = Vec<Event>>) {
        let start = Instant::now();
        for (number, events) in changes.take(MAX_CHANGES).enumerate() {
            if number >= MIN_CHANGES && start.elapsed() > CHANGE_TIME {
                break;
            }
            let (spent, outcome) = Spent::by(|| {
                events.iter().for_each(|event| _ = self.cluster.apply(event));
                self.sync()
            });
            assert!(!outcome.is_full && outcome.writes > 0);
            spent.say_as(name);
            let upstream = self.upstream.repeat(&self.cluster, &events);
            say(&format!("{name}_upstream"), upstream.elapsed);
        }
    }
}

/// The commands that upstream runs for a change. They run after ours, and so change nothing.
struct Upstream {
    runner: Runner,
    settings: RuleSettings,
}

impl Upstream {
    fn new(commands: &Commands, settings: RuleSettings) -> Self {
        Self { runner: Runner::open(commands.programs(), Family::V4).unwrap(), settings }
    }

    /// Saves the nat table, then writes all shared chains and those of the changed service.
    fn repeat(&self, cluster: &Cluster, events: &[Event]) -> Spent {
        let text = self.text(cluster, events);
        let (spent, ()) = Spent::by(|| {
            self.runner.save("nat").unwrap();
            self.runner.restore_all(&[&text]).unwrap();
        });
        spent
    }

    fn text(&self, cluster: &Cluster, events: &[Event]) -> String {
        let changed: Vec<String> = events.iter().filter_map(service_of).collect();
        let new_plan =
            || IptablesPlan::new(self.settings.clone(), RestoreLimits::LEGACY, Duration::from_secs(30));
        let (mut plan, mut own) = (new_plan(), new_plan());
        for (name, routing) in cluster.routings() {
            plan.replace(name.clone(), Some(routing.clone()));
            if changed.contains(&name.service.to_string()) {
                own.replace(name.clone(), Some(routing.clone()));
            }
        }
        let count = || Changes { endpoints: Some(cluster.counts().endpoints), ..Changes::default() };
        plan.accept(count());
        own.accept(count());
        let whole = plan.full(Instant::now(), None).restores()[0].to_string();
        let part = own.full(Instant::now(), None).restores()[0].to_string();
        let own_chains: Vec<&str> = part.lines().filter_map(chain_of_service).collect();
        let stays = |line: &&str| chain_of_service(line).is_none_or(|chain| own_chains.contains(&chain));
        whole.lines().filter(stays).map(|line| format!("{line}\n")).collect()
    }
}

fn service_of(event: &Event) -> Option<String> {
    let Event::SliceApplied(slice) = event else { return None };
    Some(format!("{}/{}", slice.metadata.namespace, slice.metadata.labels.service_name.as_ref()?))
}

/// The chain that the line creates or adds to, if it belongs to a single service.
fn chain_of_service(line: &str) -> Option<&str> {
    let name = line.strip_prefix(':').or(line.strip_prefix("-A "))?.split(' ').next()?;
    Purpose::of(name).map(|_| name)
}

/// Times in milliseconds.
#[derive(Clone, Copy)]
struct Spent {
    elapsed: f64,
    /// Processor time of this thread.
    own: f64,
    /// Processor time of commands that have exited.
    commands: f64,
}

impl Spent {
    fn by<T>(work: impl FnOnce() -> T) -> (Self, T) {
        let (start, own, commands) = (Instant::now(), processor(), of_children());
        let result = work();
        let (own, commands) = (processor() - own, of_children() - commands);
        (Self { elapsed: start.elapsed().as_secs_f64() * 1e3, own, commands }, result)
    }

    fn say_as(&self, name: &str) {
        say(&format!("{name}_elapsed"), self.elapsed);
        say(&format!("{name}_own"), self.own);
        say(&format!("{name}_commands"), self.commands);
    }
}

/// Processor time of all child processes that have exited, in milliseconds. The kernel counts in ticks of ten.
fn of_children() -> f64 {
    let text = read_to_string("/proc/self/stat").unwrap();
    // The name in parentheses may contain anything.
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = [fields[13], fields[14]].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 * 10.0
}

fn settings(rules: &Rules) -> RuleSettings {
    RuleSettings {
        family: Family::V4,
        mark: Mark::from_bit(14).unwrap(),
        masquerade_all: false,
        from_pod: Some(FromPod::Source("10.128.0.0/9".parse().unwrap())),
        localhost_node_ports: true,
        node_port_addresses: NodePortAddresses::new(Family::V4, &[]),
        abilities: rules.abilities(),
    }
}
