//! Which slot each endpoint of an endpoint list lies in, so that a random number finds one of them.
//!
//! A rule can only generate a random number below a constant. So there are a few fixed sizes of slot ranges, each with a chain of
//! its own: exactly as many slots as endpoints for up to sixteen endpoints, and the next larger size beyond that. Each size has
//! slot numbers of its own, so that a random number for one range never hits a slot of another:
//!
//! ```text
//!   size 1: 0    size 2: 1 2    size 3: 3 4 5    ...    size 16: 120 .. 135    size 24: 136 .. 159    ...
//! ```
//!
//! A range of 24 slots may hold twenty endpoints, in its first twenty slots. If a random number hits an empty slot, the next
//! rule of the chain tries another one; the last rule takes it below the next smaller size, where no slot is empty. The first
//! sixteen slots are then slightly more likely than the others: by 0.6 percent here, by less than four at worst.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::RandomState;
use model::routing::Endpoint;

/// The sizes of slot ranges.
#[rustfmt::skip]
const SIZES: [u32; 36] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
    24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    8192, 16384, 32768, 65536,
];

/// Ranges of up to this size have no empty slots, so that the first random number hits.
const ALWAYS_FULL: u32 = 16;

/// How many random numbers are tried in a range that may have empty slots, before the one that cannot miss.
const TRIES: usize = 3;

/// The maximum number of endpoints of a list; further ones get no traffic.
pub const MAX_SLOTS: usize = 65_536;

/// Consecutive slots: what `numgen random mod COUNT offset FIRST` generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRange {
    pub count: u32,
    pub first: u32,
}

/// The ranges that the rules for a slot range take random slots from, in order, until a slot has an endpoint.
pub fn random_slots(range: SlotRange) -> Vec<SlotRange> {
    if range.count <= ALWAYS_FULL {
        return vec![range];
    }
    let smaller = SIZES.into_iter().rev().find(|size| *size < range.count);
    let without_gaps = smaller.map(|count| SlotRange { count, first: range.first });
    [range; TRIES].into_iter().chain(without_gaps).collect()
}

/// The slot range for this number of endpoints; `None` without endpoints, or with too many.
pub fn slot_range(endpoints: usize) -> Option<SlotRange> {
    (endpoints > 0).then(|| slot_ranges().find(|range| range.count as usize >= endpoints)).flatten()
}

/// The probability that a connection goes to each of n endpoints, in the order of their slots.
pub fn shares(endpoints: usize) -> Vec<f64> {
    let Some(range) = slot_range(endpoints) else { return Vec::new() };
    let mut shares = vec![0.0; endpoints];
    let mut left = 1.0;
    for try_in in random_slots(range) {
        let each = left / f64::from(try_in.count);
        let mut hit = 0.0;
        for share in shares.iter_mut().take(try_in.count as usize) {
            *share += each;
            hit += each;
        }
        left -= hit;
    }
    shares
}

/// All slot ranges, the smallest first.
pub fn slot_ranges() -> impl Iterator<Item = SlotRange> {
    SIZES.into_iter().scan(0, |next, count| {
        let first = *next;
        *next += count;
        Some(SlotRange { count, first })
    })
}

/// Assigns slots to endpoints. An endpoint that has a slot keeps it, so that few elements change when one is added or
/// removed. Returns `endpoints` itself, uncopied, if they lie in the order they are given in.
pub fn assign(before: &[Endpoint], endpoints: &Arc<[Endpoint]>) -> Arc<[Endpoint]> {
    let usable = endpoints.get(..MAX_SLOTS).unwrap_or(endpoints);
    if before.is_empty() && usable.len() == endpoints.len() {
        return endpoints.clone();
    }
    let kept: Vec<Endpoint> = before.iter().take(usable.len()).copied().collect();
    let known: HashSet<_, RandomState> = usable.iter().map(identity).collect();
    let mut assigned: HashSet<_, RandomState> = HashSet::default();
    let stays: Vec<bool> =
        kept.iter().map(|e| known.contains(&identity(e)) && assigned.insert(identity(e))).collect();
    let mut added = usable.iter().filter(|e| !assigned.contains(&identity(e)));
    let mut slots = Vec::with_capacity(usable.len());
    for (endpoint, stays) in kept.iter().zip(stays) {
        slots.extend(if stays { Some(endpoint) } else { added.next() });
    }
    slots.extend(added);
    if slots[..] == endpoints[..] { endpoints.clone() } else { slots.into() }
}

/// An endpoint keeps its slot when only its locality changes.
fn identity(endpoint: &Endpoint) -> (std::net::IpAddr, model::names::Port) {
    (endpoint.ip, endpoint.port)
}

#[cfg(test)]
mod tests;
