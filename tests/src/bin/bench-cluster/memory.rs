//! The memory of kube-proxy with many Services, and the CPU time until it serves all of them.

use std::time::Duration;

use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::TestCluster;

use crate::mebibytes;
use crate::population::wait_for;

const GOAL: u64 = 60;

/// Measures a cluster that has been populated with these numbers.
pub fn measure(cluster: &TestCluster, services: usize, endpoints: usize) {
    let proxy = cluster.proxy(Mode::Nftables);
    wait_for(cluster, services - 1);
    let [resident, peak] = ["VmRSS:", "VmHWM:"].map(|name| status(proxy.pid(), name));
    println!("memory, {services} services x {endpoints} endpoints:");
    println!("  CPU time from start until all are served: {:.2?}", cpu_time(proxy.pid()));
    println!("  resident {resident:.1} MiB, at its peak {peak:.1} MiB; goal {GOAL} MiB");
}

/// A line of `/proc/PID/status`, in MiB.
pub fn status(process: u32, line: &str) -> f64 {
    mebibytes_of(&format!("/proc/{process}/status"), line)
}

/// The resident memory of a process, in MiB, where a page that n processes map counts as one nth of a page.
pub fn pss(process: u32) -> f64 {
    mebibytes_of(&format!("/proc/{process}/smaps_rollup"), "Pss:")
}

/// The memory that the machine can still provide, in MiB.
pub fn available() -> f64 {
    mebibytes_of("/proc/meminfo", "MemAvailable:")
}

fn mebibytes_of(file: &str, line: &str) -> f64 {
    let content = std::fs::read_to_string(file).unwrap();
    let found = content.lines().find_map(|text| text.strip_prefix(line));
    let kibibytes: u64 = found.and_then(|text| text.split_whitespace().next()).unwrap().parse().unwrap();
    mebibytes(kibibytes * 1024)
}

/// User and system CPU time of a process and of the children it has waited for.
pub fn cpu_time(process: u32) -> Duration {
    // USER_HZ is 100 on all supported machines.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u32 = fields[11..15].iter().map(|ticks| ticks.parse::<u32>().unwrap()).sum();
    TICK * ticks
}
