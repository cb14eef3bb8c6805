//! Lists and deletes the flows of the kernel's conntrack table. `plan::flows` decides which ones.

use std::io;

use model::address::Family;
use model::names::Protocol;
use netlink::conntrack::{self as wire, ConntrackSocket, Handle};
use plan::flows::{FlowFilter, TrackedFlow};

use crate::{protocol_number, wire_family};

/// The flows of one family, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct ConntrackTable {
    family: Family,
    socket: ConntrackSocket,
}

/// A flow that was listed, with the kernel's handle of it.
#[derive(Debug)]
pub struct Listed {
    pub flow: TrackedFlow,
    entry: (wire::Flow, Handle),
}

impl ConntrackTable {
    pub fn open(family: Family) -> io::Result<Self> {
        Ok(Self { family, socket: ConntrackSocket::open()? })
    }

    /// The flows that match `filter` and that `keep` accepts. After an error the caller has to open the table again, since the
    /// socket may still receive answers to this request.
    pub fn list(
        &mut self,
        filter: FlowFilter,
        mut keep: impl FnMut(&TrackedFlow) -> bool,
    ) -> io::Result<Vec<Listed>> {
        let FlowFilter { protocol, destination, only_attempts } = filter;
        let filter = wire::Filter { protocol: protocol_number(protocol), destination, only_attempts };
        let entries =
            self.socket.flows(wire_family(self.family), filter, |entry| keep(&flow(protocol, entry)))?;
        let listed = |entry: (wire::Flow, Handle)| Listed { flow: flow(protocol, &entry.0), entry };
        Ok(entries.into_iter().map(listed).collect())
    }

    /// Deletes flows and returns how many it deleted. A connection attempt is looked up right before, and stays if it has
    /// received a reply.
    pub fn delete(&mut self, flows: Vec<Listed>) -> io::Result<usize> {
        let (udp, attempts): (Vec<_>, Vec<_>) =
            flows.into_iter().partition(|listed| listed.flow.protocol == Protocol::Udp);
        let entries = |flows: Vec<Listed>| flows.into_iter().map(|listed| listed.entry).collect::<Vec<_>>();
        let family = wire_family(self.family);
        let deleted = self.socket.end(family, &entries(udp))?;
        Ok(deleted + self.socket.end_unanswered(family, &entries(attempts))?)
    }
}

/// Makes the kernel load connection tracking, if that is a module which no rule has needed yet. The kernel loads what a netlink
/// request needs, for which the caller needs no further privilege.
pub fn load() -> io::Result<()> {
    ConntrackSocket::open()?.count().map(drop)
}

fn flow(protocol: Protocol, entry: &wire::Flow) -> TrackedFlow {
    TrackedFlow {
        protocol,
        to: entry.original.destination,
        answered_by: entry.reply.source,
        has_reply: entry.has_reply,
    }
}
