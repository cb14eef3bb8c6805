//! How long to wait before trying again. Never sleeps, never asks what time it is, and chance is an argument.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
/// A failure after so long a peace is the first one again.
const PEACE: Duration = Duration::from_secs(120);

/// Doubles with every failure, up to a limit.
#[derive(Debug, Default)]
pub struct Backoff {
    last: Option<(Instant, Duration)>,
}

impl Backoff {
    /// The pause after a failure at `now`: up to twice as long as it has to be, so that nodes do not come back in
    /// step. `chance` is between 0 and 1.
    pub fn failed(&mut self, now: Instant, chance: f64) -> Duration {
        let pause = match self.last {
            Some((then, pause)) if now.saturating_duration_since(then) <= PEACE => (pause * 2).min(LONGEST),
            _ => FIRST,
        };
        self.last = Some((now, pause));
        pause.mul_f64(1.0 + chance.clamp(0.0, 1.0))
    }

    /// The next failure is the first one again.
    pub fn reset(&mut self) {
        self.last = None;
    }
}

/// A number between 0 and 1. Good enough to spread clients, and for nothing else.
pub fn chance() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    f64::from((bits >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_half_a_minute_and_start_over_after_two_quiet_minutes() {
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
    fn chance_makes_a_pause_up_to_twice_as_long() {
        let now = Instant::now();
        assert_eq!(Backoff::default().failed(now, 0.5).as_millis(), 1_200);
        assert_eq!(Backoff::default().failed(now, 1.0).as_millis(), 1_600);
        assert!((0..100).all(|_| (0.0..=1.0).contains(&chance())));
    }
}
