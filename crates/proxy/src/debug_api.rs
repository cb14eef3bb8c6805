//! What both ends of the debug API share: the server answers under [`PREFIX`] in `status::local`, the subcommands ask.

pub mod findings;
pub mod question;

/// Where questions to the proxy go.
pub const PREFIX: &str = "/debug/sluice";
/// Under it: whether the kernel holds what it should, as [`findings::Findings`].
pub const VERIFY: &str = "verify";
