//! What a scanner thread has to know and to decide: which requests of the family worker change what, and which of the flows
//! that it lists are stale.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use model::names::Protocol;

use super::{Action, Destination, FlowVerdict, Rechecks, Scan, Schedule, Serving, TrackedFlow};

/// What a family worker sends to its scanner thread.
#[derive(Debug)]
pub enum ScanRequest {
    /// Node ports are served at these addresses of the node.
    NodeIps(HashSet<IpAddr>),
    /// The next sync changes who serves these UDP destinations. Sent before the rules change.
    Serving(Vec<(Destination, Serving)>),
    /// The rules are committed. `if_used` has to be rechecked only where an earlier scan left flows.
    Recheck { committed: Instant, rechecks: Rechecks, if_used: Rechecks },
}

/// The scans of one family.
#[derive(Debug, Default)]
pub struct Scanner {
    node_ips: HashSet<IpAddr>,
    /// UDP destinations to which a scan left flows. Counters of rules don't count flows that are older than the rules.
    used: HashSet<Destination>,
    schedule: Schedule,
}

impl Scanner {
    pub fn next(&mut self, now: Instant) -> Action {
        self.schedule.next(now)
    }

    pub fn receive(&mut self, request: ScanRequest) {
        match request {
            ScanRequest::NodeIps(node_ips) => self.node_ips = node_ips,
            ScanRequest::Serving(all) => {
                all.iter().for_each(|(destination, serving)| self.schedule.update(*destination, serving));
            }
            ScanRequest::Recheck { committed, mut rechecks, mut if_used } => {
                if_used.retain(|destination| self.used.contains(&destination));
                rechecks.join(if_used);
                let gone = rechecks.servings().filter(|(_, serving)| !serving.is_frontend());
                gone.for_each(|(destination, _)| _ = self.used.remove(&destination));
                self.schedule.add(committed, rechecks);
            }
        }
    }

    /// The same while a scan is under way. Whatever the request makes right, that scan must not delete either: to be called for all
    /// requests received between listing and deleting, and then [`Self::judge`] once more for what is to be deleted.
    ///
    /// The worker says who will serve before the rules change. So a flow that the new rules made, and that the scan listed,
    /// is judged with the endpoints of these rules.
    pub fn receive_during(&mut self, request: ScanRequest, scan: &mut Scan) {
        if let ScanRequest::Serving(all) = &request {
            all.iter().for_each(|(destination, serving)| scan.update(*destination, serving));
        }
        self.receive(request);
    }

    /// Whether a flow is stale, by what is known now.
    pub fn judge(&mut self, scan: &Scan, flow: &TrackedFlow) -> bool {
        match scan.judge(flow, &self.node_ips) {
            FlowVerdict::Stale => true,
            FlowVerdict::Current(destination) => {
                if flow.protocol == Protocol::Udp {
                    self.used.insert(destination);
                }
                false
            }
            FlowVerdict::NotConcerned => false,
        }
    }

    /// A scan ended and cost that much processor time. Returns how many destinations are given up; see [`Schedule::done`].
    pub fn done(&mut self, scan: Scan, now: Instant, processor_time: Duration, is_ok: bool) -> usize {
        self.schedule.done(scan, now, processor_time, is_ok)
    }

    /// When the rules were committed for the oldest recheck that no scan has begun for.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.schedule.waiting_since()
    }
}

#[cfg(test)]
mod tests;
