//! Tests of the iptables mode with the real commands and the real kernel, each in a network namespace of its own.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests stop at what they did not expect"
)]

mod batches;
mod cleanup;
mod commands;
mod comparing;
mod examples;
mod faults;
mod faulty;
mod faulty_laws;
mod foreign_writers;
mod laws;
mod machine;
mod quoting;
mod saved;
mod setup;

// The examples and what they expect are shared with the tests of `plan`.
#[path = "../../../plan/tests/iptables/fake.rs"]
#[allow(dead_code, reason = "here commands use it")]
mod fake;
#[path = "../../../plan/tests/iptables/given.rs"]
mod given;
#[path = "../../../plan/tests/iptables/histories.rs"]
#[allow(dead_code, reason = "there is no virtual time here")]
mod histories;
#[path = "../../../plan/tests/iptables/options.rs"]
mod options;
