//! The server: follows the cluster and keeps the kernel in the desired state.
#![forbid(unsafe_code)]

pub mod audit;
pub mod backend;
pub mod checks;
pub mod cleanup;
pub mod connections;
pub mod contention;
pub mod debug_api;
pub mod family;
pub mod file_watch;
pub mod flows;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod health;
pub mod http;
pub mod metrics;
pub mod modes;
pub mod node;
pub mod rate_limit;
pub mod repairs;
pub mod run;
pub mod signals;
pub mod source;
pub mod status;
pub mod threads;
pub mod totals;
pub mod tuning;
