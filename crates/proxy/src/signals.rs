//! Handles signals like a Go program, which upstream is.
//!
//! Some signals end the process, even as process 1 of a container, where the kernel's default is to ignore them. Nothing is
//! drained and no rule is removed: the rules in the kernel continue to serve. Other signals, for which the kernel's default is to
//! end the process, have no effect.

use std::fs;
use std::os::raw::c_int;
use std::sync::Arc;

use anyhow::Context as _;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::threads;

/// The exit status of a Go program that a signal ends.
const EXIT_STATUS: i32 = 2;

/// Makes signals without a meaning for this program have no effect. They are handled rather than ignored, since programs that we
/// run would inherit that.
pub fn ignore_unrelated() -> anyhow::Result<()> {
    for signal in [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO] {
        flag::register(signal, Arc::default()).context("listening for signals")?;
    }
    Ok(())
}

/// Ends the process on a signal if it is process 1; for others that is the kernel's default.
pub fn end_process_one() -> anyhow::Result<()> {
    if std::process::id() != 1 {
        return Ok(());
    }
    let ignored = ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let handled = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !ignored.contains(signal));
    let mut signals = Signals::new(handled).context("listening for signals")?;
    let end = move || {
        if signals.forever().next().is_some() {
            std::process::exit(EXIT_STATUS);
        }
    };
    threads::spawn("signals", end)
}

/// The signals that the parent process set to be ignored, which stay ignored.
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
