//! What the kernel should hold for what the model wants, and the steps that lead there.
//!
//! Pure: no I/O, no clock, no async, no log.
#![forbid(unsafe_code)]

pub mod difference;
pub mod explain;
pub mod flows;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod iptables;
pub mod mark;
pub mod nftables;
pub mod served;
mod shards;
pub mod walk;
