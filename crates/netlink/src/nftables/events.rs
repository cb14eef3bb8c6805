//! Receives notifications of changes to the ruleset: one for each object of a commit, then one for the commit.
//!
//! A subscription makes every commit slower, including our own, since the kernel encodes a message for each object.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::Family;
use crate::message::Message;
use crate::nftables::read::{Generation, family};
use crate::nftables::wire::*;
use crate::socket::{NetlinkProtocol, Socket, is_loss};

/// A change to the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification<'a> {
    /// The end of a commit. The events since the previous one are its parts.
    Committed {
        generation: Generation,
        /// The port of the socket that committed. Unlike the pid, it is the same in all pid namespaces.
        port: u32,
    },
    Added {
        object: NotifiedObject,
        family: Family,
        table: &'a str,
        /// The chain itself, or that of the rule; `None` for other objects.
        chain: Option<&'a str>,
        port: u32,
    },
    /// The kernel may send a single event for a table and everything in it.
    Deleted { object: NotifiedObject, family: Family, table: &'a str, chain: Option<&'a str>, port: u32 },
    /// Some events were lost: anything may have changed.
    Lost,
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotifiedObject {
    Table,
    Chain,
    Rule,
    Set,
    /// One or more elements of a set.
    Elements,
    /// A stateful object or a flow table, which this crate never creates.
    Other,
}

impl<'a> Notification<'a> {
    /// `None` unless the message is an event of an IP family.
    #[must_use]
    pub fn from_wire(message: &Message<'a>) -> Option<Self> {
        let port = message.header.port;
        let number = message_of(message.header.kind)?;
        if let Some(generation) = Generation::from_wire(message) {
            return Some(Self::Committed { generation, port });
        }
        let (object, added) = match number {
            NFT_MSG_NEWTABLE => (NotifiedObject::Table, true),
            NFT_MSG_DELTABLE => (NotifiedObject::Table, false),
            NFT_MSG_NEWCHAIN => (NotifiedObject::Chain, true),
            NFT_MSG_DELCHAIN => (NotifiedObject::Chain, false),
            NFT_MSG_NEWRULE => (NotifiedObject::Rule, true),
            NFT_MSG_DELRULE => (NotifiedObject::Rule, false),
            NFT_MSG_NEWSET => (NotifiedObject::Set, true),
            NFT_MSG_DELSET => (NotifiedObject::Set, false),
            NFT_MSG_NEWSETELEM => (NotifiedObject::Elements, true),
            NFT_MSG_DELSETELEM => (NotifiedObject::Elements, false),
            NFT_MSG_NEWOBJ | NFT_MSG_NEWFLOWTABLE => (NotifiedObject::Other, true),
            NFT_MSG_DELOBJ | NFT_MSG_DELFLOWTABLE => (NotifiedObject::Other, false),
            _ => return None,
        };
        let family = family(message)?;
        let attributes = message.attributes(FIXED);
        let table = attributes.find(NFTA_TABLE)?.str()?;
        let chain = match object {
            NotifiedObject::Chain => attributes.find(NFTA_CHAIN_NAME),
            NotifiedObject::Rule => attributes.find(NFTA_RULE_CHAIN),
            NotifiedObject::Table
            | NotifiedObject::Set
            | NotifiedObject::Elements
            | NotifiedObject::Other => None,
        };
        let chain = chain.and_then(|chain| chain.str());
        Some(if added {
            Self::Added { object, family, table, chain, port }
        } else {
            Self::Deleted { object, family, table, chain, port }
        })
    }
}

/// Receives all changes to the ruleset of one network namespace.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Belongs to the namespace of the calling thread. Open it before the first read, so that no change is missed.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::subscribe(NetlinkProtocol::Netfilter, &[NFNLGRP_NFTABLES])? })
    }

    /// Calls `see` with the events of the next datagram, and returns whether there was one. Waits up to `time` for it.
    pub fn receive_within(
        &mut self,
        time: Duration,
        mut see: impl FnMut(Notification<'_>),
    ) -> io::Result<bool> {
        match self.socket.receive_within(time) {
            Ok(None) => Ok(false),
            Ok(Some(messages)) => {
                messages.filter_map(|message| Notification::from_wire(&message)).for_each(see);
                Ok(true)
            }
            Err(error) if is_loss(&error) => {
                see(Notification::Lost);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Monitor {
    /// For polling. Receive by [`Monitor::receive_within`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
