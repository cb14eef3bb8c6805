//! Where the endpoints of a frontend lie, so that a number drawn by chance finds one of them.
//!
//! A rule can draw a number below a constant, so frontends are kept in tables of a few fixed widths: exactly as many
//! slots as endpoints up to eight, and the next larger width beyond. Each width has its own range of slot numbers, so
//! that a draw for one width never hits the table of another:
//!
//! ```text
//!   width 1: 0    width 2: 1 2    width 3: 3 4 5    ...    width 12: 36 .. 47    width 16: 48 .. 63    ...
//! ```
//!
//! A table of width twelve may hold nine endpoints, in its first nine slots. A draw that hits none of them is repeated;
//! the last time it is made below the next smaller width, where all slots are taken. The first eight are then a little
//! more likely than the ninth: by 0.2 percent here, by less than four at worst.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::RandomState;
use model::routing::Endpoint;

/// The number of slots a frontend may have.
#[rustfmt::skip]
const WIDTHS: [u32; 30] = [
    1, 2, 3, 4, 5, 6, 7, 8,
    12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    8192, 16384, 32768, 65536,
];

/// Up to this width every table is full, and the first draw hits.
const ALWAYS_FULL: u32 = 8;

/// How often a table that may have gaps is drawn from before the draw that can't miss.
const DRAWS: usize = 3;

/// More endpoints than any frontend can use.
pub const MOST: usize = 65_536;

/// A range of slot numbers to draw from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    pub count: u32,
    pub first: u32,
}

/// What to draw, in order, until something is hit. The same for every frontend, whatever its width.
pub fn draws() -> Vec<Draw> {
    let tables: Vec<Draw> = tables().collect();
    let with_gaps = || tables.iter().copied().filter(|table| table.count > ALWAYS_FULL);
    let again = (1..DRAWS).flat_map(|_| with_gaps());
    let surely = tables.windows(2).filter_map(|pair| match pair {
        [smaller, table] if table.count > ALWAYS_FULL => {
            Some(Draw { count: smaller.count, first: table.first })
        }
        _ => None,
    });
    tables.iter().copied().chain(again).chain(surely).collect()
}

/// The table for that many endpoints; none for none.
pub fn table(endpoints: usize) -> Option<Draw> {
    (endpoints > 0).then(|| tables().find(|table| table.count as usize >= endpoints)).flatten()
}

/// How likely a connection gets to each of so many endpoints, in the order of their slots. A draw that misses leaves the
/// rest to the next.
pub fn shares(endpoints: usize) -> Vec<f64> {
    let Some(table) = table(endpoints) else { return Vec::new() };
    let mut shares = vec![0.0; endpoints];
    let mut left = 1.0;
    for draw in draws().into_iter().filter(|draw| draw.first == table.first) {
        let each = left / f64::from(draw.count);
        let mut hit = 0.0;
        for share in shares.iter_mut().take(draw.count as usize) {
            *share += each;
            hit += each;
        }
        left -= hit;
    }
    shares
}

/// Every table there may be, the narrowest first.
pub fn tables() -> impl Iterator<Item = Draw> {
    WIDTHS.into_iter().scan(0, |next, count| {
        let first = *next;
        *next += count;
        Some(Draw { count, first })
    })
}

/// Puts endpoints into slots: whoever has one keeps it, so that few elements change when an endpoint comes or goes.
/// Nothing is copied where that is the order they come in.
pub fn assign(before: &[Endpoint], endpoints: &Arc<[Endpoint]>) -> Arc<[Endpoint]> {
    let wanted = endpoints.get(..MOST).unwrap_or(endpoints);
    if before.is_empty() && wanted.len() == endpoints.len() {
        return endpoints.clone();
    }
    let kept: Vec<Endpoint> = before.iter().take(wanted.len()).copied().collect();
    let known: HashSet<_, RandomState> = wanted.iter().map(identity).collect();
    let mut seated: HashSet<_, RandomState> = HashSet::default();
    let stays: Vec<bool> =
        kept.iter().map(|e| known.contains(&identity(e)) && seated.insert(identity(e))).collect();
    let mut newcomers = wanted.iter().filter(|e| !seated.contains(&identity(e)));
    let mut slots = Vec::with_capacity(wanted.len());
    for (endpoint, stays) in kept.iter().zip(stays) {
        slots.extend(if stays { Some(endpoint) } else { newcomers.next() });
    }
    slots.extend(newcomers);
    if slots[..] == endpoints[..] { endpoints.clone() } else { slots.into() }
}

/// Whether it is local is not the slots' business.
fn identity(endpoint: &Endpoint) -> (std::net::IpAddr, model::names::Port) {
    (endpoint.ip, endpoint.port)
}

#[cfg(test)]
mod tests;
