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
//!
//! An endpoint with a greater weight than others lies in more slots. Ranges that hold weighted endpoints have no empty slots.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use model::routing::Endpoint;
use model::weights::Weight;

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

/// The number of slots of endpoints with weights that do not fit into [`ALWAYS_FULL`] slots: this minimum, which rounds shares to a
/// fifth of a percent, or more for many endpoints.
const MIN_WEIGHTED_SLOTS: usize = 512;
const SLOTS_PER_ENDPOINT: usize = 16;

/// Consecutive slots: what `numgen random mod COUNT offset FIRST` generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRange {
    pub count: u32,
    pub first: u32,
}

/// The slot range of lists whose clients are hashed, beyond all others. Its size is a prime number, so that any step visits all slots. With a
/// hundred endpoints, each gets 163 or 164 of them.
pub const HASH_RANGE: SlotRange = SlotRange { count: 16_381, first: 137_296 };

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

/// Assigns slots to endpoints, in proportion to their weights if there are any. An endpoint keeps the slots that it has, as far as
/// it still has a right to them, so that few elements change when one is added or removed, or changes its weight. Returns
/// `endpoints` itself, uncopied, if they lie in the order they are given in.
pub fn assign(before: &[Endpoint], endpoints: &Arc<[Endpoint]>, weights: &[Weight]) -> Arc<[Endpoint]> {
    let usable = endpoints.get(..MAX_SLOTS).unwrap_or(endpoints);
    if before.is_empty() && weights.is_empty() && usable.len() == endpoints.len() {
        return endpoints.clone();
    }
    let counts = if weights.is_empty() {
        vec![1; usable.len()]
    } else {
        slot_counts(weights.get(..usable.len()).unwrap_or(weights))
    };
    let total: usize = counts.iter().map(|count| *count as usize).sum();
    let mut left: HashMap<_, u32, RandomState> = usable.iter().map(identity).zip(counts).collect();
    let kept = before.get(..total).unwrap_or(before);
    let mut stays = |endpoint: &Endpoint| match left.get_mut(&identity(endpoint)) {
        Some(left @ 1..) => {
            *left -= 1;
            true
        }
        Some(0) | None => false,
    };
    let stays: Vec<bool> = kept.iter().map(&mut stays).collect();
    let mut added = usable.iter().flat_map(|endpoint| {
        let count = left.remove(&identity(endpoint)).unwrap_or_default();
        std::iter::repeat_n(endpoint, count as usize)
    });
    let mut slots = Vec::with_capacity(total);
    for (endpoint, stays) in kept.iter().zip(stays) {
        slots.extend(if stays { Some(endpoint) } else { added.next() });
    }
    slots.extend(added);
    if slots[..] == endpoints[..] { endpoints.clone() } else { slots.into() }
}

/// The number of slots for each of these weights, none of which is zero. If all endpoints fit into a range that has no empty slots,
/// their shares are exact. Otherwise they fill a range whose size depends only on their number, so that slots stay where they are
/// when a weight changes; a share is then rounded to slots, and at least one.
fn slot_counts(weights: &[Weight]) -> Vec<u32> {
    let divisor = weights.iter().copied().fold(0, greatest_common_divisor).max(1);
    let mut sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    if sum / u64::from(divisor) <= u64::from(ALWAYS_FULL) {
        return weights.iter().map(|weight| u32::from(weight / divisor)).collect();
    }
    let enough = weights.len().saturating_mul(SLOTS_PER_ENDPOINT).clamp(MIN_WEIGHTED_SLOTS, MAX_SLOTS);
    let mut left = slot_range(enough).map_or(0, |range| u64::from(range.count));
    let mut ascending: Vec<(Weight, usize)> = weights.iter().copied().zip(0..).collect();
    ascending.sort_unstable();
    let mut counts = vec![1; weights.len()];
    let is_small = |weight: Weight, left: u64, sum: u64| u64::from(weight) * left < sum;
    let small = ascending.iter().take_while(|(weight, _)| {
        let is_small = is_small(*weight, left, sum);
        if is_small {
            (left, sum) = (left - 1, sum - u64::from(*weight));
        }
        is_small
    });
    let small = small.count();
    let others = ascending.get(small..).unwrap_or_default();
    let mut remainders: Vec<(u64, usize)> = Vec::with_capacity(others.len());
    let mut unassigned = left;
    for (weight, at) in others {
        let exact = u64::from(*weight) * left;
        let whole = exact / sum;
        unassigned -= whole;
        remainders.push((exact % sum, *at));
        counts.get_mut(*at).into_iter().for_each(|count| *count = u32::try_from(whole).unwrap_or(u32::MAX));
    }
    // Those that lose most by rounding get what it leaves.
    remainders.sort_unstable_by_key(|remainder| Reverse(*remainder));
    for (_, at) in remainders.into_iter().take(usize::try_from(unassigned).unwrap_or(usize::MAX)) {
        counts.get_mut(at).into_iter().for_each(|count| *count += 1);
    }
    counts
}

fn greatest_common_divisor(a: Weight, b: Weight) -> Weight {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// An endpoint keeps its slot when only its locality changes.
fn identity(endpoint: &Endpoint) -> (std::net::IpAddr, model::names::Port) {
    (endpoint.ip, endpoint.port)
}

#[cfg(test)]
mod tests;
