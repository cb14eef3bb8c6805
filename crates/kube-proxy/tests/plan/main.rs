//! `plan`, `verify` and `render` beside a real proxy, each test alone in a network namespace.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod cluster;
mod contests;
mod edits;
mod modes;
mod render;
mod trouble;
mod verify;
