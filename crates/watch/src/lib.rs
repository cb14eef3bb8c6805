//! Receives objects from an API server or from a folder of manifests, and emits them as [`model::event::Event`]s.
#![forbid(unsafe_code)]

mod admission;
pub mod api_server;
mod backoff;
mod certificate;
pub mod client;
mod event_decoder;
pub mod folder;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod items;
mod kubeconfig;
mod list_watch;
pub mod manifest;
pub mod manifests;
mod meta;
pub mod node_wait;
mod protobuf;
pub mod recorder;
mod resource;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod stub;
mod throttle;
mod validate;
mod wire;
