//! A node, its pods and clients as network namespaces of this machine: real sockets, real packets, nothing else touched.
//!
//! ```text
//!   client 192.0.2.200 ──── eth0 192.0.2.11 ┐
//!                                           node ── cbr0 10.244.0.1 ──┬── pod-a 10.244.0.5
//!   remote 198.51.100.12 ── eth1 198.51.100.11 ┘                      └── pod-b 10.244.0.6
//!     └─ pods of another node, 10.244.1.0/24
//! ```
//!
//! Everything lives in file descriptors of this process: when it ends, however it ends, nothing is left.

pub mod namespace;
pub mod network;
pub mod node;
pub mod talk;
