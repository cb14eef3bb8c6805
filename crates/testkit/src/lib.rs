//! What the tests and benchmarks of every crate share.
//!
//! * [`objects`] parses Services and EndpointSlices from one line each, [`routings`] puts them through the model, and
//!   [`manifests`] writes them as YAML.
//! * [`bench`] builds clusters of any size and records figures.
//! * [`namespace`], [`network`] and [`lab`] make a node, its pods and clients out of network namespaces, with real sockets
//!   and real packets; [`probe`] and [`hammer`] send them.
//! * [`proxy`] and [`lab_proxy`] run the kube-proxy binary on such a node.
//! * [`wait`] waits for conditions with a deadline.
//!
//! ```text
//!   client 192.0.2.200, 100.64.7.0/24 ── eth0 192.0.2.11 ────┐
//!   remote 198.51.100.12 ─────────────── eth1 198.51.100.11 ─┤       ┌── pod 10.244.0.5
//!     └─ pods of a second node, 10.244.1.0/24               node ── cbr0 10.244.0.1
//!   far 198.18.2.12 ──────────────────── eth2 198.18.2.11 ───┤       └── pod 10.244.0.6 ...
//!     └─ pods of a third node, 10.244.2.0/24                 │
//!   internet 198.18.3.12 ─────────────── eth3 198.18.3.11 ───┘
//!     └─ default router, prohibits everything
//! ```
//!
//! Namespaces exist as file descriptors of this process: when it ends, however it ends, the kernel removes them.
#![forbid(unsafe_code)]

pub mod bench;
pub mod echo;
pub mod hammer;
pub mod lab;
pub mod lab_proxy;
pub mod manifests;
pub mod namespace;
pub mod network;
pub mod objects;
pub mod probe;
pub mod process;
pub mod proxy;
pub mod routings;
pub mod sctp;
pub mod wait;

pub use objects::{event, service, slice};
pub use routings::{node, routing, routings};
