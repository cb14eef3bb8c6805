//! The iptables mode, from API objects to what a fake kernel holds and what becomes of packets there.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests stop at what they did not expect"
)]

mod acceptance;
mod examples;
mod fake;
mod given;
mod histories;
mod laws;
mod options;
mod quoting;
mod syncs;
mod trace;
mod world;
