//! Applies what the configuration sets on the machine: size and timeouts of connection tracking, and the OOM score of this
//! process.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kernel::sysctl::{Sysctls, read_number};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use settings::config::ConntrackSettings;

/// The table does not grow beyond this, however many processors there are.
const MAX_ENTRIES: u64 = 1_048_576;

/// The sysctls that the configuration sets, by name below `net/netfilter`.
fn conntrack_sysctls(conntrack: &ConntrackSettings, processors: u64) -> Vec<(&'static str, u64)> {
    let seconds = |name, time: Duration| (!time.is_zero()).then_some((name, time.as_secs()));
    [
        max_entries(conntrack, processors).map(|max| ("nf_conntrack_max", max)),
        seconds("nf_conntrack_tcp_timeout_established", conntrack.tcp_established_timeout),
        seconds("nf_conntrack_tcp_timeout_close_wait", conntrack.tcp_close_wait_timeout),
        conntrack.tcp_be_liberal.then_some(("nf_conntrack_tcp_be_liberal", 1)),
        seconds("nf_conntrack_udp_timeout", conntrack.udp_timeout),
        seconds("nf_conntrack_udp_timeout_stream", conntrack.udp_stream_timeout),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn max_entries(conntrack: &ConntrackSettings, processors: u64) -> Option<u64> {
    if conntrack.max_per_core == 0 {
        return None;
    }
    let scaled = u64::from(conntrack.max_per_core).saturating_mul(processors);
    Some(if scaled > MAX_ENTRIES { MAX_ENTRIES } else { scaled.max(conntrack.min.into()) })
}

/// Raises the soft limit of open files to the hard limit, as Go's runtime does for upstream: the usual 1,024 are few for a proxy
/// with a thousand health-check node ports. Not beyond the number of ports, though: programs that we run inherit the limit, and
/// some close every descriptor up to it, of which there may be a billion.
pub fn raise_open_files() {
    const ENOUGH: u64 = 1 << 16;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = maximum.unwrap_or(ENOUGH).min(ENOUGH);
    if current.is_none_or(|current| current >= raised) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
        tracing::warn!(err = %error, "Failed to raise the number of open files");
    }
}

/// Sets up connection tracking. A value that is already right is not written, so that a process without write access can run
/// after one that had it.
pub fn set_up_conntrack(conntrack: &ConntrackSettings) -> anyhow::Result<()> {
    const CONTEXT: &str = "could not set conntrack parameters from kube-proxy configuration";
    let sysctls = Sysctls::default();
    let settings = conntrack_sysctls(conntrack, processors());
    // A node that has just booted may have loaded no module of netfilter yet.
    if !settings.is_empty()
        && sysctls.read("net/netfilter/nf_conntrack_max").is_err()
        && let Err(error) = kernel::conntrack::load()
    {
        tracing::warn!(err = %error, "Failed to load connection tracking");
    }
    for (name, value) in settings {
        let entry = format!("net/netfilter/{name}");
        if name == "nf_conntrack_max" {
            tracing::info!(nfConntrackMax = value, "Setting nf_conntrack_max");
        }
        let written =
            sysctls.ensure(&entry, value).map_err(|error| anyhow!("{entry}: {error}")).context(CONTEXT)?;
        if written {
            tracing::info!(entry, value, "Set sysctl");
        }
        if name == "nf_conntrack_max" {
            grow_hash(value / 4).context(CONTEXT)?;
        }
    }
    Ok(())
}

/// Callers pass a quarter of the entries, as upstream does. A larger table is left as it is.
fn grow_hash(buckets: u64) -> anyhow::Result<()> {
    let path = Path::new("/sys/module/nf_conntrack/parameters/hashsize");
    let found = read_number(path).with_context(|| path.display().to_string())?;
    if found < buckets {
        tracing::info!(conntrackHashsize = buckets, "Setting conntrack hashsize");
        fs::write(path, buckets.to_string()).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The number of the host's processors, even if this process may use only some of them.
fn processors() -> u64 {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    let counted = online.as_deref().and_then(count_processors).filter(|count| *count > 0);
    counted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u64))
}

/// `0-3,8` is five.
fn count_processors(list: &str) -> Option<u64> {
    list.trim().split(',').try_fold(0, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some(sum + (last.checked_sub(first)? + 1))
    })
}

/// Sets the OOM score adjustment. A failure is only logged at a higher verbosity: containers often lack the privilege. Any other
/// failure is retried, as upstream does.
pub fn set_oom_score(adjustment: i32) {
    let set = || fs::write("/proc/self/oom_score_adj", adjustment.to_string());
    let outcome = match set() {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
            std::thread::sleep(Duration::from_millis(100));
            set()
        }
        outcome => outcome,
    };
    if let Err(error) = outcome {
        tracing::debug!(v = 2, err = %error, "Failed to apply OOMScore");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conntrack(max_per_core: u32, min: u32) -> ConntrackSettings {
        ConntrackSettings {
            max_per_core,
            min,
            tcp_established_timeout: Duration::ZERO,
            tcp_close_wait_timeout: Duration::ZERO,
            tcp_be_liberal: false,
            udp_timeout: Duration::ZERO,
            udp_stream_timeout: Duration::ZERO,
        }
    }

    #[test]
    fn the_table_grows_with_the_processors_up_to_a_limit() {
        for (max_per_core, min, processors, want) in [
            (0, 0, 4, None),
            (0, 131_072, 4, None),
            (32_768, 131_072, 2, Some(131_072)),
            (32_768, 131_072, 8, Some(262_144)),
            (32_768, 0, 1, Some(32_768)),
            (32_768, 131_072, 64, Some(1_048_576)),
            (1_048_577, 2_000_000, 1, Some(1_048_576)),
            (16, 2_000_000, 1, Some(2_000_000)),
        ] {
            let found = max_entries(&conntrack(max_per_core, min), processors);
            assert_eq!(found, want, "{max_per_core} per core, {min} at least, {processors} processors");
        }
    }

    #[test]
    fn only_configured_sysctls_are_set() {
        assert_eq!(conntrack_sysctls(&conntrack(0, 1), 4), []);
        let all = ConntrackSettings {
            tcp_established_timeout: Duration::from_secs(86_400),
            tcp_close_wait_timeout: Duration::from_millis(3_600_900),
            tcp_be_liberal: true,
            udp_timeout: Duration::from_secs(30),
            udp_stream_timeout: Duration::from_secs(180),
            ..conntrack(32_768, 131_072)
        };
        let want = [
            ("nf_conntrack_max", 131_072),
            ("nf_conntrack_tcp_timeout_established", 86_400),
            ("nf_conntrack_tcp_timeout_close_wait", 3_600),
            ("nf_conntrack_tcp_be_liberal", 1),
            ("nf_conntrack_udp_timeout", 30),
            ("nf_conntrack_udp_timeout_stream", 180),
        ];
        assert_eq!(conntrack_sysctls(&all, 4), want);
    }

    #[test]
    fn processors_are_counted_from_ranges() {
        for (list, want) in
            [("0\n", Some(1)), ("0-3", Some(4)), ("0-3,8,10-11", Some(7)), ("", None), ("3-1", None)]
        {
            assert_eq!(count_processors(list), want, "{list:?}");
        }
    }
}
