//! The resources that the process uses, from `/proc`, under the names that dashboards expect.

use std::fs;

use super::text::{About, Entry, MetricType, Stability};

/// What `/proc` has about a process. `None` if a value cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessMetrics {
    cpu_seconds: Option<f64>,
    max_fds: Option<f64>,
    network_received: Option<f64>,
    network_transmitted: Option<f64>,
    open_fds: Option<f64>,
    resident_memory: Option<f64>,
    start_time: Option<f64>,
    virtual_memory: Option<f64>,
    virtual_memory_max: Option<f64>,
}

/// The unit of process times in `/proc`, which is the same on every machine (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

const fn about(name: &'static str, kind: MetricType, help: &'static str) -> About {
    About { name, help, kind, stability: None }
}

const START_TIME: About = about(
    "process_start_time_seconds",
    MetricType::Gauge,
    "Start time of the process since unix epoch in seconds.",
);

impl ProcessMetrics {
    /// Reads the current values of this process.
    #[allow(clippy::cast_precision_loss, reason = "no process has that many files")]
    pub fn current() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let open_fds = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
        Self {
            open_fds,
            ..Self::parse(
                &text("/proc/self/stat"),
                &text("/proc/self/status"),
                &text("/proc/self/limits"),
                &text("/proc/self/net/netstat"),
                &text("/proc/stat"),
            )
        }
    }

    fn parse(stat: &str, status: &str, limits: &str, netstat: &str, machine: &str) -> Self {
        // The second field of `stat`, the name, may contain any characters, so fields are counted from its closing bracket.
        let stat: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |field: usize| stat.get(field - 3)?.parse::<f64>().ok();
        let kilobytes =
            |key| number(status.lines().find_map(|line| line.strip_prefix(key))?).map(|value| value * 1024.0);
        let booted = machine.lines().find_map(|line| line.strip_prefix("btime ")).and_then(number);
        Self {
            cpu_seconds: ticks(14).zip(ticks(15)).map(|(user, system)| (user + system) / TICKS_PER_SECOND),
            max_fds: limit(limits, "Max open files"),
            network_received: octets(netstat, "InOctets"),
            network_transmitted: octets(netstat, "OutOctets"),
            open_fds: None,
            resident_memory: kilobytes("VmRSS:"),
            start_time: booted.zip(ticks(22)).map(|(boot, after)| boot + after / TICKS_PER_SECOND),
            virtual_memory: kilobytes("VmSize:"),
            virtual_memory_max: limit(limits, "Max address space"),
        }
    }

    /// Seconds since the epoch.
    pub fn start_time(&self) -> Option<f64> {
        self.start_time
    }

    pub fn entries(&self) -> Vec<Entry> {
        [
            (
                self.cpu_seconds,
                about(
                    "process_cpu_seconds_total",
                    MetricType::Counter,
                    "Total user and system CPU time spent in seconds.",
                ),
            ),
            (
                self.max_fds,
                about("process_max_fds", MetricType::Gauge, "Maximum number of open file descriptors."),
            ),
            (
                self.network_received,
                about(
                    "process_network_receive_bytes_total",
                    MetricType::Counter,
                    "Number of bytes received by the process over the network.",
                ),
            ),
            (
                self.network_transmitted,
                about(
                    "process_network_transmit_bytes_total",
                    MetricType::Counter,
                    "Number of bytes sent by the process over the network.",
                ),
            ),
            (self.open_fds, about("process_open_fds", MetricType::Gauge, "Number of open file descriptors.")),
            (
                self.resident_memory,
                about("process_resident_memory_bytes", MetricType::Gauge, "Resident memory size in bytes."),
            ),
            (self.start_time, START_TIME),
            (
                self.virtual_memory,
                about("process_virtual_memory_bytes", MetricType::Gauge, "Virtual memory size in bytes."),
            ),
            (
                self.virtual_memory_max,
                about(
                    "process_virtual_memory_max_bytes",
                    MetricType::Gauge,
                    "Maximum amount of virtual memory available in bytes.",
                ),
            ),
        ]
        .into_iter()
        .filter_map(|(value, about)| Some(entry(about, value?)))
        .collect()
    }

    /// The start time for `/metrics/slis`, where it has a stability.
    pub fn start_time_entry(&self) -> Option<Entry> {
        Some(entry(About { stability: Some(Stability::Alpha), ..START_TIME }, self.start_time?))
    }
}

fn entry(about: About, value: f64) -> Entry {
    let mut entry = Entry::new(about);
    entry.sample([], value);
    entry
}

fn number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The soft limit. Without a limit, Go's library shows the largest number.
#[allow(clippy::cast_precision_loss, reason = "as Go's library does")]
fn limit(limits: &str, name: &str) -> Option<f64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX as f64) } else { soft.parse().ok() }
}

/// A column of the two `IpExt:` lines, of which the first has the names of the columns.
fn octets(netstat: &str, column: &str) -> Option<f64> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let index = names.split_whitespace().position(|name| name == column)?;
    number(values.split_whitespace().nth(index)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_parsed_for_any_name_of_the_process() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 12 3 0 0 20 0 9 0 4242 1402585088 11671 1844674407370955161 1";
        let status = "Name:\ta\nVmSize:\t 1369712 kB\nVmRSS:\t   46684 kB\n";
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            20000                20000                files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        let netstat = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 16482 7947\n";
        let machine = "cpu 1 2 3\nbtime 1794789118\nprocesses 5\n";
        let want = ProcessMetrics {
            cpu_seconds: Some(0.15),
            max_fds: Some(20_000.0),
            network_received: Some(16_482.0),
            network_transmitted: Some(7_947.0),
            open_fds: None,
            resident_memory: Some(47_804_416.0),
            start_time: Some(1_794_789_160.42),
            virtual_memory: Some(1_402_585_088.0),
            virtual_memory_max: Some(18_446_744_073_709_551_615.0),
        };
        assert_eq!(ProcessMetrics::parse(stat, status, limits, netstat, machine), want);
        assert_eq!(ProcessMetrics::parse("", "", "", "", ""), ProcessMetrics::default());
    }

    #[test]
    fn all_values_of_this_process_can_be_read() {
        let process = ProcessMetrics::current();
        assert_eq!(process.entries().len(), 9, "{process:?}");
    }
}
