//! Catches flows that are wrong with the next packet they send, where to look for them takes long.
//!
//! ```text
//!   table ip kube-proxy-flows, for as long as there is something to catch
//!     set wrong                    where a client sends to, and who answers it
//!     prerouting, output  -150     UDP flows that are in it: report, and stop the packet
//! ```
//!
//! The table belongs to our socket, so that it goes with us, however we end.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use model::address::Family;
use netlink::conntrack::Direction as Packet;
use netlink::log::{ENOUGH, Listener};
use netlink::nftables::{
    Batch, Chain, ChainKind, CommitError, Comparison, Connection, ConntrackKey, Direction, Element,
    Expression, Field, Hook, HookPoint, MetaKey, Ownership, Register, Registers, Rule, Set, Table, Value,
    Verdict,
};
use plan::flows::Flow;

use super::UDP;
use crate::wire_family;

/// Beside the one for rules.
pub const TABLE: &str = "kube-proxy-flows";
const WRONG: &str = "wrong";

/// After the kernel has found the flow of a packet, and before its destination is translated.
const PRIORITY: i32 = -150;

/// More would be a set of a size to think about, for flows that most likely don't exist.
const MOST: usize = 10_000;

/// Packets taken in one go, of which many may be of the same flow.
const AT_ONCE: usize = 1_000;

/// Hears of packets that were caught, in a thread of its own.
#[derive(Debug)]
pub struct Catches(Listener);

impl Catches {
    /// Calls `tell` with packets of flows that were caught, for as long as it returns true. What is lost when there are
    /// too many is caught again.
    pub fn run(mut self, mut tell: impl FnMut(HashSet<Packet>) -> bool) -> io::Result<()> {
        loop {
            let mut packets: HashSet<_> =
                self.0.receive_within(Duration::from_secs(3_600))?.into_iter().collect();
            while !packets.is_empty() && packets.len() < AT_ONCE {
                let more = self.0.receive_within(Duration::ZERO)?;
                if more.is_empty() {
                    break;
                }
                packets.extend(more);
            }
            if !packets.is_empty() && !tell(packets) {
                return Ok(());
            }
        }
    }
}

/// What is to be caught.
#[derive(Debug)]
pub struct Trap {
    family: Family,
    connection: Connection,
    group: u16,
    laid: HashSet<Flow>,
}

impl Trap {
    /// A trap that catches nothing yet, and where to hear of what it will. Changes nothing in the kernel. Belongs to the
    /// network namespace of the calling thread.
    pub fn open(family: Family) -> io::Result<(Self, Catches)> {
        let (connection, listener) = (Connection::open()?, Listener::open()?);
        let group = listener.group();
        Ok((Self { family, connection, group, laid: HashSet::new() }, Catches(listener)))
    }

    pub fn is_laid(&self) -> bool {
        !self.laid.is_empty()
    }

    pub fn is_laid_for(&self, flow: Flow) -> bool {
        self.laid.contains(&flow)
    }

    /// Catches these from now on and nothing else. Returns whether it does: not if they are too many.
    pub fn lay(&mut self, wrong: HashSet<Flow>) -> Result<bool, CommitError> {
        if wrong.len() > MOST {
            self.lay(HashSet::new())?;
            return Ok(false);
        }
        if wrong == self.laid {
            return Ok(true);
        }
        let mut batch = Batch::new(wire_family(self.family), TABLE);
        if wrong.is_empty() {
            batch.delete_table();
        } else {
            if self.laid.is_empty() {
                self.write_program(&mut batch);
            }
            let element = |flow: &Flow| Element::new(key(flow));
            batch.delete_elements(WRONG, self.laid.difference(&wrong).map(element));
            batch.add_elements(WRONG, wrong.difference(&self.laid).map(element));
        }
        self.connection.commit(&batch)?;
        self.laid = wrong;
        Ok(true)
    }

    /// Lets go all but these.
    pub fn let_go_but(&mut self, wrong: &HashSet<Flow>) -> Result<bool, CommitError> {
        self.lay(self.laid.intersection(wrong).copied().collect())
    }

    fn write_program(&self, batch: &mut Batch) {
        let comment = "catches UDP flows that kube-proxy has to end";
        batch.add_table(&Table { ownership: Ownership::Owned, comment: Some(comment) });
        let address = match self.family {
            Family::V4 => Field::Ipv4Address,
            Family::V6 => Field::Ipv6Address,
        };
        let key = [address, Field::Port, address, Field::Port];
        let comment = Some("where a client sends to, and who answers it");
        batch.add_set(&Set { comment, ..Set::new(WRONG, &key) });
        for (name, point) in [("prerouting", HookPoint::Prerouting), ("output", HookPoint::Output)] {
            let hook = Hook { kind: ChainKind::Filter, point, priority: PRIORITY, policy: None };
            batch.add_chain(&Chain { name, hook: Some(hook), comment: None });
            let mut expressions = self.matches();
            expressions.push(Expression::Report { group: self.group, bytes: ENOUGH });
            // A process of the node's own would be told that it may not send; its packet goes where it would have gone.
            if point == HookPoint::Prerouting {
                expressions.push(Expression::Verdict(Verdict::Drop));
            }
            batch.add_rule(&Rule {
                chain: name,
                expressions: &expressions,
                comment: None,
                fingerprint: None,
            });
        }
    }

    /// A packet of either direction that is not the first of its flow: of that one nobody has decided yet where it goes.
    fn matches(&self) -> Vec<Expression<'static>> {
        let first = Register::FIRST;
        let compare = |comparison, value| Expression::Compare { from: first, comparison, value };
        let confirmed = ConntrackKey::STATUS_CONFIRMED.to_ne_bytes();
        let mut expressions = vec![
            Expression::Meta { key: MetaKey::L4Protocol, to: first },
            compare(Comparison::Equal, [UDP].into()),
            Expression::Conntrack { key: ConntrackKey::Status, direction: None, to: first },
            Expression::Bitwise { from: first, to: first, mask: confirmed.into(), xor: [0; 4].into() },
            compare(Comparison::NotEqual, [0; 4].into()),
        ];
        let (source, destination, length) = match self.family {
            Family::V4 => (ConntrackKey::SourceIpv4, ConntrackKey::DestinationIpv4, 4),
            Family::V6 => (ConntrackKey::SourceIpv6, ConntrackKey::DestinationIpv6, 16),
        };
        let mut registers = Registers::default();
        for (key, direction, length) in [
            (destination, Direction::Original, length),
            (ConntrackKey::DestinationPort, Direction::Original, 2),
            (source, Direction::Reply, length),
            (ConntrackKey::SourcePort, Direction::Reply, 2),
        ] {
            let to = registers.take(length);
            expressions.push(Expression::Conntrack { key, direction: Some(direction), to });
        }
        expressions.push(Expression::Lookup { set: WRONG.into(), key: first });
        expressions
    }
}

fn key(flow: &Flow) -> Value {
    let ip = |at: SocketAddr| match at.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let port = |at: SocketAddr| at.port().to_be_bytes();
    Value::concatenation(&[&ip(flow.to), &port(flow.to), &ip(flow.answered_by), &port(flow.answered_by)])
}
