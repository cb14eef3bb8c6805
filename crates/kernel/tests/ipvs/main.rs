//! Tests of the ipvs mode's servers with the real kernel, each in a network namespace of its own. They are skipped where the
//! kernel has no IPVS. `ipvsadm`, `ipset` and `ip` confirm what the kernel holds.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests stop at what they did not expect"
)]

mod cleanup;
mod faults;
mod servers;
mod setup;
