//! The latency from an API write to the kernel, compared with that to another watcher.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use model::address::Family;
use netlink::nftables::{Monitor, Notification};
use testkit::namespace::Namespace;
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::TestCluster;

use crate::population::{PLACES, name, populate, slice_at, wait_for};

const SERVICES: usize = 1_000;
const CHANGES: usize = 100;
/// Longer than the minimum interval between syncs.
const PAUSE: Duration = Duration::from_secs(1);
const GOAL: Duration = Duration::from_millis(50);
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

pub fn measure(cluster: &TestCluster) {
    let _proxy = cluster.proxy(Mode::Nftables);
    populate(cluster, SERVICES);
    wait_for(cluster, SERVICES - 1);
    let pipeline = Pipeline {
        cluster,
        commits: commits(&cluster.lab.network.node),
        watcher: cluster.api().arrivals(&cluster.slices()),
    };
    println!("from API write to, with {SERVICES} services:");
    let mut services = (0..).map(|change| name(change * 7 % SERVICES));
    pipeline.change(services.by_ref().take(CHANGES), PAUSE, "alone");
    // After a sync the proxy pauses in proportion to its duration.
    pipeline.change(services.take(CHANGES), Duration::ZERO, "in a row");
}

/// The two observers of a write.
struct Pipeline<'a> {
    cluster: &'a TestCluster,
    commits: Receiver<Instant>,
    watcher: Receiver<Instant>,
}

impl Pipeline<'_> {
    /// Removes an endpoint from each of `services`, after a pause without commits each time.
    fn change(&self, services: impl Iterator<Item = String>, pause: Duration, how: &str) {
        let (mut to_kernel, mut to_watcher) = (Vec::new(), Vec::new());
        for service in services {
            while self.commits.recv_timeout(pause).is_ok() {}
            let path = self.cluster.slice(&service, Family::V4);
            let changed = slice_at(&service, &PLACES[..4]);
            let written = Instant::now();
            self.cluster.api().replace(&path, &changed);
            to_watcher.push(self.watcher.recv_timeout(CHANGE_TIMEOUT).unwrap() - written);
            to_kernel.push(self.commits.recv_timeout(CHANGE_TIMEOUT).unwrap() - written);
        }
        let (kernel, watcher) = (Percentiles::of(to_kernel), Percentiles::of(to_watcher));
        let ratio = |kernel: Duration, watcher: Duration| kernel.as_secs_f64() / watcher.as_secs_f64();
        let (p50, p99) = (ratio(kernel.p50, watcher.p50), ratio(kernel.p99, watcher.p99));
        println!("  {how}, {CHANGES} changes:");
        println!("    another watcher  p50 {:>9.2?}  p99 {:>9.2?}", watcher.p50, watcher.p99);
        println!("    the kernel       p50 {:>9.2?}  p99 {:>9.2?}", kernel.p50, kernel.p99);
        println!(
            "    ratio            p50 {p50:>9.2}  p99 {p99:>9.2}; goal for the kernel alone: p99 {GOAL:?}"
        );
    }
}

struct Percentiles {
    p50: Duration,
    p99: Duration,
}

impl Percentiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        Self { p50: times[times.len() / 2], p99: times[times.len() * 99 / 100] }
    }
}

/// Sends the time of each commit to the ruleset of a namespace.
fn commits(namespace: &Namespace) -> Receiver<Instant> {
    let (send, receive) = channel();
    let mut monitor = namespace.enter(|| Monitor::open().unwrap());
    std::thread::spawn(move || {
        let mut has_receiver = true;
        while has_receiver {
            let seen = |event: Notification<'_>| {
                if matches!(event, Notification::Committed { .. }) {
                    has_receiver &= send.send(Instant::now()).is_ok();
                }
            };
            monitor.receive_within(CHANGE_TIMEOUT, seen).unwrap();
        }
    });
    receive
}
