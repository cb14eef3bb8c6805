//! The iptables mode against the real commands and the real kernel, each test alone in a network namespace.

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

#[path = "../../../../tests/src/drive.rs"]
mod drive;
// What happens in the examples and what they expect is told once, beside the crate that decides it.
#[path = "../../../plan/tests/iptables/fake.rs"]
#[allow(dead_code, reason = "here it is reached through commands")]
mod fake;
#[path = "../../../plan/tests/iptables/given.rs"]
mod given;
#[path = "../../../plan/tests/iptables/histories.rs"]
#[allow(dead_code, reason = "time does not pass as quickly here")]
mod histories;
#[path = "../../../plan/tests/iptables/options.rs"]
mod options;
