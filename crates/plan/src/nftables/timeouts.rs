//! For how long a client is remembered.
//!
//! The kernel takes a timeout only as a constant of a rule, so each timeout in use has chains of its own, and every commit
//! in the namespace walks all chains. Services may ask for any second of a day: were each taken as it is, those who may create
//! Services could slow all others down. It is rounded up to one of a few hundred instead. What people ask for is among
//! them: every second of a minute, every minute of an hour, every quarter of an hour of a day.

use std::collections::BTreeSet;

/// Up to so many seconds, a timeout is a multiple of so many.
const STEPS: [(u32, u32); 4] = [(60, 1), (300, 5), (3_600, 60), (86_400, 900)];

/// The timeout that a service port gets which asks for that one: the same, or up to a quarter longer.
pub fn rounded(seconds: u32) -> u32 {
    let step = STEPS.into_iter().find(|(most, _)| seconds <= *most).map_or(900, |(_, step)| step);
    seconds.next_multiple_of(step)
}

/// Every timeout that a service port may get.
pub fn all() -> BTreeSet<u32> {
    let (steps, starts) = (STEPS.into_iter(), [0].into_iter().chain(STEPS.map(|(most, _)| most)));
    starts.zip(steps).flat_map(|(after, (most, step))| (after + step..=most).step_by(step as usize)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_ask_for_is_what_they_get() {
        for seconds in [1, 30, 59, 60, 90, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 43_200, 86_400] {
            assert_eq!(rounded(seconds), seconds);
        }
        assert_eq!([61, 301, 3_601, 86_399].map(rounded), [65, 360, 4_500, 86_400]);
    }

    #[test]
    fn there_are_few_and_none_is_shorter_or_much_longer_than_was_asked_for() {
        assert_eq!(all(), (1..=86_400).map(rounded).collect());
        assert_eq!(all().len(), 255);
        for seconds in 1..=86_400 {
            let got = rounded(seconds);
            assert!(got >= seconds && got - seconds <= seconds / 4, "{seconds}: {got}");
            assert_eq!(rounded(got), got);
        }
    }
}
