//! Catches flows that are wrong with the next packet they send, where to look for them takes long.
//!
//! ```text
//!   table ip kube-proxy-flows, for as long as there is something to catch
//!     set wrong                    where a client sends to, and who answers it
//!     prerouting, output  -150     UDP flows that are in it: report, and at prerouting stop the packet
//! ```
//!
//! The table belongs to our socket, so that it goes with us, however we end.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
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
pub const MOST: usize = 10_000;

/// A packet that was under way while rules changed may make a wrong flow again, but not so often.
const OFTEN: u32 = 3;

/// How long a listener outlives its trap at most.
const TICK: Duration = Duration::from_secs(60);

/// Reports read in one go, of which many may be of the same flow.
const AT_ONCE: usize = 1_000;

/// Hears of packets that were caught, in a thread of its own.
#[derive(Debug)]
pub struct Catches {
    listener: Listener,
    /// There is something to hear for as long as the trap is there.
    trap: Weak<()>,
}

impl Catches {
    /// Calls `tell` with packets of flows that were caught, for as long as it returns true and there is a trap. What is lost
    /// when there are too many is caught again.
    pub fn run(mut self, mut tell: impl FnMut(HashSet<Packet>) -> bool) -> io::Result<()> {
        while self.trap.strong_count() > 0 {
            let mut packets: HashSet<_> = self.listener.receive_within(TICK)?.into_iter().collect();
            for _ in 0..AT_ONCE {
                let more = self.listener.receive_within(Duration::ZERO)?;
                if more.is_empty() {
                    break;
                }
                packets.extend(more);
            }
            packets.retain(|packet| packet.protocol == UDP);
            if !packets.is_empty() && !tell(packets) {
                break;
            }
        }
        Ok(())
    }
}

/// What is to be caught.
#[derive(Debug)]
pub struct Trap {
    family: Family,
    connection: Connection,
    group: u16,
    laid: HashSet<Flow>,
    /// How often flows were caught and ended, by their first packet.
    ended: HashMap<Flow, HashMap<Packet, u32>>,
    /// What came back as often as it was ended: somebody's rules lead there, and to stop it would help nobody.
    hopeless: HashSet<Flow>,
    is_there: Arc<()>,
}

impl Trap {
    /// A trap that catches nothing yet, and where to hear of what it will. Changes nothing in the kernel. Belongs to the
    /// network namespace of the calling thread.
    pub fn open(family: Family) -> io::Result<(Self, Catches)> {
        let (connection, listener) = (Connection::open()?, Listener::open()?);
        let group = listener.group();
        let trap = Self {
            family,
            connection,
            group,
            laid: HashSet::new(),
            ended: HashMap::new(),
            hopeless: HashSet::new(),
            is_there: Arc::new(()),
        };
        let catches = Catches { listener, trap: Arc::downgrade(&trap.is_there) };
        Ok((trap, catches))
    }

    pub fn is_laid(&self) -> bool {
        !self.laid.is_empty()
    }

    /// Whether a flow that was caught is to end. Its like is let go if it comes back again and again.
    pub fn is_to_end(&mut self, original: Packet, flow: Flow) -> Result<bool, CommitError> {
        if !self.laid.contains(&flow) {
            return Ok(false);
        }
        let ended = self.ended.entry(flow).or_default();
        if ended.len() > MOST {
            ended.clear();
        }
        let times = ended.entry(original).or_default();
        *times += 1;
        if *times > OFTEN {
            self.hopeless.insert(flow);
            self.write(self.laid.iter().copied().filter(|laid| *laid != flow).collect())?;
        }
        Ok(true)
    }

    /// Catches these from now on and nothing else.
    pub fn lay(&mut self, mut wrong: HashSet<Flow>) -> Result<(), CommitError> {
        self.ended.retain(|flow, _| wrong.contains(flow));
        self.hopeless.retain(|flow| wrong.contains(flow));
        wrong.retain(|flow| !self.hopeless.contains(flow));
        self.write(wrong)
    }

    /// Lets go all but these.
    pub fn let_go_but(&mut self, wrong: &HashSet<Flow>) -> Result<(), CommitError> {
        let still = self.laid.union(&self.hopeless).copied().filter(|flow| wrong.contains(flow)).collect();
        self.lay(still)
    }

    fn write(&mut self, wrong: HashSet<Flow>) -> Result<(), CommitError> {
        if wrong == self.laid {
            return Ok(());
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
        Ok(())
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
            // A process of the node's own would be told that it may not send. What it sends to the node itself is stopped on
            // arrival.
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

    /// A packet of either direction of a flow that the kernel has taken down: of one that it has not, nobody has decided yet
    /// where it goes. In another zone than the usual one we would not find it again.
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
            Expression::Conntrack { key: ConntrackKey::Zone, direction: None, to: first },
            compare(Comparison::Equal, [0; 2].into()),
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
