//! What is proven with the namespaces and probes of [`testkit`]: the case table of the packet matrix, real control planes and
//! containers.

pub mod cases;
pub mod chains;
pub mod cluster;
pub mod container;
pub mod feed;
pub mod manifests;
pub mod matrix;
pub mod node;
pub mod options;
