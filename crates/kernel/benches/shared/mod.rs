//! What the benchmarks have in common.
#![allow(dead_code, reason = "each benchmark uses some of it")]

pub mod affinity;
pub mod figures;
pub mod objects;
pub mod record;
