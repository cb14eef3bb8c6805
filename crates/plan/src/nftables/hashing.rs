//! Consistent hashing of clients onto the endpoints of a list.
//!
//! A rule hashes the client to one of the slots of [`HASH_RANGE`], all of which have an endpoint. They are filled as in Google's Maglev
//! (Eisenbud et al., NSDI 2016): each endpoint has a preference for every slot, by hashes of its address, and the endpoints take turns
//! to claim the next slot that they prefer and that is still free. So all nodes with the same endpoints have the same table, endpoints
//! get equal shares, and few slots change hands when one endpoint goes or comes.

use std::net::IpAddr;

use model::routing::Endpoint;
use model::weights::Weight;

use crate::nftables::slots::HASH_RANGE;

/// The seed for the hash of clients. The other seeds are for the preferences of endpoints.
pub const CLIENT_SEED: u32 = 0x736c_7569;
const START_SEED: u32 = 1;
const STEP_SEED: u32 = 2;

/// The endpoint in each slot. Endpoints without weights get equal shares. Beyond the number of slots, endpoints get none.
pub fn fill(endpoints: &[Endpoint], weights: &[Weight]) -> Vec<Endpoint> {
    let size = HASH_RANGE.count as usize;
    let mut free = vec![true; size];
    let mut slots: Vec<Option<Endpoint>> = vec![None; size];
    let greatest = weights.iter().copied().max().unwrap_or(1);
    let weights = weights.iter().copied().chain(std::iter::repeat(greatest)).map(u32::from);
    let greatest = u32::from(greatest);
    let claimant = |(endpoint, weight)| {
        // All take the first turn. One with half the greatest weight takes every other one.
        Claimant { endpoint, weight, credit: greatest - weight, preference: Preference::of(endpoint) }
    };
    let mut claimants: Vec<Claimant<'_>> = endpoints.iter().take(size).zip(weights).map(claimant).collect();
    let mut left = if endpoints.is_empty() { 0 } else { size };
    while left > 0 {
        for claimant in &mut claimants {
            claimant.credit += claimant.weight;
            if left == 0 || claimant.credit < greatest {
                continue;
            }
            claimant.credit -= greatest;
            let slot = claimant.preference.next(&mut free);
            slots.get_mut(slot).into_iter().for_each(|slot| *slot = Some(*claimant.endpoint));
            left -= 1;
        }
    }
    slots.into_iter().flatten().collect()
}

/// An endpoint that takes turns to claim slots.
struct Claimant<'a> {
    endpoint: &'a Endpoint,
    weight: u32,
    credit: u32,
    preference: Preference,
}

/// The order in which an endpoint prefers slots.
struct Preference {
    next: usize,
    step: usize,
}

impl Preference {
    fn of(endpoint: &Endpoint) -> Self {
        let mut bytes = address_bytes(endpoint.ip);
        bytes.extend(endpoint.port.get().to_be_bytes());
        let hash = |seed, below: u32| (jenkins(&bytes, seed) % below) as usize;
        Self { next: hash(START_SEED, HASH_RANGE.count), step: hash(STEP_SEED, HASH_RANGE.count - 1) + 1 }
    }

    /// Takes the first slot that is free. There must be one.
    fn next(&mut self, free: &mut [bool]) -> usize {
        loop {
            let slot = self.next;
            self.next = (slot + self.step) % free.len();
            if let Some(is_free @ true) = free.get_mut(slot) {
                *is_free = false;
                return slot;
            }
        }
    }
}

/// The slot that the kernel hashes a client to; without the port if that is not hashed.
pub fn slot_of(client: IpAddr, port: Option<u16>) -> u32 {
    let mut bytes = address_bytes(client);
    // A port takes a register of its own, in its first two bytes.
    bytes.extend(port.into_iter().flat_map(|port| [port.to_be_bytes(), [0, 0]].concat()));
    let scaled = (u64::from(jenkins(&bytes, CLIENT_SEED)) * u64::from(HASH_RANGE.count)) >> 32;
    u32::try_from(scaled).unwrap_or_default()
}

fn address_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The kernel's `jhash`: Bob Jenkins' lookup3, on a little-endian machine.
fn jenkins(bytes: &[u8], seed: u32) -> u32 {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let start = 0xdead_beef_u32.wrapping_add(length).wrapping_add(seed);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut rest = bytes;
    while let Some((block, more)) = rest.split_at_checked(12).filter(|(_, more)| !more.is_empty()) {
        let [x, y, z] = words(block);
        (a, b, c) = mix(a.wrapping_add(x), b.wrapping_add(y), c.wrapping_add(z));
        rest = more;
    }
    if rest.is_empty() {
        return c;
    }
    let [x, y, z] = words(rest);
    last(a.wrapping_add(x), b.wrapping_add(y), c.wrapping_add(z))
}

/// Up to twelve bytes as three numbers.
fn words(bytes: &[u8]) -> [u32; 3] {
    let mut words = [0; 3];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(4)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    words
}

fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    for [first, second, third] in [[4, 6, 8], [16, 19, 4]] {
        a = a.wrapping_sub(c) ^ c.rotate_left(first);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(second);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(third);
        b = b.wrapping_add(a);
    }
    (a, b, c)
}

fn last(mut a: u32, mut b: u32, mut c: u32) -> u32 {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

#[cfg(test)]
mod tests;
