//! Computes the delay before a retry. Time and chance are arguments.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(800);
const MAX: Duration = Duration::from_secs(30);
/// After this time without a failure, the delay starts over.
const RESET_AFTER: Duration = Duration::from_secs(120);

/// A delay that doubles with every failure, up to a limit.
#[derive(Debug, Default)]
pub struct Backoff {
    last: Option<(Instant, Duration)>,
}

impl Backoff {
    /// The delay after a failure at `now`. `chance`, between 0 and 1, makes it up to twice as long, so that nodes do not retry
    /// together.
    pub fn failed(&mut self, now: Instant, chance: f64) -> Duration {
        let pause = match self.last {
            Some((then, pause)) if now.saturating_duration_since(then) <= RESET_AFTER => (pause * 2).min(MAX),
            _ => FIRST,
        };
        self.last = Some((now, pause));
        pause.mul_f64(1.0 + chance.clamp(0.0, 1.0))
    }

    /// Makes the delay start over.
    pub fn reset(&mut self) {
        self.last = None;
    }
}

/// A random number between 0 and 1, good enough to spread clients.
pub fn chance() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    f64::from((bits >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_half_a_minute_and_start_over_after_two_minutes_without_failure() {
        let mut now = Instant::now();
        let mut backoff = Backoff::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = backoff.failed(now, 0.0);
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses, [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
        now += Duration::from_secs(121);
        assert_eq!(backoff.failed(now, 0.0).as_millis(), 800);
        assert_eq!(backoff.failed(now, 0.0).as_millis(), 1_600);
        backoff.reset();
        assert_eq!(backoff.failed(now, 0.0).as_millis(), 800);
    }

    #[test]
    fn chance_makes_a_delay_up_to_twice_as_long() {
        let now = Instant::now();
        assert_eq!(Backoff::default().failed(now, 0.5).as_millis(), 1_200);
        assert_eq!(Backoff::default().failed(now, 1.0).as_millis(), 1_600);
        assert!((0..100).all(|_| (0.0..=1.0).contains(&chance())));
    }
}
