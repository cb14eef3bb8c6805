//! What stands between the command line and a validated value: flags, feature gates, the configuration file, logging, and
//! the text formats of Go that they are written in.
#![forbid(unsafe_code)]

pub mod config;
pub mod duration;
pub mod flags;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod gates;
pub mod go;
pub mod logs;
pub mod quantity;
pub mod version;
