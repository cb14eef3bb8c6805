//! The bounds of histograms, which are those of upstream.
#![allow(clippy::indexing_slicing, reason = "the compiler evaluates it")]

/// The duration of a sync: a millisecond, doubled fourteen times.
pub static SYNC: [f64; 15] = {
    let mut bounds = [0.001; 15];
    let mut n = 1;
    while n < bounds.len() {
        bounds[n] = bounds[n - 1] * 2.0;
        n += 1;
    }
    bounds
};

/// The latency of a change in the cluster until its rules are committed. Upstream's list begins with a zero by mistake.
pub static NETWORK_PROGRAMMING: [f64; 81] = {
    let mut bounds = [0.0; 81];
    let (mut n, mut next) = (1, 0.25);
    while n < bounds.len() {
        bounds[n] = next;
        next += match n {
            1 => 0.25,
            2 => 0.5,
            3..=61 => 1.0,
            62..=73 => 5.0,
            _ => 30.0,
        };
        n += 1;
    }
    bounds
};

pub static REQUEST: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

pub static REQUEST_SIZE: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
