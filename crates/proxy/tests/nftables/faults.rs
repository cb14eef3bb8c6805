//! Even if one call to the kernel in ten fails, the kernel reaches the desired state after any history of events. On the way it
//! never holds half of a change, and a sync that succeeds has written the desired state.
//!
//! The seed determines the history. CONTRIBUTING.md describes how to repeat one, and how to run more.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use model::cluster::{Cluster, Here};
use netlink::faults::{Chance, Fault, Faults};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;

#[path = "../../../model/tests/laws/histories.rs"]
#[allow(dead_code, reason = "the laws of the model need more of it")]
mod histories;

use histories::{Objects, Op, history};

/// The number of histories of each test, unless `SLUICE_FAULT_HISTORIES` is set.
const HISTORIES: u64 = 350;

/// Which processes may change the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    Owner,
    /// All processes, as on kernels without owners of tables.
    Any,
}

fn run_histories(family: Family, writers: Writers) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seeds = match number("SLUICE_FAULT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_FAULT_HISTORIES").unwrap_or(HISTORIES),
    };
    let count = seeds.end - seeds.start;
    in_fresh_netns(move || {
        let mut total = Tally::default();
        for seed in seeds {
            let _seed = Seed(seed);
            total.add(run_history(seed, family, writers));
            // A process that another test has just forked may own the table for a moment: see `sync_without_faults`.
            eventually("the table can be removed", || KernelTable::remove(family).is_ok());
        }
        eprintln!("{family} {writers:?}: {total:?}");
        assert!(count < HISTORIES || total.faults.len() > 10, "too few kinds of faults occurred");
        assert!(count < HISTORIES || total.failed > 100, "too few syncs failed");
    });
}

#[test]
fn histories_with_faults_converge_v4() {
    run_histories(Family::V4, Writers::Owner);
}

#[test]
fn histories_with_faults_converge_v6() {
    run_histories(Family::V6, Writers::Owner);
}

#[test]
fn histories_with_faults_and_foreign_writers_converge() {
    run_histories(Family::V4, Writers::Any);
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

#[derive(Debug, Default)]
struct Tally {
    succeeded: usize,
    failed: usize,
    faults: BTreeMap<Fault, usize>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }
}

/// The sets of the table with their elements, and its rules.
type State = (BTreeMap<String, BTreeSet<Vec<u8>>>, Vec<(String, Option<u64>)>);

/// Records each state that the table has between two calls to the kernel.
struct Observer {
    connection: NftablesSocket,
    family: Family,
    writers: Writers,
    chance: Chance,
    generation: u32,
    /// In order of time. Consecutive states differ.
    states: Vec<State>,
}

impl Observer {
    fn new(family: Family, writers: Writers, seed: u64) -> Self {
        let connection = NftablesSocket::open().unwrap();
        let chance = Chance::from_seed(seed);
        let mut new = Self { connection, family, writers, chance, generation: 0, states: Vec::new() };
        new.observe();
        new
    }

    fn observe(&mut self) {
        // Another process changes another table.
        if self.writers == Writers::Any && self.chance.below(50) == 0 {
            let mut batch = Batch::new(wire(self.family), "other");
            batch.add_table(&nft::Table::default());
            self.connection.commit(&batch).unwrap();
        }
        let generation = self.connection.generation().unwrap().id;
        if generation != self.generation {
            self.generation = generation;
            let state = self.read();
            if self.states.last() != Some(&state) {
                self.states.push(state);
            }
        }
    }

    fn read(&mut self) -> State {
        let family = wire(self.family);
        if self.connection.tables(family).unwrap().iter().all(|table| table.name != TABLE) {
            return State::default();
        }
        let sets = self.connection.sets(family, TABLE).unwrap();
        let elements = sets.into_iter().map(|set| {
            let read = |element: nft::FoundElement<'_>| {
                let data = match element.data {
                    Some(nft::FoundDatum::Value(bytes)) => bytes,
                    Some(nft::FoundDatum::Verdict(_)) | None => &[],
                };
                let end = element.key_end.unwrap_or_default();
                [element.key, b"-", end, b":", data, &[u8::from(element.interval_end)]].concat()
            };
            let elements = self.connection.elements(family, TABLE, &set.name, read).unwrap();
            (set.name, elements.into_iter().collect())
        });
        let elements = elements.collect();
        let rules = self.connection.rules(family, TABLE).unwrap();
        (elements, rules.into_iter().map(|rule| (rule.chain, rule.fingerprint)).collect())
    }

    /// Changes the table as a foreign writer does. The caller has to notify the plan.
    fn interfere(&mut self) {
        let family = wire(self.family);
        let sets =
            self.states.last().map(|(sets, _)| sets.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
        if sets.is_empty() {
            return;
        }
        let mut batch = Batch::new(family, TABLE);
        match self.chance.below(4) {
            0 => batch.delete_table(),
            1 => batch.flush_chain("services"),
            _ => {
                if let Some(set) = sets.get(self.chance.below(sets.len())) {
                    batch.flush_set(set);
                }
            }
        }
        self.connection.commit(&batch).unwrap();
        self.observe();
    }
}

/// A cluster, and a table that is synced with it.
struct Follower {
    family: Family,
    writers: Writers,
    cluster: Cluster,
    table: Nftables,
    node_port_ips: Vec<IpAddr>,
    observer: Rc<RefCell<Observer>>,
    has_failed: bool,
    tally: Tally,
}

impl Follower {
    fn new(family: Family, writers: Writers, observer: Rc<RefCell<Observer>>, faults: &mut Faults) -> Self {
        let mut new = Self {
            family,
            writers,
            cluster: cluster(family),
            table: open(family, writers, faults),
            node_port_ips: Vec::new(),
            observer,
            has_failed: true,
            tally: Tally::default(),
        };
        new.set_node_port_ips(1);
        new
    }

    fn sync(&mut self, faults: &mut Faults) -> Result<Outcome, SyncError> {
        let changes = self.cluster.take_changes();
        let known = self.observer.borrow().states.len();
        let outcome = faults.during(|| self.table.sync(changes));
        self.observer.borrow_mut().observe();
        let seen = self.observer.borrow().states.len() - known;
        assert!(seen <= 1, "the kernel went through {seen} states in one sync: {outcome:?}");
        if outcome.is_ok() || seen > 0 {
            let differences =
                TableInspection::open(snapshot(&self.table)).unwrap().compare_all().unwrap().differences;
            assert!(differences.is_empty(), "after {outcome:?} {differences:#?}");
        }
        match &outcome {
            Ok(outcome) => {
                assert!(
                    outcome.is_full || !self.has_failed,
                    "after an error the kernel is read back: {outcome:?}"
                );
                self.tally.succeeded += 1;
            }
            Err(_) => self.tally.failed += 1,
        }
        self.has_failed = outcome.is_err();
        outcome
    }

    /// A process that another test has just forked has a copy of the closed socket of a restarted follower, which thus owns the
    /// table until that process executes its program.
    fn sync_without_faults(&mut self) {
        eventually("the first sync without faults succeeds", || {
            match self.sync(&mut Faults::new(0, 0, &[])) {
                Ok(_) => true,
                Err(error) if error.retry == Retry::Busy => false,
                Err(error) => panic!("the first sync without faults: {error:?}"),
            }
        });
    }

    fn set_node_port_ips(&mut self, count: u8) {
        self.node_port_ips = some_ips(self.family, count);
        self.table.plan.set_node_port_ips(self.node_port_ips.clone());
    }

    /// A new process, which has received the objects but does not know what the first one did.
    fn restart(&mut self, faults: &mut Faults) {
        let unused = open(self.family, self.writers, &mut Faults::new(0, 0, &[]));
        drop(std::mem::replace(&mut self.table, unused));
        self.table = open(self.family, self.writers, faults);
        self.has_failed = true;
        let _ = self.cluster.take_changes();
        let routings = self.cluster.routings();
        let routings = routings.into_iter().map(|(name, routing)| (name.clone(), Some(routing.clone())));
        let changes = Changes {
            routings: routings.collect(),
            service_cidrs: Some(self.cluster.service_cidrs()),
            ..Changes::default()
        };
        self.table.plan.set_node_port_ips(self.node_port_ips.clone());
        self.has_failed = faults.during(|| self.table.sync(changes)).is_err();
        self.observer.borrow_mut().observe();
    }
}

fn open(family: Family, writers: Writers, faults: &mut Faults) -> Nftables {
    let table = loop {
        // A proxy that does not start is restarted.
        if let Ok(table) = faults.during(|| KernelTable::open(family)) {
            break table;
        }
    };
    let abilities = table.abilities();
    assert!(abilities.ownership, "a failed call must not pass for a missing feature: {abilities:?}");
    let abilities =
        TableAbilities { ownership: writers == Writers::Owner, max_listed: MAX_LISTED, ..abilities };
    backend(table.limited_to(abilities))
}

fn cluster(family: Family) -> Cluster {
    Cluster::new(Here { node_name: histories::THIS_NODE.into(), ..testkit::node(family) })
}

fn some_ips(family: Family, count: u8) -> Vec<IpAddr> {
    let ip = |host: u8| match family {
        Family::V4 => IpAddr::from([192, 0, 2, host]),
        Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()]),
    };
    (1..=count).map(ip).collect()
}

fn ops(seed: u64) -> Vec<Op> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    history().new_tree(&mut runner).unwrap().current()
}

fn run_history(seed: u64, family: Family, writers: Writers) -> Tally {
    let mut chance = Chance::from_seed(seed);
    let observer = Rc::new(RefCell::new(Observer::new(family, writers, seed)));
    // Some histories have only a few kinds of faults, so that they get further.
    let kinds: Vec<Fault> = match chance.below(3) {
        0 => Fault::ALL.to_vec(),
        _ => Fault::ALL.into_iter().filter(|_| chance.below(3) == 0).collect(),
    };
    let observing = observer.clone();
    let mut faults = Faults::new(seed, 100, &kinds).observed_by(move || observing.borrow_mut().observe());
    let mut follower = Follower::new(family, writers, observer, &mut faults);
    let mut objects = Objects::default();
    for op in ops(seed) {
        for event in objects.apply(&op) {
            follower.cluster.apply(&event);
        }
        if matches!(op, Op::Take) || chance.below(4) == 0 {
            let _ = follower.sync(&mut faults);
        }
        match chance.below(60) {
            0 => follower.restart(&mut faults),
            1 => follower.set_node_port_ips(u8::try_from(chance.below(4)).unwrap()),
            2..4 if writers == Writers::Any => {
                follower.observer.borrow_mut().interfere();
                follower.table.plan.suspect_drift();
                follower.has_failed = true;
            }
            _ => {}
        }
    }
    follower.tally.faults.clone_from(faults.injected());
    let mut none = Faults::new(0, 0, &[]);
    follower.sync_without_faults();
    let again = follower.sync(&mut none).unwrap();
    assert!(again.writes == 0 && !again.is_full, "a sync without changes writes nothing: {again:?}");
    assert_same_as_one_sync(&follower, &objects);
    follower.tally
}

/// Asserts that the kernel holds what one sync of the present objects would write.
fn assert_same_as_one_sync(follower: &Follower, objects: &Objects) {
    let mut fresh = cluster(follower.family);
    for event in objects.events() {
        fresh.apply(&event);
    }
    let changes = fresh.take_changes();
    let desired = TableSnapshot::new(
        program_settings(follower.family),
        changes.routings,
        changes.service_cidrs.unwrap_or_default(),
        follower.node_port_ips.clone(),
    );
    let differences = TableInspection::open(desired).unwrap().compare_all().unwrap().differences;
    assert!(differences.is_empty(), "{differences:#?}");
}

fn wire(family: Family) -> netlink::Family {
    match family {
        Family::V4 => netlink::Family::Ipv4,
        Family::V6 => netlink::Family::Ipv6,
    }
}

const CLUSTER_IP: &str = "10.96.1.1:80";

#[test]
fn a_frontend_whose_removal_was_not_acknowledged_does_not_count_as_unused() {
    in_fresh_netns(|| {
        let at = Destination::Address(CLUSTER_IP.parse().unwrap());
        let mut table = super::open(Family::V4);
        table.sync(udp_service(&[1, 2])).unwrap();
        assert!(table.is_unused(at));
        let mut faults = Faults::new(1, 1_000, &[Fault::AnswerLost]);
        faults.during(|| table.sync(udp_service(&[2, 3]))).unwrap_err();
        table.sync(Changes::default()).unwrap();
        table.sync(udp_service(&[1, 2])).unwrap();
        assert!(!table.is_unused(at), "it was absent for a while");
    });
}

#[test]
fn frontends_whose_repair_was_not_acknowledged_do_not_count_as_unused() {
    in_fresh_netns(|| {
        let at = Destination::Address(CLUSTER_IP.parse().unwrap());
        for seed in 0..100 {
            let mut table = shared_table(Family::V4);
            table.sync(udp_service(&[1, 2])).unwrap();
            assert!(table.is_unused(at));
            run("nft flush ruleset");
            table.plan.suspect_drift();
            let mut faults = Faults::new(seed, 100, &[Fault::AnswerLost]);
            // The next sync finds that the first one was committed although its answer was lost.
            if faults.during(|| table.sync(Changes::default())).is_err() {
                table.sync(Changes::default()).unwrap();
            }
            assert!(!table.is_unused(at), "they were absent for a while, seed {seed}");
            KernelTable::remove(Family::V4).unwrap();
        }
    });
}
