//! Which conntrack entries a sync makes stale, and when to scan for them. They would keep a client from where the rules lead:
//! the kernel consults rules only for the first packet of a flow.
//!
//! ```text
//!   family worker                              scanner thread
//!   Routing ─▶ Flows ── ScanRequest::Serving ─┐
//!                    └─ ScanRequest::Recheck ─┴▶ Scanner ─▶ Schedule: next(now) -> Action
//!                       after a commit                   └▶ judge: is this flow stale?
//! ```
//!
//! Nothing here lists or deletes an entry, or knows what time it is: the scanner thread does, in `proxy`.

mod scanner;
mod schedule;
mod stale;

pub use scanner::{ScanRequest, Scanner};
pub use schedule::{Action, IN_FLIGHT, Scan, Schedule};
pub use stale::{Contended, Destination, FlowFilter, FlowVerdict, Flows, Rechecks, Serving, TrackedFlow};
