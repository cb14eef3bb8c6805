//! Reproducible random numbers: a run prints its seed, and `SLUICE_SOAK_SEED` replays it.

use std::time::SystemTime;

#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

/// `SLUICE_SOAK_SEED` in hexadecimal, or a seed from the clock.
pub fn seed() -> u64 {
    match std::env::var("SLUICE_SOAK_SEED") {
        Ok(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16)
            .unwrap_or_else(|error| panic!("SLUICE_SOAK_SEED={text}: {error}")),
        Err(_) => SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64,
    }
}

impl SeededRandom {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}
