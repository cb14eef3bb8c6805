//! The rate limiter: decides when the next sync is due. Never sleeps, never asks what time it is.
//!
//! Requests that come while a sync runs or right after one become one sync; a failed sync is repeated, a quiet hour is
//! ended by one. Until the first one has succeeded, failures are repeated within seconds: the node may have no rules at all,
//! and what is in the way at a start (the process before, a lock) often goes by itself. A sync that found the kernel in
//! another state than it assumed is repeated at once, as part of the same sync.

use std::time::{Duration, Instant};

/// When one family syncs.
#[derive(Debug)]
pub struct Pace {
    pause: Pause,
    /// After a sync that failed.
    retry: Duration,
    /// After a sync that did not.
    max: Duration,
    asked: bool,
    /// When the running sync began, or the first attempt of one that is repeated at once.
    started: Option<Instant>,
    /// The pause before the next attempt that is made at once.
    next_attempt: Duration,
    last: Option<Last>,
    /// The pause after the next failure, until a sync has succeeded.
    first_retry: Option<Duration>,
    /// When we began to wait for the first sync that comes to an end.
    began: Instant,
}

/// How long to rest from the end of one sync to the start of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    Always(Duration),
    /// So long that syncs take a twentieth of the time, and no longer than this: a lone change is served at once, a
    /// storm becomes few syncs.
    InProportion(Duration),
}

/// What became of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Succeeded,
    Failed(Retry),
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// What the sync assumed of the kernel was not so, or changed meanwhile: attempted again at once, from what the kernel
    /// holds then.
    Stale,
    /// Another process has what we need, and may be about to end: attempted again at once, but not for long.
    Occupied,
    Later,
}

impl Retry {
    /// For how long a sync is attempted again at once.
    fn at_once_for(self) -> Duration {
        match self {
            // Another process that writes iptables rules may need a thousand transactions.
            Self::Stale => Duration::from_secs(10),
            Self::Occupied => Duration::from_secs(2),
            Self::Later => Duration::ZERO,
        }
    }
}

/// The sync before.
#[derive(Clone, Copy, Debug)]
struct Last {
    ended: Instant,
    took: Duration,
    next: Next,
}

/// What follows a sync if nothing asks for one before.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The same sync again, whatever the pause between syncs is.
    Attempt(Duration),
    Retry(Duration),
    Quiet,
}

impl Pace {
    /// The first pause and the longest one after a failure, as long as no sync has succeeded.
    const FIRST_RETRIES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(4)];
    /// The first pause and the longest one between attempts of the same sync.
    const ATTEMPTS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

    pub fn new(pause: Pause, retry: Duration, max: Duration, now: Instant) -> Self {
        let [first_retry, _] = Self::FIRST_RETRIES.map(Some);
        let [next_attempt, _] = Self::ATTEMPTS;
        Self {
            pause,
            retry,
            max,
            asked: false,
            started: None,
            next_attempt,
            last: None,
            first_retry,
            began: now,
        }
    }

    /// Something changed.
    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// A sync begins: what is asked for from now on is for the next one.
    pub fn started(&mut self, now: Instant) {
        self.asked = false;
        self.began = now;
        let is_attempt = self.last.is_some_and(|last| matches!(last.next, Next::Attempt(_)));
        self.started = self.started.filter(|_| is_attempt).or(Some(now));
    }

    /// Returns how long the sync took with all its attempts; none if there is another attempt to come.
    pub fn ended(&mut self, now: Instant, ended: Ended) -> Option<Duration> {
        let took = self.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        let [shortest, longest] = Self::ATTEMPTS;
        if let Ended::Failed(retry) = ended
            && took < retry.at_once_for()
        {
            self.last = Some(Last { ended: now, took, next: Next::Attempt(self.next_attempt) });
            self.next_attempt = (self.next_attempt * 2).min(longest);
            return None;
        }
        self.started = None;
        self.next_attempt = shortest;
        let succeeded = ended == Ended::Succeeded;
        let [_, longest] = Self::FIRST_RETRIES;
        let retry = self.first_retry.map_or(self.retry, |first| first.min(self.retry));
        self.first_retry = self.first_retry.filter(|_| !succeeded).map(|pause| (pause * 2).min(longest));
        let next = if succeeded { Next::Quiet } else { Next::Retry(retry) };
        self.last = Some(Last { ended: now, took, next });
        Some(took)
    }

    /// How long after its end a sync that failed is repeated, if nothing asks for one before.
    pub fn retry(&self) -> Option<Duration> {
        match self.last?.next {
            Next::Attempt(pause) | Next::Retry(pause) => Some(pause),
            Next::Quiet => None,
        }
    }

    /// How long to wait until the next sync, if nothing asks for one in the meantime.
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
        let pause = match (self.asked, last.next) {
            (_, Next::Attempt(pause)) => return last.ended + pause,
            (true, Next::Retry(_) | Next::Quiet) => rest,
            (false, Next::Retry(retry)) => retry.min(self.max),
            (false, Next::Quiet) => self.max,
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

    fn sync(pace: &mut Pace, at: Instant, succeeds: bool) {
        assert_eq!(pace.wait(at), Duration::ZERO, "due");
        pace.started(at);
        let ended = if succeeds { Ended::Succeeded } else { Ended::Failed(Retry::Later) };
        assert_eq!(pace.ended(at, ended), Some(Duration::ZERO));
    }

    #[test]
    fn the_first_request_is_served_at_once_and_a_quiet_hour_ends_with_a_sync() {
        let (mut pace, t) = pace();
        assert_eq!(pace.wait(t), 3_600 * SECOND);
        pace.ask();
        sync(&mut pace, t, true);
        assert_eq!(pace.wait(t), 3_600 * SECOND);
    }

    #[test]
    fn a_sync_that_cannot_begin_yet_is_not_tried_again_until_something_asks() {
        let (mut pace, t) = pace();
        let later = t + 3_600 * SECOND;
        pace.ask();
        for now in [t, later] {
            assert_eq!(pace.wait(now), Duration::ZERO);
            pace.started(now);
            assert_eq!(pace.wait(now), 3_600 * SECOND);
        }
        assert_eq!(pace.ended(later, Ended::Succeeded), Some(Duration::ZERO), "nor does the wait count");
    }

    #[test]
    fn many_requests_after_a_sync_are_one_sync_after_the_pause() {
        let (mut pace, t) = pace();
        pace.ask();
        sync(&mut pace, t, true);
        for _ in 0..100 {
            pace.ask();
        }
        assert_eq!(pace.wait(t), SECOND);
        sync(&mut pace, t + SECOND, true);
        assert_eq!(pace.wait(t + SECOND), 3_600 * SECOND);
    }

    #[test]
    fn a_request_during_a_sync_is_for_the_next_one_and_the_pause_counts_from_the_end() {
        let (mut pace, t) = pace();
        pace.ask();
        pace.started(t);
        pace.ask();
        pace.ended(t + 5 * SECOND, Ended::Succeeded);
        assert_eq!(pace.wait(t + 5 * SECOND), SECOND);
    }

    #[test]
    fn a_failure_is_repeated_and_a_success_ends_that() {
        let (mut pace, start) = pace();
        pace.ask();
        sync(&mut pace, start, true);
        pace.ask();
        let t = start + SECOND;
        sync(&mut pace, t, false);
        assert_eq!(pace.wait(t), 30 * SECOND);
        sync(&mut pace, t + 30 * SECOND, false);
        assert_eq!(pace.wait(t + 30 * SECOND), 30 * SECOND);
        pace.ask();
        assert_eq!(pace.wait(t + 30 * SECOND), SECOND, "a request does not wait for the retry");
        sync(&mut pace, t + 31 * SECOND, true);
        assert_eq!(pace.wait(t + 31 * SECOND), 3_600 * SECOND, "nor is there one left after it");
    }

    #[test]
    fn failures_before_the_first_success_are_repeated_within_seconds() {
        let mut now = Instant::now();
        let mut pace = Pace::new(Pause::Always(Duration::ZERO), 30 * SECOND, 3_600 * SECOND, now);
        pace.ask();
        let pauses = [250, 500, 1_000, 2_000, 4_000, 4_000].map(Duration::from_millis);
        for pause in pauses {
            sync(&mut pace, now, false);
            assert_eq!((pace.wait(now), pace.retry()), (pause, Some(pause)));
            now += pause;
        }
        sync(&mut pace, now, true);
        assert_eq!((pace.wait(now), pace.retry()), (3_600 * SECOND, None));
        pace.ask();
        sync(&mut pace, now, false);
        assert_eq!(pace.wait(now), 30 * SECOND, "from then on as upstream does");
    }

    #[test]
    fn a_sync_period_shorter_than_the_first_retries_counts() {
        let now = Instant::now();
        let pause = Pause::Always(Duration::ZERO);
        let mut pace = Pace::new(pause, Duration::from_millis(100), 3_600 * SECOND, now);
        pace.ask();
        sync(&mut pace, now, false);
        assert_eq!(pace.wait(now), Duration::from_millis(100));
    }

    #[test]
    fn no_retry_comes_before_the_pause_is_over() {
        let now = Instant::now();
        let mut pace = Pace::new(Pause::Always(40 * SECOND), 30 * SECOND, 3_600 * SECOND, now);
        pace.ask();
        sync(&mut pace, now, false);
        assert_eq!(pace.wait(now), 40 * SECOND);
    }

    #[test]
    fn in_proportion_a_cheap_sync_is_followed_soon_and_a_costly_one_after_the_longest_pause() {
        let now = Instant::now();
        let mut pace = Pace::new(Pause::InProportion(SECOND), 30 * SECOND, 3_600 * SECOND, now);
        for (took, rest) in [
            (Duration::from_micros(50), Duration::from_micros(950)),
            (Duration::from_millis(10), Duration::from_millis(190)),
            (Duration::from_secs(2), SECOND),
        ] {
            pace.started(now);
            pace.ended(now + took, Ended::Succeeded);
            pace.ask();
            assert_eq!(pace.wait(now + took), rest, "{took:?}");
        }
    }

    #[test]
    fn a_sync_that_assumed_what_was_not_so_is_attempted_again_at_once_and_then_as_any_other() {
        let (mut pace, start) = pace();
        pace.ask();
        sync(&mut pace, start, true);
        for (retry, seconds) in [(Retry::Stale, 10), (Retry::Occupied, 2), (Retry::Stale, 10)] {
            pace.ask();
            let mut now = start + 100 * SECOND;
            let (began, mut pauses) = (now, Vec::new());
            pace.started(now);
            while pace.ended(now, Ended::Failed(retry)).is_none() {
                pace.ask();
                let pause = pace.wait(now);
                pauses.push(pause.as_millis());
                now += pause;
                pace.started(now);
            }
            assert_eq!(
                pauses[..9],
                [1, 2, 4, 8, 16, 32, 64, 100, 100],
                "whatever the pause between syncs is"
            );
            assert!((seconds * SECOND..(seconds + 1) * SECOND).contains(&(now - began)), "{:?}", now - began);
            assert_eq!(pace.wait(now), 30 * SECOND, "it has failed");
        }
    }

    #[test]
    fn a_sync_takes_as_long_as_all_its_attempts() {
        let (mut pace, start) = pace();
        pace.ask();
        pace.started(start);
        assert_eq!(pace.ended(start + SECOND, Ended::Failed(Retry::Stale)), None);
        pace.started(start + 2 * SECOND);
        assert_eq!(pace.ended(start + 3 * SECOND, Ended::Succeeded), Some(3 * SECOND));
        assert_eq!((pace.wait(start + 3 * SECOND), pace.retry()), (3_600 * SECOND, None));
        pace.ask();
        pace.started(start + 10 * SECOND);
        assert_eq!(pace.ended(start + 11 * SECOND, Ended::Failed(Retry::Stale)), None);
        assert_eq!(pace.wait(start + 11 * SECOND), Duration::from_millis(1), "the first pause again");
    }
}
