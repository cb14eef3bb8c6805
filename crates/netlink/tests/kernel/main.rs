//! Exchanges messages with the real kernel. Each test runs in a network namespace of its own, which needs root.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests stop at what they did not expect"
)]

mod accounting;
mod conntrack;
mod faults;
mod nftables;
mod route;
mod socket;
