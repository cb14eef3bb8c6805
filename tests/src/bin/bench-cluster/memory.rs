//! The memory of kube-proxy with many Services, and the CPU time until it serves all of them.

use std::ops::Range;
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

/// User and system CPU time of a process and of the children it has waited for, in steps of ten milliseconds.
pub fn cpu_time(process: u32) -> Duration {
    ticks(process, 11..15)
}

/// The same without steps, except for the children, and without threads that have ended: for what takes less than a step.
pub fn precise_cpu_time(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let spent = |thread: std::fs::DirEntry| {
        let schedstat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some(Duration::from_nanos(schedstat.split(' ').next()?.parse().ok()?))
    };
    threads.filter_map(spent).sum::<Duration>() + ticks(process, 13..15)
}

/// The sum of some fields of `/proc/PID/stat`, counted from the process state.
fn ticks(process: u32, fields: Range<usize>) -> Duration {
    // USER_HZ is 100 on all supported machines.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let all: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    TICK * all[fields].iter().map(|ticks| ticks.parse::<u32>().unwrap()).sum::<u32>()
}
