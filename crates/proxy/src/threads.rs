//! Starts threads that the process cannot work without.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Context as _;
use model::address::Family;

/// Starts a thread. If it panics, the process ends and kubelet restarts it: a proxy that works in part is worse than a restart.
pub fn spawn(name: impl Into<String>, body: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let name = name.into();
    let run = move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            std::process::exit(2);
        }
    };
    let context = format!("starting the thread {name:?}");
    std::thread::Builder::new().name(name).spawn(run).context(context)?;
    Ok(())
}

/// Starts a thread of one family, for a caller that cannot return an error.
pub fn spawn_or_log(family: Family, name: &str, body: impl FnOnce() + Send + 'static) {
    if let Err(error) = spawn(format!("{name}-{family}"), body) {
        tracing::error!(ipFamily = %family, err = format!("{error:#}"), "Failed to start a thread");
    }
}
