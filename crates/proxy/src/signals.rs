//! What signals do: as to a Go program, which upstream is.
//!
//! Some end the process, also where the kernel does not do that by itself, in the first process of a container. Nothing is
//! drained and no rule is removed: what is in the kernel goes on serving. Others do nothing, where the kernel would end the
//! process: the sender may have another program in mind.

use std::fs;
use std::os::raw::c_int;
use std::sync::Arc;

use anyhow::Context as _;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::threads;

/// The status a Go program ends with in the same place.
const STATUS: i32 = 2;

/// Makes signals that mean nothing to us do nothing. Handled rather than ignored, since programs we run would inherit that.
pub fn disregard_others() -> anyhow::Result<()> {
    for signal in [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO] {
        flag::register(signal, Arc::default()).context("listening for signals")?;
    }
    Ok(())
}

/// Signals have their ordinary effect for everyone but process 1.
pub fn end_process_one() -> anyhow::Result<()> {
    if std::process::id() != 1 {
        return Ok(());
    }
    let ignored = ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let wanted = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !ignored.contains(signal));
    let mut signals = Signals::new(wanted).context("listening for signals")?;
    let end = move || {
        if signals.forever().next().is_some() {
            std::process::exit(STATUS);
        }
    };
    threads::spawn("signals", end)
}

/// What whoever started us decided to ignore stays ignored.
fn ignored_signals(status: &str) -> Vec<c_int> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        assert_eq!(ignored_signals("Name:\tx\nSigIgn:\t0000000000000003\n"), [SIGHUP, SIGINT]);
        assert!(ignored_signals("SigIgn:\tnonsense").is_empty());
        assert!(ignored_signals("").is_empty());
    }
}
