//! The result of one sync.

/// What a commit did to the kernel, in any mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The sync compared or wrote everything, rather than what changed.
    pub is_full: bool,
    /// The kernel did not hold what an earlier sync had committed.
    pub has_drifted: bool,
    /// Transactions, or runs of `iptables-restore`. Zero if there was nothing to do.
    pub writes: usize,
    /// Elements or rules that were added.
    pub added: usize,
    /// Elements that were deleted one by one; those of flushed sets do not count.
    pub deleted: usize,
}
