//! What became of one sync.

/// What a commit did to the kernel, in any mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Everything was compared or written, rather than what changed.
    pub is_full: bool,
    /// The kernel did not hold what an earlier sync had committed.
    pub has_drifted: bool,
    /// Transactions, or runs of `iptables-restore`; zero if there was nothing to do.
    pub writes: usize,
    /// Elements or rules.
    pub added: usize,
    /// Elements, not counting those of sets that were emptied as a whole.
    pub deleted: usize,
}
