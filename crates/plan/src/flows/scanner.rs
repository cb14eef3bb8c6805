//! The state and the decisions of a scanner thread: what the requests of the family worker change, and which of the listed
//! flows are stale.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use model::names::Protocol;

use super::{Action, Destination, FlowVerdict, Rechecks, Scan, Schedule, Serving, TrackedFlow};

/// What a family worker sends to its scanner thread.
#[derive(Debug)]
pub enum ScanRequest {
    /// The addresses of the node that serve node ports.
    NodeIps(HashSet<IpAddr>),
    /// The next sync changes which endpoints serve these UDP destinations. Sent before the rules change.
    Serving(Vec<(Destination, Serving)>),
    /// The rules are committed. `if_used` needs a recheck only for destinations to which an earlier scan left flows.
    Recheck { committed: Instant, rechecks: Rechecks, if_used: Rechecks },
}

/// The scans of one family.
#[derive(Debug, Default)]
pub struct Scanner {
    node_ips: HashSet<IpAddr>,
    /// UDP destinations to which a scan left flows: counters do not include flows that are older than the rules.
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

    /// Like [`Self::receive`], while a scan runs, which must not delete flows that the request makes valid. The caller passes
    /// all requests received between listing and deleting, and then calls [`Self::judge`] again for each flow to delete.
    ///
    /// The family worker sends the new endpoints before the rules change. So a flow that the new rules translated, and that
    /// the scan listed, is judged by the endpoints of these rules.
    pub fn receive_during(&mut self, request: ScanRequest, scan: &mut Scan) {
        if let ScanRequest::Serving(all) = &request {
            all.iter().for_each(|(destination, serving)| scan.update(*destination, serving));
        }
        self.receive(request);
    }

    /// Whether a flow is stale, given all requests received so far.
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

    /// A scan ended and used this processor time. Returns the number of destinations that are dropped; see [`Schedule::done`].
    pub fn done(&mut self, scan: Scan, now: Instant, processor_time: Duration, is_ok: bool) -> usize {
        self.schedule.done(scan, now, processor_time, is_ok)
    }

    /// The commit time of the oldest recheck for which no scan has started.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.schedule.waiting_since()
    }
}

#[cfg(test)]
mod tests;
