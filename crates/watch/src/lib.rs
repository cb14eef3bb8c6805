//! Hears the cluster and tells it as [`model::event::Event`]s, whatever it comes from.
#![forbid(unsafe_code)]

pub mod folder;
pub mod manifest;
pub mod manifests;
mod standalone;
