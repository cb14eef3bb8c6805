//! The ipvs mode, from API objects to what the kernel should hold and what becomes of packets there.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests stop at what they did not expect"
)]

mod examples;
mod packets;
mod world;
