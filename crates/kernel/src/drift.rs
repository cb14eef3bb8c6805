//! Drift: the kernel may no longer hold what the proxy wrote, because a foreign writer changed it.

use std::fmt;

use netlink::nftables::Generation;

/// Why the kernel may no longer hold what the proxy wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The watch for foreign writers has just started, and does not know of earlier changes.
    Unwatched,
    /// A foreign writer made a change. `None` where the kernel does not name it.
    Detected(Option<ForeignWriter>),
}

/// A process other than this proxy that changed the proxy's rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignWriter {
    pub process: String,
    /// As seen from the initial PID namespace.
    pub pid: u32,
}

impl From<Generation> for ForeignWriter {
    fn from(generation: Generation) -> Self {
        Self { process: generation.process, pid: generation.pid }
    }
}

impl fmt::Display for ForeignWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.process, self.pid)
    }
}
