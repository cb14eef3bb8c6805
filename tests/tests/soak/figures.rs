//! Resources of the process and the kernel, compared before and after.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use testkit::namespace::Namespace;
use testkit::wait::Deadline;
use tests::cluster::proxy::Proxy;
use tests::cluster::test_cluster::TestCluster;

const SETTLE_TIMEOUT: Duration = Duration::from_secs(240);
/// Figures that do not change for this long have settled.
const STABLE_TIME: Duration = Duration::from_secs(6);
/// The resident memory may grow by this fraction plus this amount: the allocator keeps freed memory.
const RSS_PART: u64 = 4;
const RSS_MORE_KIB: u64 = 4 * 1024;

const NAMES: [&str; 11] = [
    "resident memory, KiB",
    "descriptors",
    "threads",
    "tables",
    "chains",
    "rules",
    "sets",
    "maps",
    "elements",
    "tracked connections, without those to the API server",
    "processes of the node",
];
const RSS: usize = 0;
/// These may shrink: an idle connection to the API server stays open for a while.
const MAY_BE_LESS: [usize; 3] = [1, 2, 9];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources([u64; NAMES.len()]);

/// Makes conntrack entries expire soon after their connections. The sysctls belong to the node's namespace.
pub fn expire_connections_soon(node: &Namespace) {
    for name in [
        "tcp_timeout_syn_sent",
        "tcp_timeout_syn_recv",
        "tcp_timeout_fin_wait",
        "tcp_timeout_last_ack",
        "tcp_timeout_time_wait",
        "tcp_timeout_close",
        "tcp_timeout_max_retrans",
        "tcp_timeout_unacknowledged",
        "udp_timeout",
        "udp_timeout_stream",
        "icmp_timeout",
        "icmpv6_timeout",
        "generic_timeout",
    ] {
        node.sysctl(&format!("netfilter/nf_conntrack_{name}"), "5");
    }
}

impl Resources {
    fn read(cluster: &TestCluster, proxy: &Proxy) -> Self {
        let process = format!("/proc/{}", proxy.pid());
        let entries = |folder: &str| std::fs::read_dir(format!("{process}/{folder}")).unwrap().count() as u64;
        let node = &cluster.lab.network.node;
        // The connections of kube-proxy itself are tracked only if rules existed when they were opened.
        let to_api_server = format!("dport={} ", crate::disturbances::RELAY_PORT);
        // Reading the table removes expired entries.
        let tracked = node.enter(|| std::fs::read_to_string("/proc/thread-self/net/nf_conntrack")).unwrap();
        let ruleset: Value = serde_json::from_str(&node.run("nft -j list ruleset")).unwrap();
        let ruleset = ruleset["nftables"].as_array().unwrap();
        let count = |kind: &str| ruleset.iter().filter(|object| object.get(kind).is_some()).count() as u64;
        let elements = ruleset.iter().flat_map(|object| [&object["set"]["elem"], &object["map"]["elem"]]);
        let elements = elements.filter_map(Value::as_array).map(Vec::len).sum::<usize>() as u64;
        Self([
            resident_memory(proxy),
            entries("fd"),
            entries("task"),
            count("table"),
            count("chain"),
            count("rule"),
            count("set"),
            count("map"),
            elements,
            tracked.lines().filter(|connection| !connection.contains(&to_api_server)).count() as u64,
            processes_in(node),
        ])
    }

    /// The figures once nothing but the memory has changed for a while.
    pub fn at_rest(cluster: &TestCluster, proxy: &Proxy) -> Self {
        let mut deadline = Deadline::after(SETTLE_TIMEOUT);
        let mut stable = Deadline::after(STABLE_TIME);
        let mut figures = Self::read(cluster, proxy);
        while !stable.has_passed() && !deadline.has_passed() {
            std::thread::sleep(Duration::from_millis(500));
            let now = Self::read(cluster, proxy);
            if now.0[RSS + 1..] != figures.0[RSS + 1..] {
                stable = Deadline::after(STABLE_TIME);
            }
            figures = now;
        }
        figures
    }

    /// Replaces the memory by the current one.
    pub fn with_memory_of(mut self, proxy: &Proxy) -> Self {
        self.0[RSS] = resident_memory(proxy);
        self
    }

    /// The figures once they equal those before, or after a timeout.
    pub fn back_at(before: &Self, cluster: &TestCluster, proxy: &Proxy) -> Self {
        let mut deadline = Deadline::after(SETTLE_TIMEOUT);
        loop {
            let figures = Self::read(cluster, proxy);
            if figures.differences(before).is_empty() || deadline.has_passed() {
                return figures;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// The figures that differ from those before.
    pub fn differences(&self, before: &Self) -> Vec<String> {
        let each = NAMES.iter().zip(before.0.iter().zip(self.0)).enumerate();
        let differs = |number: usize, before: u64, after: u64| match number {
            RSS => after > before + before / RSS_PART + RSS_MORE_KIB,
            number if MAY_BE_LESS.contains(&number) => after > before,
            _ => after != before,
        };
        let wrong = each.filter(|(number, (_, (before, after)))| differs(*number, **before, *after));
        wrong.map(|(_, (name, (before, after)))| format!("{name}: {before} before, {after} after")).collect()
    }
}

/// Resident memory in KiB.
fn resident_memory(proxy: &Proxy) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Includes zombies.
fn processes_in(node: &Namespace) -> u64 {
    let namespace = node.enter(|| std::fs::read_link("/proc/thread-self/ns/net")).unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let links = processes.filter_map(|process| std::fs::read_link(process.path().join("ns/net")).ok());
    links.filter(|link| *link == namespace).count() as u64
}

pub fn table(before: &Resources, after: &Resources) -> String {
    let mut table = format!("{:<55} {:>9} {:>9}\n", "figures at rest", "before", "after");
    for (name, (before, after)) in NAMES.iter().zip(before.0.iter().zip(after.0)) {
        writeln!(table, "{name:<55} {before:>9} {after:>9}").unwrap();
    }
    let more = RSS_MORE_KIB / 1024;
    write!(
        table,
        "(memory may be 1/{RSS_PART} and {more} MiB above what it was; descriptors, threads and connections may be less; \
         the rest must be equal)"
    )
    .unwrap();
    table
}
