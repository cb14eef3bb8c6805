//! Everything between the command line and a validated configuration: flags, feature gates, the configuration file,
//! logging, and Go's text formats, which upstream uses in all of them.
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
