//! Decides what each service port does on this node.
//!
//! Pure: no I/O, no clock, no async, no log. Events go in, changed routings come out.
#![forbid(unsafe_code)]

pub mod address;
pub mod annotations;
pub mod api;
pub mod backlog;
pub mod cluster;
pub mod event;
pub mod hashing;
pub mod local;
pub mod names;
pub mod node;
pub mod note;
mod pending;
pub mod routing;
pub mod service;
pub mod slices;
pub mod topology;
pub mod weights;
