//! What the kernel should hold for what the model wants, and the steps that lead there.
//!
//! Pure: no I/O, no clock, no async, no log.
#![forbid(unsafe_code)]

pub mod flows;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod iptables;
pub mod mark;
pub mod nftables;
mod shards;
pub mod trace;
