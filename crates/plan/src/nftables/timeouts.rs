//! The timeouts of session affinity.
//!
//! The kernel accepts a timeout only as a constant of a rule, so each timeout in use has chains of its own, and every commit in
//! the network namespace walks all chains. A Service may set any number of seconds up to a day; with a chain for each of them,
//! users who create Services could slow down every commit. So timeouts are rounded up to one of a few hundred, which include
//! the usual ones: every second of a minute, every minute of an hour, every quarter of an hour of a day.

use std::collections::BTreeSet;

/// The maximum timeout in seconds, and the step: up to this maximum, timeouts are multiples of the step.
const STEPS: [(u32, u32); 4] = [(60, 1), (300, 5), (3_600, 60), (86_400, 900)];

/// The timeout that the program uses for a configured one: the same, or up to a quarter longer.
pub fn rounded(seconds: u32) -> u32 {
    let step = STEPS.into_iter().find(|(most, _)| seconds <= *most).map_or(900, |(_, step)| step);
    seconds.next_multiple_of(step)
}

/// Every value that [`rounded`] returns.
pub fn all() -> BTreeSet<u32> {
    let (steps, starts) = (STEPS.into_iter(), [0].into_iter().chain(STEPS.map(|(most, _)| most)));
    starts.zip(steps).flat_map(|(after, (most, step))| (after + step..=most).step_by(step as usize)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_timeouts_are_not_rounded() {
        for seconds in [1, 30, 59, 60, 90, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 43_200, 86_400] {
            assert_eq!(rounded(seconds), seconds);
        }
        assert_eq!([61, 301, 3_601, 86_399].map(rounded), [65, 360, 4_500, 86_400]);
    }

    #[test]
    fn there_are_few_timeouts_and_none_is_shorter_or_much_longer_than_configured() {
        assert_eq!(all(), (1..=86_400).map(rounded).collect());
        assert_eq!(all().len(), 255);
        for seconds in 1..=86_400 {
            let got = rounded(seconds);
            assert!(got >= seconds && got - seconds <= seconds / 4, "{seconds}: {got}");
            assert_eq!(rounded(got), got);
        }
    }
}
