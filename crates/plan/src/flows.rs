//! Which conntrack entries a sync makes stale, and when to scan for them. The kernel evaluates nat rules only for the first
//! packet of a flow, so a stale entry keeps its client from the endpoints that the rules lead to.
//!
//! ```text
//!   family worker                              scanner thread
//!   Routing ─▶ Flows ── ScanRequest::Serving ─┐
//!                    └─ ScanRequest::Recheck ─┴▶ Scanner ─▶ Schedule: next(now) -> Action
//!                       after a commit                   └▶ judge: is this flow stale?
//! ```
//!
//! The scanner thread in `proxy` lists and deletes entries, and reads the clock.

mod scanner;
mod schedule;
mod stale;

pub use scanner::{ScanRequest, Scanner};
pub use schedule::{Action, IN_FLIGHT, Scan, Schedule};
pub use stale::{Contended, Destination, FlowFilter, FlowVerdict, Flows, Rechecks, Serving, TrackedFlow};
