//! Receives objects from an API server or from a folder of manifests, and emits them as [`model::event::Event`]s.
#![forbid(unsafe_code)]

mod admission;
pub mod api_server;
mod backoff;
mod certificate;
pub mod client;
mod event_decoder;
pub mod folder;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod items;
mod kubeconfig;
mod lines;
mod list_watch;
pub mod manifest;
pub mod manifests;
pub mod node_wait;
pub mod recorder;
mod resource;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod stub;
mod throttle;
mod validate;
