//! Decides when the next pass is due. Never sleeps, never asks what time it is.
//!
//! Requests that come while a pass runs or right after one become one pass; a failed pass is repeated, a quiet hour is
//! ended by one.

use std::time::{Duration, Instant};

/// The rhythm of one family's passes.
#[derive(Debug)]
pub struct Pace {
    /// From the end of one pass to the start of the next.
    min: Duration,
    /// After a pass that failed.
    retry: Duration,
    /// After a pass that did not.
    max: Duration,
    asked: bool,
    /// When the last pass ended and whether it did its work.
    last: Option<(Instant, bool)>,
    began: Instant,
}

impl Pace {
    pub fn new(min: Duration, retry: Duration, max: Duration, now: Instant) -> Self {
        Self { min, retry, max, asked: false, last: None, began: now }
    }

    /// Something changed.
    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// A pass begins: what is asked for from now on is for the next one.
    pub fn started(&mut self) {
        self.asked = false;
    }

    pub fn ended(&mut self, now: Instant, succeeded: bool) {
        self.last = Some((now, succeeded));
    }

    /// How long to wait until the next pass, if nobody asks for one in the meantime.
    pub fn wait(&self, now: Instant) -> Duration {
        self.due().saturating_duration_since(now)
    }

    fn due(&self) -> Instant {
        let Some((ended, succeeded)) = self.last else {
            return if self.asked { self.began } else { self.began + self.max };
        };
        let pause = match (self.asked, succeeded) {
            (true, _) => self.min,
            (false, false) => self.retry.min(self.max),
            (false, true) => self.max,
        };
        ended + pause.max(self.min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A pace of one second at least, thirty after a failure, an hour at most, and the time it began.
    fn pace() -> (Pace, Instant) {
        let now = Instant::now();
        (Pace::new(SECOND, 30 * SECOND, 3_600 * SECOND, now), now)
    }

    fn pass(pace: &mut Pace, at: Instant, succeeded: bool) {
        assert_eq!(pace.wait(at), Duration::ZERO, "due");
        pace.started();
        pace.ended(at, succeeded);
    }

    #[test]
    fn the_first_request_is_served_at_once_and_a_quiet_hour_ends_with_a_pass() {
        let (mut pace, t) = pace();
        assert_eq!(pace.wait(t), 3_600 * SECOND);
        pace.ask();
        pass(&mut pace, t, true);
        assert_eq!(pace.wait(t), 3_600 * SECOND);
    }

    #[test]
    fn many_requests_after_a_pass_are_one_pass_after_the_pause() {
        let (mut pace, t) = pace();
        pace.ask();
        pass(&mut pace, t, true);
        for _ in 0..100 {
            pace.ask();
        }
        assert_eq!(pace.wait(t), SECOND);
        pass(&mut pace, t + SECOND, true);
        assert_eq!(pace.wait(t + SECOND), 3_600 * SECOND);
    }

    #[test]
    fn a_request_during_a_pass_is_for_the_next_one_and_the_pause_counts_from_the_end() {
        let (mut pace, t) = pace();
        pace.ask();
        pace.started();
        pace.ask();
        pace.ended(t + 5 * SECOND, true);
        assert_eq!(pace.wait(t + 5 * SECOND), SECOND);
    }

    #[test]
    fn a_failure_is_repeated_and_a_success_ends_that() {
        let (mut pace, t) = pace();
        pace.ask();
        pass(&mut pace, t, false);
        assert_eq!(pace.wait(t), 30 * SECOND);
        pass(&mut pace, t + 30 * SECOND, false);
        assert_eq!(pace.wait(t + 30 * SECOND), 30 * SECOND);
        pace.ask();
        assert_eq!(pace.wait(t + 30 * SECOND), SECOND, "a request does not wait for the retry");
        pass(&mut pace, t + 31 * SECOND, true);
        assert_eq!(pace.wait(t + 31 * SECOND), 3_600 * SECOND, "nor is there one left after it");
    }

    #[test]
    fn no_retry_comes_before_the_pause_is_over() {
        let now = Instant::now();
        let mut pace = Pace::new(40 * SECOND, 30 * SECOND, 3_600 * SECOND, now);
        pace.ask();
        pass(&mut pace, now, false);
        assert_eq!(pace.wait(now), 40 * SECOND);
    }
}
