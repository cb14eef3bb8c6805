//! The nftables mode: a fixed program of rules, and services as elements of its sets.
//!
//! ```text
//!   settings ──▶ program: chains, rules, sets     written once
//!   Routing  ──▶ unit ──▶ elements ──▶ steps      written whenever a routing changes
//! ```
//!
//! No rule, chain or verdict depends on how many services there are; see `program` for the way of a packet.

pub mod claims;
pub mod desired;
pub mod desired_sets;
pub mod elements;
pub mod plan;
pub mod program;
pub mod run;
pub mod sets;
pub mod slots;
pub mod statements;
pub mod steps;
pub mod text;
pub mod timeouts;
