//! Threads that the process can't do without.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Context as _;
use model::address::Family;

/// A half-alive proxy is worse than a dead one: if the thread panics, the process ends, and kubelet starts it again.
pub fn spawn(name: impl Into<String>, what: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let name = name.into();
    let run = move || {
        if catch_unwind(AssertUnwindSafe(what)).is_err() {
            std::process::exit(2);
        }
    };
    let trouble = format!("starting the thread {name:?}");
    std::thread::Builder::new().name(name).spawn(run).context(trouble)?;
    Ok(())
}

/// Starts a thread of one family, for a caller that has no one to return an error to.
pub fn spawn_or_log(family: Family, name: &str, what: impl FnOnce() + Send + 'static) {
    if let Err(error) = spawn(format!("{name}-{family}"), what) {
        tracing::error!(ipFamily = %family, err = format!("{error:#}"), "Failed to start a thread");
    }
}
