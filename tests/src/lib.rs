//! The case table of the packet matrix, and tests against real control planes and container runtimes.

pub mod cases;
pub mod chains;
pub mod cluster;
pub mod container;
pub mod feed;
pub mod matrix;
pub mod node;
pub mod options;
pub mod servers;
