use model::names::Protocol;

use super::*;
use crate::flows::stale::Recheck;

fn rechecks(destinations: &[&str]) -> Rechecks {
    let each = destinations.iter().map(|to| Destination::Address(to.parse().unwrap()));
    let of = each.map(|to| ((Protocol::Tcp, to), Recheck::Attempts)).collect();
    Rechecks { of, ..Rechecks::default() }
}

/// A clock, and a schedule that uses it.
struct Time {
    now: Instant,
    start: Instant,
    schedule: Schedule,
}

const A: &str = "10.96.0.1:80";
const B: &str = "10.96.0.2:80";

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

impl Time {
    fn new() -> Self {
        let now = Instant::now();
        Self { now, start: now, schedule: Schedule::default() }
    }

    fn commit(&mut self, destinations: &[&str]) {
        self.schedule.add(self.now, rechecks(destinations));
    }

    /// Advances the clock to the next scan and starts it. Returns the time in milliseconds since the start.
    fn scan(&mut self) -> Option<(u128, Scan)> {
        loop {
            match self.schedule.next(self.now) {
                Action::Scan(scan) => return Some(((self.now - self.start).as_millis(), scan)),
                Action::Wait(until) => {
                    assert!(until? > self.now, "waiting for the past would be a busy loop");
                    self.now = until?;
                }
            }
        }
    }

    fn done(&mut self, scan: Scan, took: Duration, is_ok: bool) {
        self.now += took;
        self.schedule.done(scan, self.now, took, is_ok);
    }
}

fn size(scan: &Scan) -> usize {
    let all: HashSet<_> = scan.batches.iter().flat_map(|batch| batch.rechecks.of.keys()).collect();
    all.len()
}

#[test]
fn a_change_is_scanned_for_immediately_and_again_when_nothing_is_in_flight() {
    let mut time = Time::new();
    assert!(time.scan().is_none());
    time.commit(&[A]);
    assert_eq!(time.schedule.waiting_since(), Some(time.now));
    let (when, scan) = time.scan().unwrap();
    assert_eq!((when, size(&scan)), (0, 1));
    assert_eq!(time.schedule.waiting_since(), None);
    time.done(scan, ms(1), true);
    let (when, scan) = time.scan().unwrap();
    assert_eq!((when, size(&scan)), (1_000, 1));
    time.done(scan, ms(1), true);
    assert!(time.scan().is_none(), "two scans suffice");
}

#[test]
fn scans_use_five_percent_of_a_core_at_any_rate_of_changes() {
    for cost in [1, 10, 170, 3_000] {
        let mut time = Time::new();
        let (mut spent, mut scans) = (Duration::ZERO, 0);
        while time.now - time.start < Duration::from_secs(600) {
            time.commit(&[A]);
            // Something changes again while the scan runs.
            let (_, scan) = time.scan().unwrap();
            time.commit(&[B]);
            time.done(scan, ms(cost), true);
            (spent, scans) = (spent + ms(cost), scans + 1);
        }
        let elapsed = time.now - time.start;
        let share = spent.as_secs_f64() / elapsed.as_secs_f64();
        assert!(share <= 0.0501 + ms(cost).as_secs_f64() / elapsed.as_secs_f64(), "{cost} ms: {share}");
        assert!(share >= 0.045, "{cost} ms: {share}, the budget is used");
        assert!(scans >= 9, "{scans}");
    }
}

#[test]
fn changes_during_a_scan_or_a_pause_share_the_next_scan() {
    let mut time = Time::new();
    time.commit(&[A]);
    let (_, scan) = time.scan().unwrap();
    time.commit(&[B]);
    time.done(scan, ms(170), true);
    time.commit(&["10.96.0.3:80"]);
    assert_eq!(time.schedule.waiting_since(), Some(time.start), "the oldest counts");
    let (when, scan) = time.scan().unwrap();
    assert_eq!((when, size(&scan)), (20 * 170, 3), "including the second scan for the first change");
    time.done(scan, ms(170), true);
    assert!(time.scan().is_none(), "it started long after the last change, when nothing was in flight");
}

#[test]
fn continuous_changes_do_not_delay_the_second_scan() {
    let mut time = Time::new();
    time.commit(&[A]);
    let (_, scan) = time.scan().unwrap();
    time.done(scan, ms(1), true);
    let mut last = 0;
    while last < 1_000 {
        time.now += ms(50);
        time.commit(&[B]);
        let (when, scan) = time.scan().unwrap();
        let has_first = scan.batches.iter().any(|batch| batch.rechecks == rechecks(&[A]));
        assert_eq!(has_first, when >= 1_000, "{when}");
        last = when;
        time.done(scan, ms(1), true);
    }
    let (_, scan) = time.scan().unwrap();
    assert!(
        scan.batches.iter().all(|batch| batch.rechecks == rechecks(&[B])),
        "the first change needs no further scan"
    );
}

#[test]
fn a_failed_scan_is_retried_with_exponential_backoff() {
    let mut time = Time::new();
    time.commit(&[A]);
    let mut at = Vec::new();
    for _ in 0..9 {
        let (when, scan) = time.scan().unwrap();
        assert_eq!(size(&scan), 1);
        at.push(when / 1_000);
        time.done(scan, Duration::ZERO, false);
        assert_eq!(time.schedule.waiting_since(), Some(time.start));
    }
    assert_eq!(at, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    let (_, scan) = time.scan().unwrap();
    time.done(scan, Duration::ZERO, true);
    assert!(time.scan().is_none());
    time.commit(&[A]);
    let (when, scan) = time.scan().unwrap();
    assert_eq!(when, 243_000, "a success resets the backoff");
    time.done(scan, Duration::ZERO, false);
    assert_eq!(time.scan().unwrap().0, 244_000);
}

#[test]
fn rechecks_do_not_accumulate_if_every_scan_fails() {
    let mut time = Time::new();
    let (mut destinations, mut most) = (0_u32, 0);
    while time.now - time.start < 24 * GIVE_UP_AFTER {
        // Each change is to another Service.
        destinations += 1;
        let [_, b, c, d] = destinations.to_be_bytes();
        time.commit(&[&format!("10.{b}.{c}.{d}:80")]);
        let (_, scan) = time.scan().unwrap();
        most = most.max(size(&scan));
        time.done(scan, ms(1), false);
    }
    assert!(destinations > 20 * 60, "{destinations}");
    assert!(most <= 61 + 6, "{most}: those of an hour, at one per minute, and a few more at first");
}
