//! Even if one command in ten fails, the kernel reaches the desired state after any history of events, and a sync that succeeds
//! has written it.
//!
//! The seed determines the history. CONTRIBUTING.md describes how to repeat one, and how to run more.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use kernel::iptables::{Error, Exec, Rules, RulesInspection, Variant};
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::{Changes, Cluster};
use netlink::faults::{Chance, Fault as NetlinkFault, Faults};
use netlink::testing::in_fresh_netns;
use plan::difference::Difference;
use plan::iptables::chains::IptablesTable;
use plan::iptables::program::{INVALID_DROPPED, LOCALHOST_NODE_PORTS};
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use proxy::backend::{Backend as _, Iptables};

use crate::commands::{Commands, VARIANTS};
use crate::fake::Kernel;
use crate::faulty::{Fake, Fault, Faulty};
use crate::histories::{Op, op};
use crate::machine::{SYNC_PERIOD, backend, snapshot, sync};
use crate::options::{Options, interfaces};
use crate::saved::Saved;

/// The number of histories with the fake, unless `SLUICE_FAULT_HISTORIES` is set.
const HISTORIES: u64 = 1_000;
/// The same with the real commands, for each variant.
const REAL_HISTORIES: u64 = 80;
/// Failures in a thousand calls.
const FAULT_RATE: usize = 100;

/// What the commands run on.
enum Rig {
    Fake(Arc<Fake>),
    Real(Box<Commands>),
}

impl Rig {
    fn exec(&self) -> Arc<dyn Exec> {
        match self {
            Self::Fake(fake) => fake.clone(),
            Self::Real(commands) => commands.programs(),
        }
    }

    fn flush(&self) {
        match self {
            Self::Fake(fake) => *fake.kernel.lock().unwrap() = Kernel::empty(),
            Self::Real(commands) => commands.flush(Family::V4),
        }
    }

    fn kernel(&self) -> Option<Kernel> {
        match self {
            Self::Fake(fake) => Some(fake.kernel.lock().unwrap().clone()),
            Self::Real(_) => None,
        }
    }

    fn saved(&self) -> Saved {
        match self {
            Self::Fake(fake) => {
                let exec: &dyn Exec = &**fake;
                let save = |table| exec.run("iptables-save", &["-t", table], &[]).unwrap().stdout;
                Saved::parse(&["filter", "nat"].map(save).concat())
            }
            Self::Real(commands) => Saved::read(commands, Family::V4),
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    succeeded: usize,
    failed: usize,
    faults: BTreeMap<Fault, usize>,
}

struct Follower {
    cluster: Cluster,
    rules: Iptables,
    /// Added to the number of endpoints.
    imagined: usize,
    interfaces: Vec<IpAddr>,
    /// Whether `interfaces` changed since the last sync.
    has_moved: bool,
    has_failed: bool,
}

impl Follower {
    fn new(rules: Rules) -> Self {
        let options = Options::default();
        let rules = backend(rules, &options, SYNC_PERIOD);
        let cluster = Cluster::new(options.here());
        Self { cluster, rules, imagined: 0, interfaces: interfaces(), has_moved: true, has_failed: true }
    }

    fn sync(&mut self) -> Result<Outcome, Error> {
        let changes = self.cluster.take_changes();
        let endpoints = Some(self.cluster.counts().endpoints + self.imagined);
        if std::mem::take(&mut self.has_moved) {
            self.rules.set_node_addresses(&[], &self.interfaces);
        }
        sync(&mut self.rules, Changes { endpoints, ..changes })
    }

    fn sync_and_check(&mut self, rig: &Rig, faulty: &Faulty, faults: &mut Faults, tally: &mut Tally) {
        let before = rig.kernel();
        faulty.fail(FAULT_RATE);
        let outcome = faults.during(|| self.sync());
        faulty.fail(0);
        match &outcome {
            Ok(outcome) => {
                tally.succeeded += 1;
                assert!(outcome.is_full || !self.has_failed, "the sync after an error is full: {outcome:?}");
                let differences =
                    RulesInspection::new(snapshot(&self.rules)).compare_all().unwrap().differences;
                assert!(differences.is_empty(), "after {outcome:?} {}", shown(&differences));
            }
            Err(_) => tally.failed += 1,
        }
        self.has_failed = outcome.is_err();
        if let (Rig::Fake(fake), Some(before)) = (rig, before) {
            let states = fake.take_states();
            if let (Ok(_), Some(last)) = (&outcome, states.last()) {
                states.iter().for_each(|state| assert_not_half_written(&before, state, last));
            }
        }
    }

    /// What the kernel holds after one full sync of a new process.
    fn ideal(self, rig: &Rig) -> Saved {
        rig.flush();
        let mut fresh = Self::new(Rules::through(rig.exec(), Family::V4).unwrap());
        let routings = self.cluster.routings();
        let routings = routings.into_iter().map(|(name, routing)| (name.clone(), Some(routing.clone())));
        let changes = Changes {
            routings: routings.collect(),
            endpoints: Some(self.cluster.counts().endpoints),
            ..Changes::default()
        };
        fresh.rules.set_node_addresses(&[], &self.interfaces);
        sync(&mut fresh.rules, changes).unwrap();
        rig.saved()
    }
}

/// Asserts that each of our chains has either its rules of before the sync or those of after it.
fn assert_not_half_written(before: &Kernel, state: &Kernel, after: &Kernel) {
    let counts_invalid = format!(" -m nfacct --nfacct-name {INVALID_DROPPED}");
    for table in [IptablesTable::Filter, IptablesTable::Nat] {
        for chain in state.reachable(table).into_iter().filter(|chain| chain.starts_with("KUBE-")) {
            let [was, rules, will_be] = [before, state, after].map(|kernel| {
                let rules = kernel.table(table).get(chain)?.iter();
                // A full sync that fails is retried without counters.
                let rules = rules.filter(|rule| !rule.contains(LOCALHOST_NODE_PORTS));
                Some(rules.map(|rule| rule.replace(&counts_invalid, "")).collect::<Vec<_>>())
            });
            // A jump creates its chain, which is empty at first.
            let is_new = was.is_none() && rules.as_ref().is_some_and(Vec::is_empty);
            assert!(rules == was || rules == will_be || is_new, "{chain} is half written: {rules:#?}");
        }
    }
}

fn shown(differences: &[Difference]) -> String {
    differences.iter().map(|difference| format!("\n  {difference}")).collect()
}

fn ops(seed: u64, max_ops: usize) -> Vec<Op> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    vec(op(), 1..max_ops).new_tree(&mut runner).unwrap().current()
}

fn run_history(seed: u64, rig: &Rig, variant: Variant, max_ops: usize, tally: &mut Tally) {
    let mut chance = Chance::from_seed(seed);
    let faulty = Arc::new(Faulty::new(rig.exec(), seed));
    // Packet counters are created through netlink.
    let mut faults = Faults::new(seed, FAULT_RATE, &NetlinkFault::ALL);
    faulty.fail(FAULT_RATE);
    let access = loop {
        // A proxy that does not start is restarted.
        if let Ok(access) = faults.during(|| Rules::through(faulty.clone(), Family::V4)) {
            break access;
        }
    };
    faulty.fail(0);
    assert_eq!(access.variant(), variant, "a failed command must not pass for a missing feature");
    assert!(access.abilities().random_fully, "a failed command must not pass for a missing feature");
    let mut follower = Follower::new(access);
    for op in ops(seed, max_ops) {
        match op {
            Op::Say(line) => _ = follower.cluster.apply(&testkit::event(&line)),
            Op::Move(kept) => {
                follower.interfaces = kept.iter().map(|at| interfaces()[*at]).collect();
                follower.has_moved = true;
            }
            Op::Grow(large) => follower.imagined = if large { 2_000 } else { 0 },
            Op::Flush if chance.below(3) == 0 => {
                rig.flush();
                follower.rules.suspect_drift();
                follower.has_failed = true;
            }
            Op::Flush | Op::Wait(_) => {}
            Op::Sync | Op::Fail(_) | Op::CannotSave => {
                follower.sync_and_check(rig, &faulty, &mut faults, tally);
            }
        }
    }
    for (fault, count) in faulty.injected() {
        *tally.faults.entry(fault).or_default() += count;
    }
    follower.sync().expect("the first sync without faults");
    let differences = RulesInspection::new(snapshot(&follower.rules)).compare_all().unwrap().differences;
    assert!(differences.is_empty(), "{}", shown(&differences));
    // Only a full sync restores counters, and the comments that large clusters do not have.
    follower.imagined = 0;
    follower.rules.plan.require_full();
    follower.sync().unwrap();
    let nothing = follower.sync().unwrap();
    assert!(!nothing.is_full && nothing.writes == 0, "a sync without changes writes nothing: {nothing:?}");
    rig.saved().assert_same(&follower.ideal(rig), "in the end");
}

/// Prints the seed if the test panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat this history: SLUICE_FAULT_SEED={}", self.0);
        }
    }
}

fn run_histories(rig: fn(Variant) -> Rig, variant: Variant, histories: u64, max_ops: usize) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seeds = match number("SLUICE_FAULT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_FAULT_HISTORIES").unwrap_or(histories),
    };
    let count = seeds.end - seeds.start;
    in_fresh_netns(move || {
        let mut tally = Tally::default();
        for seed in seeds {
            let _seed = Seed(seed);
            let rig = rig(variant);
            run_history(seed, &rig, variant, max_ops, &mut tally);
            rig.flush();
        }
        eprintln!("{variant:?}: {tally:?}");
        assert!(count < REAL_HISTORIES || tally.faults.len() > 5, "too few kinds of faults occurred");
        assert!(count < REAL_HISTORIES || tally.failed > 10, "too few syncs failed");
    });
}

#[test]
fn histories_with_faults_converge_in_the_fake() {
    for variant in VARIANTS {
        run_histories(|variant| Rig::Fake(Arc::new(Fake::new(variant, Family::V4))), variant, HISTORIES, 40);
    }
}

#[test]
fn histories_with_faults_converge_legacy() {
    run_histories(|variant| Rig::Real(Box::new(Commands::of(variant))), Variant::Legacy, REAL_HISTORIES, 16);
}

#[test]
fn histories_with_faults_converge_nft() {
    run_histories(|variant| Rig::Real(Box::new(Commands::of(variant))), Variant::Nft, REAL_HISTORIES, 16);
}
