//! What both ends of the debug API share: the server, which answers under [`PREFIX`] in `status::local`, and the subcommands.

pub mod findings;
pub mod packet_query;

/// The path of the debug API.
pub const PREFIX: &str = "/debug/sluice";
/// Below it: how the kernel differs from the desired state, as [`findings::Findings`].
pub const VERIFY: &str = "verify";
