//! Compares encodings with those of `nft`, and states laws.

mod golden;
mod laws;
