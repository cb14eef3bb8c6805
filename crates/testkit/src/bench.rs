//! What benchmarks share: clusters of any size, figures measured in processes of their own, and the record of them.

pub mod clusters;
pub mod figures;
pub mod record;
