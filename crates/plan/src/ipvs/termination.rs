//! Real servers that no longer take new connections, but still have some. As in upstream, a TCP connection may go on until it ends
//! by itself; the weight of its real server is 0 until then.
//!
//! ```text
//!   weight 0 ─▶ due ─▶ the caller reads the connections ─▶ settle ─▶ none left: delete
//!                ▲                                             └───▶ some: in a minute
//!                └─────────────────────────────────────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::ipvs::servers::{ActualReal, RealServer, ServerStep, VirtualAddress};

/// How long a real server with connections is left alone.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The real servers of these virtual servers, from the kernel.
pub type RealCounts = BTreeMap<VirtualAddress, BTreeMap<RealServer, ActualReal>>;

/// The real servers of one family that end their connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Termination {
    /// Each with the time of its next check; `None` if it has never been checked. No virtual server is without real servers.
    servers: BTreeMap<VirtualAddress, BTreeMap<RealServer, Option<Instant>>>,
}

impl Termination {
    /// Replaces the real servers of one virtual server. Those that stay keep the time of their check.
    pub fn replace(&mut self, at: VirtualAddress, terminating: BTreeSet<RealServer>) {
        let before = self.servers.remove(&at).unwrap_or_default();
        let next_check = |real: &RealServer| before.get(real).copied().flatten();
        let now: BTreeMap<_, _> = terminating.into_iter().map(|real| (real, next_check(&real))).collect();
        if !now.is_empty() {
            self.servers.insert(at, now);
        }
    }

    pub fn of(&self, at: &VirtualAddress) -> impl Iterator<Item = RealServer> {
        self.servers.get(at).into_iter().flat_map(|servers| servers.keys().copied())
    }

    pub fn addresses(&self) -> impl Iterator<Item = &VirtualAddress> {
        self.servers.keys()
    }

    /// The virtual servers whose connections have to be read now.
    pub fn due(&self, now: Instant) -> Vec<VirtualAddress> {
        let is_due = |servers: &BTreeMap<_, Option<Instant>>| servers.values().any(|it| is_due(*it, now));
        self.servers.iter().filter(|(_, servers)| is_due(servers)).map(|(at, _)| *at).collect()
    }

    /// When the next check is due; `now` if one already is, `None` if no real server is left.
    pub fn next_check(&self, now: Instant) -> Option<Instant> {
        let checks = self.servers.values().flat_map(BTreeMap::values);
        checks.map(|check| check.unwrap_or(now).max(now)).min()
    }

    /// The steps to delete the due real servers without connections. Those of a virtual server that could not be read are checked
    /// again later.
    pub fn settle(&mut self, now: Instant, found: &RealCounts) -> Vec<ServerStep> {
        let mut steps = Vec::new();
        for (at, servers) in &mut self.servers {
            let found = found.get(at);
            servers.retain(|real, next_check| {
                if !is_due(*next_check, now) {
                    return true;
                }
                *next_check = Some(now + CHECK_INTERVAL);
                let Some(found) = found else { return true };
                let Some(ActualReal { active, inactive, .. }) = found.get(real) else { return false };
                let is_idle = *active == 0 && *inactive == 0;
                steps.extend(is_idle.then_some(ServerStep::DeleteReal(*at, *real)));
                !is_idle
            });
        }
        self.servers.retain(|_, servers| !servers.is_empty());
        steps
    }
}

fn is_due(next_check: Option<Instant>, now: Instant) -> bool {
    next_check.is_none_or(|at| at <= now)
}

#[cfg(test)]
mod tests;
