//! Decides when the next pass is due. Never sleeps, never asks what time it is.
//!
//! Requests that come while a pass runs or right after one become one pass; a failed pass is repeated, a quiet hour is
//! ended by one. Until the first one has succeeded, failures are repeated within seconds: the node may have no rules at all,
//! and what is in the way at a start (the process before, a lock) often goes by itself.

use std::time::{Duration, Instant};

/// The rhythm of one family's passes.
#[derive(Debug)]
pub struct Pace {
    pause: Pause,
    /// After a pass that failed.
    retry: Duration,
    /// After a pass that did not.
    max: Duration,
    asked: bool,
    /// When the running pass began.
    started: Option<Instant>,
    last: Option<Last>,
    /// The pause after the next failure, until a sync has succeeded.
    first_retry: Option<Duration>,
    /// When we began to wait for the first pass that comes to an end.
    began: Instant,
}

/// How long to rest from the end of one pass to the start of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    Always(Duration),
    /// So long that passes take a twentieth of the time, and no longer than this: a lone change is served at once, a
    /// storm becomes few passes.
    InProportion(Duration),
}

/// The pass before.
#[derive(Clone, Copy, Debug)]
struct Last {
    ended: Instant,
    took: Duration,
    /// The pause after a failure.
    retry: Option<Duration>,
}

impl Pace {
    /// The first pause and the longest one after a failure, as long as no sync has succeeded.
    const FIRST_RETRIES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(4)];

    pub fn new(pause: Pause, retry: Duration, max: Duration, now: Instant) -> Self {
        let [first_retry, _] = Self::FIRST_RETRIES.map(Some);
        Self { pause, retry, max, asked: false, started: None, last: None, first_retry, began: now }
    }

    /// Something changed.
    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// A pass begins: what is asked for from now on is for the next one.
    pub fn started(&mut self, now: Instant) {
        self.asked = false;
        self.began = now;
        self.started = Some(now);
    }

    pub fn ended(&mut self, now: Instant, succeeded: bool) {
        let took =
            self.started.take().map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        let [_, longest] = Self::FIRST_RETRIES;
        let retry = self.first_retry.map_or(self.retry, |first| first.min(self.retry));
        self.first_retry = self.first_retry.filter(|_| !succeeded).map(|pause| (pause * 2).min(longest));
        self.last = Some(Last { ended: now, took, retry: (!succeeded).then_some(retry) });
    }

    /// How long after its end a sync that failed is repeated, if nothing asks for one before.
    pub fn retry(&self) -> Option<Duration> {
        self.last?.retry
    }

    /// How long to wait until the next pass, if nobody asks for one in the meantime.
    pub fn wait(&self, now: Instant) -> Duration {
        self.due().saturating_duration_since(now)
    }

    fn due(&self) -> Instant {
        let Some(last) = self.last else {
            return if self.asked { self.began } else { self.began + self.max };
        };
        let rest = match self.pause {
            Pause::Always(rest) => rest,
            Pause::InProportion(longest) => last.took.saturating_mul(19).min(longest),
        };
        let pause = match (self.asked, last.retry) {
            (true, _) => rest,
            (false, Some(retry)) => retry.min(self.max),
            (false, None) => self.max,
        };
        last.ended + pause.max(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A pace of one second at least, thirty after a failure, an hour at most, and the time it began.
    fn pace() -> (Pace, Instant) {
        let now = Instant::now();
        (Pace::new(Pause::Always(SECOND), 30 * SECOND, 3_600 * SECOND, now), now)
    }

    fn pass(pace: &mut Pace, at: Instant, succeeded: bool) {
        assert_eq!(pace.wait(at), Duration::ZERO, "due");
        pace.started(at);
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
    fn a_pass_that_cannot_begin_yet_is_not_tried_again_until_somebody_asks() {
        let (mut pace, t) = pace();
        let later = t + 3_600 * SECOND;
        pace.ask();
        for now in [t, later] {
            assert_eq!(pace.wait(now), Duration::ZERO);
            pace.started(now);
            assert_eq!(pace.wait(now), 3_600 * SECOND);
        }
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
        pace.started(t);
        pace.ask();
        pace.ended(t + 5 * SECOND, true);
        assert_eq!(pace.wait(t + 5 * SECOND), SECOND);
    }

    #[test]
    fn a_failure_is_repeated_and_a_success_ends_that() {
        let (mut pace, start) = pace();
        pace.ask();
        pass(&mut pace, start, true);
        pace.ask();
        let t = start + SECOND;
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
    fn failures_before_the_first_success_are_repeated_within_seconds() {
        let mut now = Instant::now();
        let mut pace = Pace::new(Pause::Always(Duration::ZERO), 30 * SECOND, 3_600 * SECOND, now);
        pace.ask();
        let pauses = [250, 500, 1_000, 2_000, 4_000, 4_000].map(Duration::from_millis);
        for pause in pauses {
            pass(&mut pace, now, false);
            assert_eq!((pace.wait(now), pace.retry()), (pause, Some(pause)));
            now += pause;
        }
        pass(&mut pace, now, true);
        assert_eq!((pace.wait(now), pace.retry()), (3_600 * SECOND, None));
        pace.ask();
        pass(&mut pace, now, false);
        assert_eq!(pace.wait(now), 30 * SECOND, "from then on as upstream does");
    }

    #[test]
    fn a_sync_period_shorter_than_the_first_retries_counts() {
        let now = Instant::now();
        let pause = Pause::Always(Duration::ZERO);
        let mut pace = Pace::new(pause, Duration::from_millis(100), 3_600 * SECOND, now);
        pace.ask();
        pass(&mut pace, now, false);
        assert_eq!(pace.wait(now), Duration::from_millis(100));
    }

    #[test]
    fn no_retry_comes_before_the_pause_is_over() {
        let now = Instant::now();
        let mut pace = Pace::new(Pause::Always(40 * SECOND), 30 * SECOND, 3_600 * SECOND, now);
        pace.ask();
        pass(&mut pace, now, false);
        assert_eq!(pace.wait(now), 40 * SECOND);
    }

    #[test]
    fn in_proportion_a_cheap_pass_is_followed_soon_and_a_dear_one_after_the_longest_pause() {
        let now = Instant::now();
        let mut pace = Pace::new(Pause::InProportion(SECOND), 30 * SECOND, 3_600 * SECOND, now);
        for (took, rest) in [
            (Duration::from_micros(50), Duration::from_micros(950)),
            (Duration::from_millis(10), Duration::from_millis(190)),
            (Duration::from_secs(2), SECOND),
        ] {
            pace.started(now);
            pace.ended(now + took, true);
            pace.ask();
            assert_eq!(pace.wait(now + took), rest, "{took:?}");
        }
    }
}
