//! For benchmarks: clusters of any size, figures that a child process measures, and a file that records them.

pub mod clusters;
pub mod figures;
pub mod record;
