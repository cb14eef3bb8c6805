//! The desired state of the kernel, rendered from the routings of the model, and the steps that lead there.
//!
//! Pure: no I/O, no clock, no async, no log.
#![forbid(unsafe_code)]

pub mod difference;
pub mod explain;
pub mod flows;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod iptables;
pub mod ipvs;
pub mod mark;
pub mod mode;
pub mod nftables;
pub mod served;
mod shards;
pub mod walk;
