//! A node, its pods and clients as network namespaces of this machine: real sockets, real packets, nothing else touched.
//!
//! ```text
//!   client 192.0.2.200, 100.64.7.0/24 ── eth0 192.0.2.11 ────┐
//!   remote 198.51.100.12 ─────────────── eth1 198.51.100.11 ─┤       ┌── pod 10.244.0.5
//!     └─ pods of another node, 10.244.1.0/24                node ── cbr0 10.244.0.1
//!   far 198.18.2.12 ──────────────────── eth2 198.18.2.11 ───┤       └── pod 10.244.0.6 ...
//!     └─ pods of a third node, 10.244.2.0/24                 │
//!   internet 198.18.3.12 ─────────────── eth3 198.18.3.11 ───┘
//!     └─ lets nothing through, and says so
//! ```
//!
//! Everything lives in file descriptors of this process: when it ends, however it ends, nothing is left.

pub mod cases;
pub mod chains;
pub mod cluster;
pub mod container;
pub mod echo;
pub mod feed;
pub mod lab;
pub mod manifests;
pub mod matrix;
pub mod namespace;
pub mod network;
pub mod node;
pub mod options;
pub mod patience;
pub mod process;
pub mod sctp;
pub mod talk;
