//! The iptables mode: upstream's chains and rules, byte for byte, and how to change them cheaply.
//!
//! ```text
//!   RuleSettings ──▶ program: rules that no service adds to ─┐
//!   Routing  ──▶ unit: a service port's own chains,      ├─▶ plan ─▶ restore inputs, one or several
//!                its lines in the shared chains ─────────┘
//! ```
//!
//! The plan does not keep units: it keeps the routings that the kernel has rules for, which it shares with the model, renders
//! them again when they change, and writes the chains that differ.

pub mod chains;
pub mod cleanup;
pub mod compare;
pub mod desired;
pub mod edits;
pub mod interpreter;
pub mod listing;
pub mod plan;
pub mod present;
pub mod program;
pub mod quoting;
pub mod restore;
pub mod rules;
pub mod saved_rule;
