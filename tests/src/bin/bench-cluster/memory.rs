//! What the proxy holds in memory when there is a lot to hold, and the time it took to read and write it all.

use std::time::Duration;

use tests::cluster::proxy::Mode;
use tests::cluster::stage::Stage;

use crate::mebibytes;
use crate::population::{PLACES, populate_with_tcp, wait_for};

const SERVICES: usize = 10_000;
const GOAL: u64 = 60;

pub fn measure(stage: &Stage) {
    populate_with_tcp(stage, SERVICES);
    let proxy = stage.proxy(Mode::Nftables);
    wait_for(stage, SERVICES - 1);
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.id())).unwrap();
    let kibibytes = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()).unwrap().parse().unwrap()
    };
    let [resident, peak] = ["VmRSS:", "VmHWM:"].map(|name| mebibytes(kibibytes(name) * 1024));
    println!("memory, {SERVICES} services x {} endpoints:", PLACES.len());
    println!("  processor time from start until all are served: {:.2?}", processor_time(proxy.id()));
    println!("  resident {resident:.1} MiB, at its peak {peak:.1} MiB; goal {GOAL} MiB");
}

/// In user space and in the kernel.
fn processor_time(process: u32) -> Duration {
    // Of a hundredth of a second, on every machine this runs on.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u32 = fields[11..13].iter().map(|ticks| ticks.parse::<u32>().unwrap()).sum();
    TICK * ticks
}
