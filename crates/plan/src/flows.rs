//! Which conntrack entries a sync makes stale, and when to scan for them. They would keep a client from where the rules lead:
//! the kernel consults rules only for the first packet of a flow.
//!
//! ```text
//!   family worker                                 scanner thread
//!   Routing ─▶ Flows ── Request::Serving ──┐
//!                    └─ Request::Recheck ──┴──▶ Scanner ─▶ Schedule: next(now) -> Action
//!                       once rules are committed        └▶ judge: is this flow stale?
//! ```
//!
//! Nothing here lists or deletes an entry, or knows what time it is: the scanner thread does, in `proxy`.

mod scanner;
mod schedule;
mod stale;

pub use scanner::{Request, Scanner};
pub use schedule::{Action, IN_FLIGHT, Scan, Schedule};
pub use stale::{Contended, Destination, Filter, Flow, Flows, Rechecks, Serving, Verdict};
