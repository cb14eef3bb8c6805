//! Limits the rate of requests by a token bucket. Time is an argument.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct Throttle {
    per_second: f64,
    burst: f64,
    /// Negative for tokens that were taken in advance.
    tokens: f64,
    counted: Instant,
}

impl Throttle {
    /// Zero means client-go's defaults, and a negative rate no limit.
    pub fn new(qps: f32, burst: i32, now: Instant) -> Option<Self> {
        let per_second = if qps == 0.0 { 5.0 } else { f64::from(qps) };
        let burst = if burst == 0 { 10.0 } else { f64::from(burst.max(1)) };
        (per_second > 0.0).then_some(Self { per_second, burst, tokens: burst, counted: now })
    }

    /// Takes a token, and returns how long to wait until it is available.
    pub fn take(&mut self, now: Instant) -> Duration {
        let filled = now.saturating_duration_since(self.counted).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + filled).min(self.burst) - 1.0;
        self.counted = now;
        Duration::try_from_secs_f64(-self.tokens / self.per_second).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_the_rate_applies() {
        let start = Instant::now();
        let mut throttle = Throttle::new(5.0, 3, start).unwrap();
        let waits: Vec<_> = (0..5).map(|_| throttle.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400]);
        assert_eq!(throttle.take(start + Duration::from_secs(1)).as_millis(), 0, "a second fills five again");
    }

    #[test]
    fn an_idle_bucket_holds_no_more_than_a_burst() {
        let start = Instant::now();
        let mut throttle = Throttle::new(100.0, 2, start).unwrap();
        let later = start + Duration::from_secs(3_600);
        let waits: Vec<_> = (0..3).map(|_| throttle.take(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 10]);
    }

    #[test]
    fn a_negative_rate_is_no_limit() {
        assert!(Throttle::new(-1.0, 10, Instant::now()).is_none());
    }
}
