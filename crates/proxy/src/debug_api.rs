//! What both ends of the debug API share: the server, which answers under [`PREFIX`] in `status::debug_api`, and the subcommands.

pub mod findings;
pub mod packet_query;

/// The path of the debug API.
pub const PREFIX: &str = "/debug/sluice";
/// Below it: the number of new connections, as [`ConnectionsPage`](crate::connections::ConnectionsPage).
pub const CONNECTIONS: &str = "connections";
/// Below it: what would happen to a [`packet_query::PacketQuery`], as [`Explanation`](plan::explain::Explanation).
pub const EXPLAIN: &str = "explain";
/// Below it: how the kernel differs from the desired state, as [`findings::Findings`].
pub const VERIFY: &str = "verify";
