//! The nftables mode: a fixed program of rules, and services as elements of its sets.
//!
//! ```text
//!   settings ──▶ program: chains, rules, sets     written once
//!   Routing  ──▶ unit ──▶ elements ──▶ steps      written whenever a routing changes
//! ```
//!
//! The number of rules and chains does not depend on the number of Services; see `program` for the path of a packet.

pub mod claims;
pub mod desired;
pub mod desired_sets;
pub mod elements;
pub mod frontend_chains;
pub mod hashing;
pub mod interpreter;
pub mod plan;
pub mod program;
pub mod sets;
pub mod slots;
pub mod statements;
pub mod steps;
pub mod text;
pub mod timeouts;
