//! Decides when contentions for the same address and port are logged. Never reads the clock: callers pass the time.
//!
//! The first few changes between the same Services are logged immediately. A Service that is deleted and created again in a
//! loop causes one line a minute from then on, with the latest change and the number of changes that were not logged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use model::names::NamespacedName;
use plan::nftables::claims::Contention;

/// Lines about one group of Services in one [`WINDOW`]: that the contention began, that it ended, and one more.
const MAX_LINES: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// Groups that are tracked at a time. A user who may create Services can make any number of them contend.
const MAX_GROUPS: usize = 16;

/// The contentions of one family that were logged within the last minute.
#[derive(Debug, Default)]
pub struct Contentions {
    groups: BTreeMap<BTreeSet<NamespacedName>, Group>,
    /// Changes between further Services, and when they are to be logged.
    further: Option<(usize, Instant)>,
}

/// What was logged about the same Services.
#[derive(Debug)]
struct Group {
    since: Instant,
    lines: usize,
    /// The last change that was not logged, and how many there were.
    held_back: Option<(Contention, usize)>,
}

/// Something to log.
#[derive(Debug, PartialEq, Eq)]
pub enum LogLine {
    /// A change, and how many before it were not logged.
    Change(Contention, usize),
    /// The number of changes between Services that are not tracked one by one.
    Further(usize),
}

impl Contentions {
    /// Adds contentions, and returns what to log now.
    pub fn add(&mut self, contentions: Vec<Contention>, now: Instant) -> Vec<LogLine> {
        let mut lines = self.due_lines(now);
        for contention in contentions {
            lines.extend(self.add_one(contention, now));
        }
        lines
    }

    /// Returns what was held back and is due.
    pub fn due_lines(&mut self, now: Instant) -> Vec<LogLine> {
        let mut lines = Vec::new();
        self.groups.retain(|_, group| {
            if now < group.since + WINDOW {
                return true;
            }
            let held_back = group.held_back.take();
            let is_active = held_back.is_some();
            lines.extend(held_back.map(|(last, count)| LogLine::Change(last, count - 1)));
            *group = Group { since: now, lines: MAX_LINES, held_back: None };
            is_active
        });
        if let Some((count, _)) = self.further.take_if(|(_, due)| *due <= now) {
            lines.push(LogLine::Further(count));
        }
        lines
    }

    /// When the first of what is held back is due.
    pub fn due(&self) -> Option<Instant> {
        let held_back = self.groups.values().filter(|group| group.held_back.is_some());
        let further = self.further.map(|(_, due)| due);
        held_back.map(|group| group.since + WINDOW).chain(further).min()
    }

    fn add_one(&mut self, contention: Contention, now: Instant) -> Option<LogLine> {
        let key: BTreeSet<_> = contention.others.iter().chain(&contention.winner).cloned().collect();
        if !self.groups.contains_key(&key) && self.groups.len() >= MAX_GROUPS {
            let (count, _) = self.further.get_or_insert((0, now + WINDOW));
            *count += 1;
            return None;
        }
        let group = self.groups.entry(key).or_insert(Group { since: now, lines: 0, held_back: None });
        if group.lines < MAX_LINES {
            group.lines += 1;
            return Some(LogLine::Change(contention, 0));
        }
        let count = group.held_back.take().map_or(0, |(_, count)| count);
        group.held_back = Some((contention, count + 1));
        None
    }
}

#[cfg(test)]
mod tests {
    use model::names::{Port, Protocol};
    use plan::nftables::claims::ContentionChange;
    use plan::nftables::elements::Frontend;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn contention(change: ContentionChange, loser: usize) -> Contention {
        let frontend = |n| Frontend {
            ip: Some([203, 0, 113, n].into()),
            protocol: Protocol::Tcp,
            port: Port::from_api(80).unwrap(),
        };
        Contention {
            change,
            winner: Some(NamespacedName::new("shop", "web")),
            others: [NamespacedName::new("attacker", &format!("web-{loser}"))].into(),
            frontends: (1..=20).map(frontend).collect(),
        }
    }

    #[test]
    fn a_loser_that_flaps_is_logged_a_few_times_and_then_once_a_minute() {
        use ContentionChange::{Began, Ended};
        let (mut contentions, start) = (Contentions::default(), Instant::now());
        let mut lines = Vec::new();
        for flap in 0..100 {
            let now = start + SECOND * flap / 25;
            lines.extend(contentions.add(vec![contention(Began, 1)], now));
            lines.extend(contentions.add(vec![contention(Ended, 1)], now));
        }
        let line = |change, before| LogLine::Change(contention(change, 1), before);
        assert_eq!(lines, [line(Began, 0), line(Ended, 0), line(Began, 0)]);
        assert_eq!(contentions.due(), Some(start + WINDOW));
        assert_eq!(contentions.due_lines(start + 59 * SECOND), []);
        assert_eq!(contentions.due_lines(start + WINDOW), [line(Ended, 196)], "the latest change");
        assert_eq!(contentions.due(), None);
        assert_eq!(contentions.add(vec![contention(Began, 1)], start + WINDOW + SECOND), []);
        assert_eq!(contentions.due_lines(start + 2 * WINDOW), [line(Began, 0)]);
        let quiet = start + 4 * WINDOW;
        assert_eq!(
            contentions.add(vec![contention(Ended, 1)], quiet),
            [line(Ended, 0)],
            "logged immediately again"
        );
    }

    #[test]
    fn any_number_of_contending_services_causes_a_bounded_number_of_lines() {
        let (mut contentions, start) = (Contentions::default(), Instant::now());
        let all = |range: std::ops::Range<usize>| {
            range.map(|loser| contention(ContentionChange::Began, loser)).collect::<Vec<_>>()
        };
        assert_eq!(contentions.add(all(0..1_000), start).len(), MAX_GROUPS);
        assert_eq!(contentions.groups.len(), MAX_GROUPS);
        assert_eq!(contentions.due(), Some(start + WINDOW));
        assert_eq!(contentions.due_lines(start + WINDOW), [LogLine::Further(1_000 - MAX_GROUPS)]);
        assert_eq!(contentions.due(), None);
        assert!(contentions.groups.is_empty());
    }
}
