//! From a write to the API to the kernel, beside another client that watches the same.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use model::address::Family;
use netlink::nftables::{Event, Monitor};
use testkit::namespace::Namespace;
use tests::cluster::proxy::Mode;
use tests::cluster::stage::Stage;

use crate::population::{PLACES, at, name, populate, wait_for};

const SERVICES: usize = 1_000;
const CHANGES: usize = 100;
/// After which nothing is left of the pass before.
const REST: Duration = Duration::from_secs(1);
const GOAL: Duration = Duration::from_millis(50);
/// Longer than anything that still counts as working.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn measure(stage: &Stage) {
    let _proxy = stage.proxy(Mode::Nftables);
    populate(stage, SERVICES);
    wait_for(stage, SERVICES - 1);
    let line = Line {
        stage,
        commits: commits(&stage.lab.network.node),
        watcher: stage.api().arrivals(&stage.slices()),
    };
    println!("from API write to, with {SERVICES} services:");
    let mut services = (0..).map(|change| name(change * 7 % SERVICES));
    line.change(services.by_ref().take(CHANGES), REST, "alone");
    // A proxy that has just been busy rests in proportion.
    line.change(services.take(CHANGES), Duration::ZERO, "in a row");
}

/// What happens after a write, seen at its two ends.
struct Line<'a> {
    stage: &'a Stage,
    commits: Receiver<Instant>,
    watcher: Receiver<Instant>,
}

impl Line<'_> {
    /// Takes an endpoint from each of these, each time after a rest.
    fn change(&self, services: impl Iterator<Item = String>, rest: Duration, how: &str) {
        let (mut to_kernel, mut to_watcher) = (Vec::new(), Vec::new());
        for service in services {
            while self.commits.recv_timeout(rest).is_ok() {}
            let path = self.stage.slice(&service, Family::V4);
            let one_less = at(&service, &PLACES[..4]);
            let written = Instant::now();
            self.stage.api().replace(&path, &one_less);
            to_watcher.push(self.watcher.recv_timeout(PATIENCE).unwrap() - written);
            to_kernel.push(self.commits.recv_timeout(PATIENCE).unwrap() - written);
        }
        let (kernel, watcher) = (Spread::of(to_kernel), Spread::of(to_watcher));
        let ratio = |kernel: Duration, watcher: Duration| kernel.as_secs_f64() / watcher.as_secs_f64();
        let (half, most) = (ratio(kernel.half, watcher.half), ratio(kernel.most, watcher.most));
        println!("  {how}, {CHANGES} changes:");
        println!("    another watcher  p50 {:>9.2?}  p99 {:>9.2?}", watcher.half, watcher.most);
        println!("    the kernel       p50 {:>9.2?}  p99 {:>9.2?}", kernel.half, kernel.most);
        println!(
            "    ratio            p50 {half:>9.2}  p99 {most:>9.2}; goal for the kernel alone: p99 {GOAL:?}"
        );
    }
}

struct Spread {
    half: Duration,
    most: Duration,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        Self { half: times[times.len() / 2], most: times[times.len() * 99 / 100] }
    }
}

/// Tells when the ruleset of a namespace changed.
fn commits(namespace: &Namespace) -> Receiver<Instant> {
    let (send, receive) = channel();
    let mut monitor = namespace.enter(|| Monitor::open().unwrap());
    std::thread::spawn(move || {
        let mut is_wanted = true;
        while is_wanted {
            let seen = |event: Event<'_>| {
                if matches!(event, Event::Committed { .. }) {
                    is_wanted &= send.send(Instant::now()).is_ok();
                }
            };
            monitor.receive_within(PATIENCE, seen).unwrap();
        }
    });
    receive
}
