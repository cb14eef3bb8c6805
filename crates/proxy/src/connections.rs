//! New connections, as the kernel counts them: asked for, told to who asks, and added up over time.
//!
//! ```text
//!   family ── Message::Count ──▶ count ─▶ metrics
//!                                      └▶ Page ── HTTP ──▶ kube-proxy top
//! ```

mod page;
mod totals;

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use kernel::nftables::Connections;

use crate::family::Message;

pub use page::{Endpoint, Frontend, Page, ServicePort};
pub use totals::{Total, Totals};

/// Only the family's own thread may talk to its table, so it is asked.
pub fn count(line: &SyncSender<Message>) -> io::Result<Vec<Connections>> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let (answer, counted) = sync_channel(1);
    line.try_send(Message::Count(answer)).map_err(|_| io::ErrorKind::ResourceBusy)?;
    counted.recv_timeout(PATIENCE).map_err(io::Error::other)?
}
