//! Everything at once for `make soak MINUTES=n`, half of it in each mode: Services and EndpointSlices change constantly,
//! kube-proxy is killed, other programs flush the rules, the API server and etcd are restarted and connections to them cut,
//! while clients connect to Services that always have an endpoint.
//!
//! ```text
//!   figures ── warm-up, memory ── storm ── storm without kills ── quiet ── figures again, verify
//! ```
//!
//! No connection may fail, and afterwards the process and the kernel hold what they held before. In nftables mode the kernel
//! protects the table from other programs. In iptables mode nothing does: connections that begin while the rules are flushed
//! may fail, and are counted separately. The storm ends without kills so that one process lives through a long part of it.

mod churn;
mod clients;
mod disturbances;
mod figures;
mod random;
mod services;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::hammer::SetOnDrop;
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::TestCluster;

use churn::Churn;
use clients::{Clients, Failure};
use disturbances::{Disturbances, Kills};
use figures::Resources;

/// All failures are counted; this many are described.
const SHOWN_FAILURES: usize = 20;

#[test]
#[ignore = "needs a control plane: make soak"]
fn nftables() {
    soak(Mode::Nftables);
}

#[test]
#[ignore = "needs a control plane: make soak"]
fn iptables() {
    soak(Mode::Iptables);
}

/// The time for each mode.
fn duration() -> Duration {
    let minutes = std::env::var("SLUICE_SOAK_MINUTES").unwrap_or_else(|_| "1".into());
    let minutes: f64 =
        minutes.parse().unwrap_or_else(|_| panic!("SLUICE_SOAK_MINUTES={minutes}: not a number"));
    Duration::from_secs_f64(minutes * 60.0 / 2.0)
}

fn soak(mode: Mode) {
    let total = duration();
    let mut cluster = TestCluster::new(Path::new(env!("CARGO_BIN_EXE_control-plane")));
    let targets = services::create(&cluster);
    let clients = Clients::new(&cluster, &targets);
    let seed = random::seed();
    let churn = Churn::new(&cluster, seed);
    let mut disturbances = Disturbances::new(&cluster, mode, seed);
    figures::expire_connections_soon(&cluster.lab.network.node);
    disturbances.start_proxy(&cluster);
    println!("soak, {} mode: {} s, seed {seed:#x}", mode.name(), total.as_secs());

    let is_over = AtomicBool::new(false);
    let (before, after) = std::thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        clients.spawn(scope, &is_over);
        clients.wait_for_attempts();
        clients.pause();
        let before = Resources::at_rest(&cluster, disturbances.proxy());
        clients.resume();
        // The first changes grow the memory once: measure it afterwards.
        let warm = Instant::now() + total / 10;
        churn.run_until(|| Instant::now() >= warm);
        churn.delete_all();
        let before = before.with_memory_of(disturbances.proxy());

        let began = Instant::now();
        let storm_is_over = AtomicBool::new(false);
        std::thread::scope(|storm| {
            let _over = SetOnDrop(&storm_is_over);
            storm.spawn(|| churn.run_until(|| storm_is_over.load(Ordering::Relaxed)));
            disturbances.run(&mut cluster, began + total * 3 / 5, Kills::Included);
            disturbances.run(&mut cluster, began + total * 9 / 10, Kills::Excluded);
        });
        clients.pause();
        churn.delete_all();
        let after = Resources::back_at(&before, &cluster, disturbances.proxy());
        (before, after)
    });
    let verdict = disturbances.verify(&cluster);

    let (excused, failed): (Vec<Failure>, Vec<Failure>) =
        clients.failures().into_iter().partition(|failure| disturbances.excuses(failure));
    println!("{clients}\n{churn}\n{disturbances}");
    println!("{}", figures::table(&before, &after));
    println!("verify: {}", verdict.as_deref().unwrap_or("kernel and plan agree"));
    println!("connections and requests: {}, failed: {}", clients.attempts(), failed.len());
    println!("failed while the rules were flushed by another program: {}\n", excused.len());

    let describe = |failure: &Failure| format!("{failure}, {}", disturbances.last_before(failure));
    let mut wrong: Vec<String> = failed.iter().take(SHOWN_FAILURES).map(describe).collect();
    wrong.extend(after.differences(&before));
    wrong.extend(verdict);
    assert!(wrong.is_empty(), "{} failed connections:\n{}", failed.len(), wrong.join("\n"));
}
