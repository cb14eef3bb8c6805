//! kube-proxy: everything but the entry point.
#![forbid(unsafe_code)]

pub mod audit;
pub mod backend;
pub mod checks;
pub mod cleanup;
pub mod config;
pub mod connections;
pub mod contention;
pub mod duration;
pub mod family;
pub mod flags;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod gates;
pub mod go;
pub mod health;
pub mod http;
pub mod inspect;
pub mod logs;
pub mod metrics;
pub mod modes;
pub mod node;
pub mod pace;
pub mod quantity;
pub mod repairs;
pub mod run;
pub mod signals;
pub mod source;
pub mod status;
pub mod threads;
pub mod tuning;
pub mod version;
