//! The model against the specification, event by event, through the public interface only.
//!
//! Each of upstream's acceptance cases is a module of the same name in snake case. Where we differ on purpose, the test
//! pins our documented behaviour and a comment says what upstream does.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests stop at what they did not expect"
)]

mod addresses;
mod endpoints;
mod events;
mod examples;
mod quirks;
mod services;
mod slices;
mod support;
mod topology;
