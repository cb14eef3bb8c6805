//! The rate limiter: decides when the next sync of a family is due. It never sleeps and never reads the clock: callers pass the
//! time.
//!
//! Requests that arrive during a sync or right after it are merged into one sync. A failed sync is retried, and a sync runs at
//! the latest when the maximum interval has passed. Until the first sync has succeeded, failures are retried within a second: the
//! node may have no rules at all, and what prevents a sync at startup (the previous process, a lock) often goes away by itself. A
//! sync that found the kernel in another state than it assumed is attempted again immediately, as part of the same sync.

use std::time::{Duration, Instant};

/// Decides when one family syncs.
#[derive(Debug)]
pub struct RateLimiter {
    min_interval: MinInterval,
    /// From the end of a failed sync to its retry.
    retry_interval: Duration,
    /// From the end of a successful sync to the next one, if nothing requests a sync before.
    max_interval: Duration,
    is_requested: bool,
    /// When the running sync began: its first attempt, if it has several. `None` between syncs.
    sync_started: Option<Instant>,
    /// When the first attempt of the running sync failed. `None` before that, and between syncs.
    first_failed: Option<Instant>,
    /// The delay before the next attempt of the same sync.
    attempt_delay: Duration,
    last_attempt: Option<Attempt>,
    /// The delay before the next retry; `None` once a sync has succeeded.
    startup_retry: Option<Duration>,
    /// Since when the first sync is awaited. Unused once an attempt has ended.
    waiting_since: Instant,
}

/// The minimum time from the end of one sync to the start of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinInterval {
    Fixed(Duration),
    /// Long enough that syncs take at most a twentieth of the time, but no longer than this: a single change is served
    /// immediately, and a burst of changes becomes few syncs.
    Proportional(Duration),
}

/// What follows a failed attempt at a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// Another attempt of the same sync, immediately.
    AnotherAttempt,
    /// The sync has failed, after this time with all its attempts.
    SyncFailed(Duration),
}

/// When to retry after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// What the sync assumed about the kernel was wrong, or has changed meanwhile: attempt it again immediately, from what the
    /// kernel holds then.
    Stale,
    /// Another process holds what the sync needs, and may be about to end: attempt it again immediately, but not for long.
    Busy,
    Later,
}

impl Retry {
    /// For how long after its first failure a sync is attempted again. An attempt may take long itself, if the kernel has to load
    /// modules or to list large sets.
    fn attempt_period(self) -> Duration {
        match self {
            // Another process that writes iptables rules may need a thousand transactions.
            Self::Stale => Duration::from_secs(10),
            Self::Busy => Duration::from_secs(2),
            Self::Later => Duration::ZERO,
        }
    }
}

/// An attempt at a sync that has ended.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    ended: Instant,
    /// Since the start of the sync.
    took: Duration,
    next: Next,
}

/// What follows an attempt if nothing requests a sync before.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// Another attempt of the same sync after this delay, regardless of the minimum interval.
    Attempt(Duration),
    /// The sync has failed, and is retried after this delay.
    Retry(Duration),
    /// The sync has succeeded.
    Idle,
}

impl RateLimiter {
    /// The first and the longest delay of retries, until a sync has succeeded.
    const STARTUP_RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];
    /// The first and the longest delay between attempts of the same sync.
    const ATTEMPT_DELAYS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

    pub fn new(
        min_interval: MinInterval,
        retry_interval: Duration,
        max_interval: Duration,
        now: Instant,
    ) -> Self {
        let [startup_retry, _] = Self::STARTUP_RETRY_DELAYS.map(Some);
        let [attempt_delay, _] = Self::ATTEMPT_DELAYS;
        Self {
            min_interval,
            retry_interval,
            max_interval,
            is_requested: false,
            sync_started: None,
            first_failed: None,
            attempt_delay,
            last_attempt: None,
            startup_retry,
            waiting_since: now,
        }
    }

    /// Requests a sync, since something changed.
    pub fn request(&mut self) {
        self.is_requested = true;
    }

    /// An attempt begins: later requests are for the next sync.
    pub fn started(&mut self, now: Instant) {
        self.is_requested = false;
        self.waiting_since = now;
        let is_same_sync = self.last_attempt.is_some_and(|last| matches!(last.next, Next::Attempt(_)));
        self.sync_started = self.sync_started.filter(|_| is_same_sync).or(Some(now));
    }

    /// An attempt succeeded, which ends the sync. Returns how long the sync took with all its attempts.
    pub fn succeeded(&mut self, now: Instant) -> Duration {
        let took = self.sync_duration(now);
        self.startup_retry = None;
        self.end_sync(Attempt { ended: now, took, next: Next::Idle });
        took
    }

    /// An attempt failed.
    pub fn failed(&mut self, now: Instant, retry: Retry) -> AfterFailure {
        let took = self.sync_duration(now);
        if now.saturating_duration_since(*self.first_failed.get_or_insert(now)) < retry.attempt_period() {
            let [_, longest] = Self::ATTEMPT_DELAYS;
            self.last_attempt = Some(Attempt { ended: now, took, next: Next::Attempt(self.attempt_delay) });
            self.attempt_delay = (self.attempt_delay * 2).min(longest);
            return AfterFailure::AnotherAttempt;
        }
        let [_, longest] = Self::STARTUP_RETRY_DELAYS;
        let delay = self.startup_retry.map_or(self.retry_interval, |delay| delay.min(self.retry_interval));
        self.startup_retry = self.startup_retry.map(|delay| (delay * 2).min(longest));
        self.end_sync(Attempt { ended: now, took, next: Next::Retry(delay) });
        AfterFailure::SyncFailed(took)
    }

    /// For how long the running sync has lasted.
    fn sync_duration(&self, now: Instant) -> Duration {
        self.sync_started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started))
    }

    fn end_sync(&mut self, last_attempt: Attempt) {
        let [attempt_delay, _] = Self::ATTEMPT_DELAYS;
        self.sync_started = None;
        self.first_failed = None;
        self.attempt_delay = attempt_delay;
        self.last_attempt = Some(last_attempt);
    }

    /// How long after its end a failed sync is retried, if nothing requests one before; `None` if the last sync succeeded.
    pub fn retry_delay(&self) -> Option<Duration> {
        match self.last_attempt?.next {
            Next::Attempt(delay) | Next::Retry(delay) => Some(delay),
            Next::Idle => None,
        }
    }

    /// The time until the next sync is due, if nothing requests one before.
    pub fn time_until_due(&self, now: Instant) -> Duration {
        self.due().saturating_duration_since(now)
    }

    fn due(&self) -> Instant {
        let Some(last) = self.last_attempt else {
            let delay = if self.is_requested { Duration::ZERO } else { self.max_interval };
            return self.waiting_since + delay;
        };
        let min_interval = match self.min_interval {
            MinInterval::Fixed(interval) => interval,
            MinInterval::Proportional(longest) => last.took.saturating_mul(19).min(longest),
        };
        let delay = match (self.is_requested, last.next) {
            (_, Next::Attempt(delay)) => return last.ended + delay,
            (true, Next::Retry(_) | Next::Idle) => min_interval,
            (false, Next::Retry(delay)) => delay.min(self.max_interval),
            (false, Next::Idle) => self.max_interval,
        };
        last.ended + delay.max(min_interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A limiter with a minimum interval of a second, a retry interval of thirty and a maximum of an hour, and its start time.
    fn limiter() -> (RateLimiter, Instant) {
        let now = Instant::now();
        (RateLimiter::new(MinInterval::Fixed(SECOND), 30 * SECOND, 3_600 * SECOND, now), now)
    }

    fn sync(limiter: &mut RateLimiter, at: Instant, succeeds: bool) {
        assert_eq!(limiter.time_until_due(at), Duration::ZERO, "due");
        limiter.started(at);
        if succeeds {
            assert_eq!(limiter.succeeded(at), Duration::ZERO);
        } else {
            assert_eq!(limiter.failed(at, Retry::Later), AfterFailure::SyncFailed(Duration::ZERO));
        }
    }

    #[test]
    fn the_first_request_is_due_immediately_and_an_hour_without_requests_ends_with_a_sync() {
        let (mut limiter, t) = limiter();
        assert_eq!(limiter.time_until_due(t), 3_600 * SECOND);
        limiter.request();
        sync(&mut limiter, t, true);
        assert_eq!(limiter.time_until_due(t), 3_600 * SECOND);
    }

    #[test]
    fn a_sync_that_cannot_run_yet_is_not_retried_until_the_next_request() {
        let (mut limiter, t) = limiter();
        let later = t + 3_600 * SECOND;
        limiter.request();
        for now in [t, later] {
            assert_eq!(limiter.time_until_due(now), Duration::ZERO);
            limiter.started(now);
            assert_eq!(limiter.time_until_due(now), 3_600 * SECOND);
        }
        assert_eq!(limiter.succeeded(later), Duration::ZERO, "the wait before the sync does not count");
    }

    #[test]
    fn many_requests_after_a_sync_are_merged_into_one_after_the_minimum_interval() {
        let (mut limiter, t) = limiter();
        limiter.request();
        sync(&mut limiter, t, true);
        for _ in 0..100 {
            limiter.request();
        }
        assert_eq!(limiter.time_until_due(t), SECOND);
        sync(&mut limiter, t + SECOND, true);
        assert_eq!(limiter.time_until_due(t + SECOND), 3_600 * SECOND);
    }

    #[test]
    fn a_request_during_a_sync_is_for_the_next_one_and_the_interval_counts_from_the_end() {
        let (mut limiter, t) = limiter();
        limiter.request();
        limiter.started(t);
        limiter.request();
        limiter.succeeded(t + 5 * SECOND);
        assert_eq!(limiter.time_until_due(t + 5 * SECOND), SECOND);
    }

    #[test]
    fn a_failed_sync_is_retried_until_one_succeeds() {
        let (mut limiter, start) = limiter();
        limiter.request();
        sync(&mut limiter, start, true);
        limiter.request();
        let t = start + SECOND;
        sync(&mut limiter, t, false);
        assert_eq!(limiter.time_until_due(t), 30 * SECOND);
        sync(&mut limiter, t + 30 * SECOND, false);
        assert_eq!(limiter.time_until_due(t + 30 * SECOND), 30 * SECOND);
        limiter.request();
        assert_eq!(limiter.time_until_due(t + 30 * SECOND), SECOND, "a request does not wait for the retry");
        sync(&mut limiter, t + 31 * SECOND, true);
        assert_eq!(limiter.time_until_due(t + 31 * SECOND), 3_600 * SECOND, "no retry is left after it");
    }

    #[test]
    fn failures_before_the_first_success_are_retried_within_a_second() {
        let mut now = Instant::now();
        let mut limiter =
            RateLimiter::new(MinInterval::Fixed(Duration::ZERO), 30 * SECOND, 3_600 * SECOND, now);
        limiter.request();
        let delays = [250, 500, 1_000, 1_000].map(Duration::from_millis);
        for delay in delays {
            sync(&mut limiter, now, false);
            assert_eq!((limiter.time_until_due(now), limiter.retry_delay()), (delay, Some(delay)));
            now += delay;
        }
        sync(&mut limiter, now, true);
        assert_eq!((limiter.time_until_due(now), limiter.retry_delay()), (3_600 * SECOND, None));
        limiter.request();
        sync(&mut limiter, now, false);
        assert_eq!(limiter.time_until_due(now), 30 * SECOND, "afterwards as upstream does");
    }

    #[test]
    fn a_sync_period_shorter_than_the_startup_delays_takes_precedence() {
        let now = Instant::now();
        let min_interval = MinInterval::Fixed(Duration::ZERO);
        let mut limiter = RateLimiter::new(min_interval, Duration::from_millis(100), 3_600 * SECOND, now);
        limiter.request();
        sync(&mut limiter, now, false);
        assert_eq!(limiter.time_until_due(now), Duration::from_millis(100));
    }

    #[test]
    fn no_retry_comes_before_the_minimum_interval_has_passed() {
        let now = Instant::now();
        let mut limiter = RateLimiter::new(MinInterval::Fixed(40 * SECOND), 30 * SECOND, 3_600 * SECOND, now);
        limiter.request();
        sync(&mut limiter, now, false);
        assert_eq!(limiter.time_until_due(now), 40 * SECOND);
    }

    #[test]
    fn a_proportional_interval_is_short_after_a_cheap_sync_and_bounded_after_a_costly_one() {
        let now = Instant::now();
        let mut limiter =
            RateLimiter::new(MinInterval::Proportional(SECOND), 30 * SECOND, 3_600 * SECOND, now);
        for (took, interval) in [
            (Duration::from_micros(50), Duration::from_micros(950)),
            (Duration::from_millis(10), Duration::from_millis(190)),
            (Duration::from_secs(2), SECOND),
        ] {
            limiter.started(now);
            limiter.succeeded(now + took);
            limiter.request();
            assert_eq!(limiter.time_until_due(now + took), interval, "{took:?}");
        }
    }

    #[test]
    fn a_stale_or_busy_sync_is_attempted_again_immediately_and_then_retried_like_any_other() {
        let (mut limiter, start) = limiter();
        limiter.request();
        sync(&mut limiter, start, true);
        for (retry, seconds) in [(Retry::Stale, 10), (Retry::Busy, 2), (Retry::Stale, 10)] {
            limiter.request();
            let mut now = start + 100 * SECOND;
            let (began, mut delays) = (now, Vec::new());
            limiter.started(now);
            while limiter.failed(now, retry) == AfterFailure::AnotherAttempt {
                limiter.request();
                let delay = limiter.time_until_due(now);
                delays.push(delay.as_millis());
                now += delay;
                limiter.started(now);
            }
            assert_eq!(delays[..9], [1, 2, 4, 8, 16, 32, 64, 100, 100], "regardless of the minimum interval");
            assert!((seconds * SECOND..(seconds + 1) * SECOND).contains(&(now - began)), "{:?}", now - began);
            assert_eq!(limiter.time_until_due(now), 30 * SECOND, "it has failed");
        }
    }

    #[test]
    fn a_stale_sync_is_attempted_again_however_long_its_first_attempt_took() {
        let (mut limiter, start) = limiter();
        limiter.request();
        limiter.started(start);
        let now = start + 15 * SECOND;
        assert_eq!(limiter.failed(now, Retry::Stale), AfterFailure::AnotherAttempt);
        assert_eq!(limiter.time_until_due(now), Duration::from_millis(1));
        limiter.started(now);
        let now = now + 15 * SECOND;
        assert_eq!(limiter.failed(now, Retry::Stale), AfterFailure::SyncFailed(30 * SECOND));
        limiter.started(now);
        assert_eq!(limiter.failed(now, Retry::Stale), AfterFailure::AnotherAttempt, "a new sync");
    }

    #[test]
    fn a_sync_takes_as_long_as_all_its_attempts() {
        let (mut limiter, start) = limiter();
        limiter.request();
        limiter.started(start);
        assert_eq!(limiter.failed(start + SECOND, Retry::Stale), AfterFailure::AnotherAttempt);
        limiter.started(start + 2 * SECOND);
        assert_eq!(limiter.succeeded(start + 3 * SECOND), 3 * SECOND);
        assert_eq!(
            (limiter.time_until_due(start + 3 * SECOND), limiter.retry_delay()),
            (3_600 * SECOND, None)
        );
        limiter.request();
        limiter.started(start + 10 * SECOND);
        assert_eq!(limiter.failed(start + 11 * SECOND, Retry::Stale), AfterFailure::AnotherAttempt);
        assert_eq!(
            limiter.time_until_due(start + 11 * SECOND),
            Duration::from_millis(1),
            "the first delay again"
        );
    }
}
