//! Whoever else changes what we wrote.

use std::fmt;

use netlink::nftables::Generation;

/// Why the kernel may hold something else than we wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// Nobody listened up to now.
    Unheard,
    /// Somebody was heard, and named where the kernel names them.
    Heard(Option<Stranger>),
}

/// A process that is not ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stranger {
    pub process: String,
    /// As seen from outside all containers.
    pub pid: u32,
}

impl From<Generation> for Stranger {
    fn from(generation: Generation) -> Self {
        Self { process: generation.process, pid: generation.pid }
    }
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.process, self.pid)
    }
}
