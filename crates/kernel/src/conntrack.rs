//! Ends the flows that a change of rules has left behind.
//!
//! Rules come first, flows second: a flow that is looked up anew must find the new rules. A packet that was under way
//! in between may have made a wrong flow again, so everything is looked at once more a moment later.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::address::Family;
use model::names::ServicePortName;
use model::routing::Routing;
use netlink::conntrack::Connection;
pub use plan::flows::Destination;
use plan::flows::{Doubts, Flow, Flows};

use crate::wire_family;

/// Longer than any packet is under way within a node.
const RACE: Duration = Duration::from_secs(1);

/// A kernel that could not be asked now may be asked later.
const RETRY: Duration = Duration::from_secs(60);

/// `IPPROTO_UDP`.
const UDP: u8 = 17;

/// The flows of one family.
#[derive(Debug)]
pub struct Conntrack {
    family: Family,
    flows: Flows,
    /// Where node ports answer.
    node_ips: HashSet<IpAddr>,
    /// What to look at as soon as we have rested from the last look.
    waiting: Doubts,
    rested: Instant,
    /// What to look at once more, and when.
    again: Option<(Instant, Doubts)>,
    /// Opened when first needed: most clusters have few UDP services, and some kernels no such table.
    connection: Option<Connection>,
}

impl Conntrack {
    /// Belongs to the network namespace of the thread that first looks at flows.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            flows: Flows::default(),
            node_ips: HashSet::new(),
            waiting: Doubts::default(),
            rested: Instant::now(),
            again: None,
            connection: None,
        }
    }

    /// Takes in what service ports do from now on, `None` if they are gone.
    pub fn hear(&mut self, routings: &[(ServicePortName, Option<Arc<Routing>>)]) {
        for (name, routing) in routings {
            self.flows.replace(name, routing.as_ref());
        }
    }

    /// The node has these addresses now. Told and not asked for, since asking may have to wait for whoever is at work on
    /// any interface of the machine.
    pub fn move_to(&mut self, node_ips: impl IntoIterator<Item = IpAddr>) {
        self.node_ips = node_ips.into_iter().collect();
    }

    /// The rules in the kernel are those for what was heard: what they made wrong is to be looked at.
    pub fn follow_rules(&mut self) {
        self.waiting.join(self.flows.take_doubts());
    }

    /// No rules but ours are in force any more: what others have done up to now is to be looked at.
    pub fn doubt_everything(&mut self) {
        self.flows.doubt_everything();
        self.waiting.join(self.flows.take_doubts());
    }

    /// When there is something to look at.
    pub fn due(&self) -> Option<Instant> {
        let first = (!self.waiting.is_empty()).then_some(self.rested);
        let again = self.again.as_ref().map(|(when, _)| *when);
        first.into_iter().chain(again).min()
    }

    /// Ends the flows that are wrong, among those whose time to be looked at has come. Returns how many there were,
    /// `None` if there was nothing to look at. After an error the same is looked at again.
    ///
    /// `is_unused` tells of a destination for which our rules have met no packet, so far as they count.
    pub fn look(
        &mut self,
        now: Instant,
        mut is_unused: impl FnMut(Destination) -> bool,
    ) -> io::Result<Option<usize>> {
        let mut fresh =
            if self.rested <= now { std::mem::take(&mut self.waiting) } else { Doubts::default() };
        // To list flows is the dearest thing we do, and most nodes use few of a cluster's services.
        fresh.dismiss_unused(|destination| !self.flows.is_used(destination) && is_unused(destination));
        let again = self.again.take_if(|(when, _)| *when <= now).map(|(_, again)| again);
        let mut doubts = fresh.clone();
        doubts.join(again.unwrap_or_default());
        if doubts.is_empty() {
            return Ok(None);
        }
        let ended = self.end_wrong_flows(&doubts);
        match &ended {
            Ok(_) if fresh.is_empty() => {}
            Ok(_) => self.doubt_again(now + RACE, fresh),
            Err(_) => self.doubt_again(now + RETRY, doubts),
        }
        ended.map(Some)
    }

    /// All of it when the first is due.
    fn doubt_again(&mut self, when: Instant, doubts: Doubts) {
        let (due, again) = self.again.get_or_insert_with(|| (when, Doubts::default()));
        *due = when.min(*due);
        again.join(doubts);
    }

    /// To list flows the kernel goes through those of all protocols, and through empty places where there could be more; we
    /// rest so long that it takes a twentieth of our time.
    fn end_wrong_flows(&mut self, doubts: &Doubts) -> io::Result<usize> {
        let started = Instant::now();
        let ended = self.end_those(doubts);
        self.rested = Instant::now() + (started.elapsed() * 19).min(RETRY);
        ended
    }

    fn end_those(&mut self, doubts: &Doubts) -> io::Result<usize> {
        let family = wire_family(self.family);
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open()?),
        };
        let (flows, node_ips) = (&mut self.flows, &self.node_ips);
        let wrong = connection.flows(family, UDP, doubts.only_ip(), |flow| {
            let flow = Flow { to: flow.original.destination, answered_by: flow.reply.source };
            flows.is_wrong(flow, doubts, node_ips)
        })?;
        connection.end(family, &wrong)
    }
}
