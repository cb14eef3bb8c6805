//! What the tests and benchmarks of every crate share: one way to write down a cluster.
//!
//! [`objects`] parses Services and EndpointSlices from one line each, [`routings`] puts them through the model, [`bench`]
//! makes clusters of any size and keeps figures.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at a line that it cannot parse"
)]

pub mod bench;
pub mod objects;
pub mod routings;

pub use objects::{event, service, slice};
pub use routings::{node, routing, routings};
