//! Ends the flows that a change of rules has left behind.
//!
//! ```text
//!   change ─▶ doubts ─▶ looked for: all flows listed ─▶ the wrong ones ended ─▶ once more, a moment later
//!                  └▶ where that takes long: trapped at once ─▶ caught as they send ─▶ looked for at leisure
//! ```
//!
//! Rules come first, flows second: a flow that is looked up anew must find the new rules. A packet that was under way
//! in between may have made a wrong flow again, so everything is looked at once more a moment later.

mod trap;

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::address::Family;
use model::names::ServicePortName;
use model::routing::Routing;
use netlink::conntrack::Connection;
pub use netlink::conntrack::Direction as Packet;
use netlink::nftables::CommitError;
pub use plan::flows::Destination;
use plan::flows::{Doubts, Flow, Flows};

use crate::wire_family;
pub use trap::Catches;
use trap::{MOST, Trap};

/// Longer than any packet is under way within a node.
const RACE: Duration = Duration::from_secs(1);

/// A kernel that could not be asked now may be asked later.
const RETRY: Duration = Duration::from_secs(60);

/// To list flows the kernel goes through those of all protocols, and through empty places where there could be more. What
/// takes longer than this is done at leisure, with a trap laid meanwhile.
const DEAR: Duration = Duration::from_millis(5);

/// We rest so many times as long as a look took; longer where a trap is laid.
const REST: u32 = 19;
const LEISURE: u32 = 1_000;
const LONGEST_LEISURE: Duration = Duration::from_secs(300);

/// `IPPROTO_UDP`.
const UDP: u8 = 17;

/// The flows of one family.
#[derive(Debug)]
pub struct Conntrack {
    family: Family,
    flows: Flows,
    /// Where node ports answer.
    node_ips: HashSet<IpAddr>,
    /// What has become doubtful since the last look.
    fresh: Doubts,
    /// What to look at as soon as we have rested from the last look.
    waiting: Doubts,
    /// What to look at once more, and when.
    again: Option<(Instant, Doubts)>,
    /// What has been looked at and stays trapped until then.
    settling: Option<(Instant, Doubts)>,
    /// When the last look ended, and how long it took.
    last: Option<(Instant, Duration)>,
    /// What takes longer is dear.
    dear: Duration,
    /// Whether all that waits and can be trapped is, and whether there is more than can be.
    is_trapped: bool,
    has_unknown: bool,
    /// Where to hear of what is caught, until somebody does.
    catches: Option<Catches>,
    /// Opened when first needed: most clusters have few UDP services, and some kernels no such table.
    connection: Option<Connection>,
    traps: Traps,
}

/// Not every kernel has what it takes.
#[derive(Debug)]
enum Traps {
    /// Not before that time, if there is one.
    Shut(Option<Instant>),
    Open(Box<Trap>),
}

impl Conntrack {
    /// Belongs to the network namespace of the thread that first looks at flows.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            flows: Flows::default(),
            node_ips: HashSet::new(),
            fresh: Doubts::default(),
            waiting: Doubts::default(),
            again: None,
            settling: None,
            last: None,
            dear: DEAR,
            is_trapped: false,
            has_unknown: false,
            catches: None,
            connection: None,
            traps: Traps::Shut(None),
        }
    }

    /// Takes in what service ports do from now on, `None` if they are gone. What becomes right by it is no longer caught,
    /// before the rules may send anything there.
    pub fn hear(&mut self, routings: &[(ServicePortName, Option<Arc<Routing>>)]) {
        for (name, routing) in routings {
            self.flows.replace(name, routing.as_ref());
        }
        if matches!(&self.traps, Traps::Open(trap) if trap.is_laid()) {
            let wrong = self.wrong_ones().unwrap_or_default();
            self.set_trap(|trap| trap.let_go_but(&wrong));
        }
    }

    /// Node ports answer at these addresses now. Told and not asked for, since asking may have to wait for whoever is at work on
    /// any interface of the machine.
    pub fn move_to(&mut self, node_ips: impl IntoIterator<Item = IpAddr>) {
        self.node_ips = node_ips.into_iter().collect();
    }

    /// The rules in the kernel are those for what was heard: what they made wrong is to be looked at.
    pub fn follow_rules(&mut self) {
        self.fresh.join(self.flows.take_doubts());
    }

    /// Only by now all rules are ours: what others have done is to be looked at once the rules are those for what was heard,
    /// and soon, for no trap can be laid for it.
    pub fn doubt_everything(&mut self) {
        self.flows.doubt_everything();
        self.has_unknown = true;
    }

    /// When there is something to look at.
    pub fn due(&self) -> Option<Instant> {
        let fresh = (!self.fresh.is_empty()).then(Instant::now);
        let waiting = (!self.waiting.is_empty()).then(|| self.rested().unwrap_or_else(Instant::now));
        let later = [&self.again, &self.settling].into_iter().flatten().map(|(when, _)| *when);
        fresh.into_iter().chain(waiting).chain(later).min()
    }

    /// Ends the flows that are wrong, among those whose time to be looked at has come. Returns how many there were,
    /// `None` if there was nothing to look at. After an error the same is looked at again.
    ///
    /// `is_unused` tells of a destination for which our rules have met no packet, so far as they count.
    pub fn look(
        &mut self,
        now: Instant,
        is_unused: impl FnMut(Destination) -> bool,
    ) -> io::Result<Option<usize>> {
        self.take_in_fresh(is_unused);
        if let Some((_, settled)) = self.settling.take_if(|(when, _)| *when <= now) {
            self.forget(settled);
            self.lay_trap();
        }
        let is_rested = self.rested().is_none_or(|rested| rested <= now);
        let mut first = Doubts::default();
        let mut has_unknown = false;
        if is_rested {
            first = std::mem::take(&mut self.waiting);
            has_unknown = std::mem::take(&mut self.has_unknown);
        }
        let again = self.again.take_if(|(when, _)| *when <= now).map(|(_, again)| again);
        let mut doubts = first.clone();
        doubts.join(again.unwrap_or_default());
        if doubts.is_empty() {
            return Ok(None);
        }
        let ended = self.end_wrong_flows(&doubts);
        match &ended {
            Err(_) => {
                self.has_unknown |= has_unknown;
                postpone(&mut self.again, now + RETRY, doubts);
            }
            // What was under way meanwhile is caught.
            Ok(_) if self.is_trapped && !has_unknown => postpone(&mut self.settling, now + RACE, doubts),
            Ok(_) => {
                self.forget(doubts);
                if !first.is_empty() {
                    postpone(&mut self.again, now + RACE, first);
                }
            }
        }
        ended.map(Some)
    }

    /// Where to hear of packets that were caught, as soon as there may be any. Somebody should.
    pub fn take_catches(&mut self) -> Option<Catches> {
        self.catches.take()
    }

    /// Nothing is caught from now on, for nobody hears of it. May be tried again later.
    pub fn go_without_trap(&mut self) {
        // With its connection goes what it has laid.
        self.traps = Traps::Shut(Some(Instant::now() + RETRY));
        self.catches = None;
        self.is_trapped = false;
        self.look_again_at_settling();
    }

    /// It settled in the belief that what was under way would be caught.
    fn look_again_at_settling(&mut self) {
        if let Some((when, settling)) = self.settling.take() {
            postpone(&mut self.again, when, settling);
        }
    }

    /// Ends flows that were caught, given packets of theirs. Returns how many.
    pub fn end_caught(&mut self, packets: &HashSet<Packet>) -> io::Result<usize> {
        let Traps::Open(trap) = &mut self.traps else { return Ok(0) };
        let connection = opened(&mut self.connection)?;
        let family = wire_family(self.family);
        let mut wrong = Vec::new();
        let mut failed = None;
        let mut is_broken = false;
        for packet in packets.iter().filter(|packet| Family::of(packet.source.ip()) == self.family) {
            match connection.find(family, *packet) {
                Ok(Some((flow, handle))) => {
                    let pair = Flow { to: flow.original.destination, answered_by: flow.reply.source };
                    match trap.is_to_end(flow.original, pair) {
                        Ok(is_to_end) => wrong.extend(is_to_end.then_some(handle)),
                        Err(_) => is_broken = true,
                    }
                }
                // It has ended since, or what was reported had been translated already.
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        let ended = connection.end(family, &wrong);
        if is_broken {
            self.go_without_trap();
        }
        match failed {
            Some(error) => Err(error),
            None => ended,
        }
    }

    /// To list flows is the dearest thing we do, and most nodes use few of a cluster's services.
    fn take_in_fresh(&mut self, mut is_unused: impl FnMut(Destination) -> bool) {
        let mut fresh = std::mem::take(&mut self.fresh);
        if fresh.is_empty() {
            return;
        }
        let unused =
            fresh.dismiss_unused(|destination| !self.flows.is_used(destination) && is_unused(destination));
        let has_news = !fresh.is_empty();
        self.waiting.join(fresh);
        self.forget(unused);
        if has_news {
            self.lay_trap();
        }
    }

    /// Nothing is left of what was in doubt there, unless there is more to look at.
    fn forget(&mut self, doubts: Doubts) {
        if doubts.is_empty() {
            return;
        }
        self.flows.forget_who_left(&doubts.without(&self.fresh).without(&self.to_look_at()));
    }

    /// What is to be looked at sooner or later, or has been only just now.
    fn to_look_at(&self) -> Doubts {
        let mut doubts = self.waiting.clone();
        for (_, others) in [&self.again, &self.settling].into_iter().flatten() {
            doubts.join(others.clone());
        }
        doubts
    }

    /// When we may look again; at once if there is nothing to rest from.
    fn rested(&self) -> Option<Instant> {
        let (ended, took) = self.last?;
        let has_time = self.is_trapped && !self.has_unknown;
        let rest = if has_time { (took * LEISURE).min(LONGEST_LEISURE) } else { (took * REST).min(RETRY) };
        Some(ended + rest)
    }

    /// Catches what is in doubt from now on, where that is worth it and it is not too much.
    fn lay_trap(&mut self) {
        let is_dear = self.last.is_some_and(|(_, took)| took > self.dear);
        if is_dear {
            self.open_trap();
        }
        let wrong = if is_dear { self.wrong_ones() } else { None };
        let is_all = wrong.is_some();
        self.is_trapped = self.set_trap(|trap| trap.lay(wrong.unwrap_or_default())) && is_all;
        if !self.is_trapped {
            self.look_again_at_settling();
        }
    }

    /// All flows that would be caught; `None` if they are too many.
    fn wrong_ones(&self) -> Option<HashSet<Flow>> {
        self.flows.wrong_ones(&self.to_look_at(), &self.node_ips, MOST)
    }

    fn open_trap(&mut self) {
        let Traps::Shut(until) = self.traps else { return };
        if until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.traps = match Trap::open(self.family) {
            Ok((trap, catches)) => {
                self.catches = Some(catches);
                Traps::Open(Box::new(trap))
            }
            Err(error) => {
                tracing::debug!(v = 2, ipFamily = %self.family, err = %error, "No trap for stale flows, looking for them instead");
                Traps::Shut(Some(Instant::now() + RETRY))
            }
        };
    }

    /// Does something with the trap, and returns whether there is one that works.
    fn set_trap(&mut self, set: impl FnOnce(&mut Trap) -> Result<(), CommitError>) -> bool {
        let Traps::Open(trap) = &mut self.traps else { return false };
        let done = set(trap);
        if let Err(error) = &done {
            tracing::debug!(v = 2, ipFamily = %self.family, err = %error, "No trap for stale flows, looking for them instead");
            self.go_without_trap();
        }
        done.is_ok()
    }

    fn end_wrong_flows(&mut self, doubts: &Doubts) -> io::Result<usize> {
        let started = Instant::now();
        let ended = self.end_those(doubts);
        self.last = Some((Instant::now(), started.elapsed()));
        ended
    }

    fn end_those(&mut self, doubts: &Doubts) -> io::Result<usize> {
        let connection = opened(&mut self.connection)?;
        let family = wire_family(self.family);
        let (flows, node_ips) = (&mut self.flows, &self.node_ips);
        let wrong = connection.flows(family, UDP, doubts.only_ip(), |flow| {
            let flow = Flow { to: flow.original.destination, answered_by: flow.reply.source };
            flows.is_wrong(flow, doubts, node_ips)
        })?;
        connection.end(family, &wrong)
    }
}

fn opened(connection: &mut Option<Connection>) -> io::Result<&mut Connection> {
    Ok(match connection {
        Some(connection) => connection,
        none => none.insert(Connection::open()?),
    })
}

/// All of it when the first is due.
fn postpone(later: &mut Option<(Instant, Doubts)>, when: Instant, doubts: Doubts) {
    let (due, all) = later.get_or_insert_with(|| (when, Doubts::default()));
    *due = when.min(*due);
    all.join(doubts);
}

#[cfg(test)]
mod tests;
