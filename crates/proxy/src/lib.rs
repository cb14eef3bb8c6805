//! kube-proxy: everything but the entry point.
#![forbid(unsafe_code)]

pub mod config;
pub mod duration;
pub mod family;
pub mod flags;
pub mod gates;
pub mod go;
pub mod logs;
pub mod pace;
pub mod quantity;
pub mod run;
pub mod tuning;
pub mod version;
