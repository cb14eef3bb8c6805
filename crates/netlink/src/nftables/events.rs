//! Who changes the ruleset: the kernel tells of every object of every commit, and then of the commit.
//!
//! Listening makes each commit dearer, since the kernel writes a message for each object of it, our own
//! commits included.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::Family;
use crate::message::Message;
use crate::nftables::read::{Generation, family};
use crate::nftables::wire::*;
use crate::socket::{Protocol, Socket, is_loss};

/// Something that happened to the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A commit is complete; the events before it, back to the last such one, were its parts.
    Committed {
        generation: Generation,
        /// Of the socket that committed. Unlike the pid it means the same inside containers.
        port: u32,
    },
    Added {
        object: Object,
        family: Family,
        table: &'a str,
        /// The one added, or the one the rule is in; none for other objects.
        chain: Option<&'a str>,
        port: u32,
    },
    /// Of a deleted table only the table may be told, not what was in it.
    Deleted { object: Object, family: Family, table: &'a str, chain: Option<&'a str>, port: u32 },
    /// Some events found no room: anything may have happened.
    Lost,
}

/// What kind of thing was added or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    Table,
    Chain,
    Rule,
    Set,
    /// One or more of a set.
    Elements,
    /// Something we never make: a stateful object or a flow table.
    Other,
}

impl<'a> Event<'a> {
    /// `None` for what is no event, or in a family that isn't ours.
    #[must_use]
    pub fn from_wire(message: &Message<'a>) -> Option<Self> {
        let port = message.header.port;
        let number = message_of(message.header.kind)?;
        if let Some(generation) = Generation::from_wire(message) {
            return Some(Self::Committed { generation, port });
        }
        let (object, added) = match number {
            NFT_MSG_NEWTABLE => (Object::Table, true),
            NFT_MSG_DELTABLE => (Object::Table, false),
            NFT_MSG_NEWCHAIN => (Object::Chain, true),
            NFT_MSG_DELCHAIN => (Object::Chain, false),
            NFT_MSG_NEWRULE => (Object::Rule, true),
            NFT_MSG_DELRULE => (Object::Rule, false),
            NFT_MSG_NEWSET => (Object::Set, true),
            NFT_MSG_DELSET => (Object::Set, false),
            NFT_MSG_NEWSETELEM => (Object::Elements, true),
            NFT_MSG_DELSETELEM => (Object::Elements, false),
            NFT_MSG_NEWOBJ | NFT_MSG_NEWFLOWTABLE => (Object::Other, true),
            NFT_MSG_DELOBJ | NFT_MSG_DELFLOWTABLE => (Object::Other, false),
            _ => return None,
        };
        let family = family(message)?;
        let attributes = message.attributes(FIXED);
        let table = attributes.find(NFTA_TABLE)?.str()?;
        let chain = match object {
            Object::Chain => attributes.find(NFTA_CHAIN_NAME),
            Object::Rule => attributes.find(NFTA_RULE_CHAIN),
            Object::Table | Object::Set | Object::Elements | Object::Other => None,
        };
        let chain = chain.and_then(|chain| chain.str());
        Some(if added {
            Self::Added { object, family, table, chain, port }
        } else {
            Self::Deleted { object, family, table, chain, port }
        })
    }
}

/// Hears of all changes to the ruleset of one network namespace.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Belongs to the namespace of the calling thread. Open it before reading what is to be watched.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::subscribe(Protocol::Netfilter, &[NFNLGRP_NFTABLES])? })
    }

    /// Shows `see` the next few events, waiting up to that time for the first. Whether there were any.
    pub fn receive_within(&mut self, time: Duration, mut see: impl FnMut(Event<'_>)) -> io::Result<bool> {
        match self.socket.receive_within(time) {
            Ok(None) => Ok(false),
            Ok(Some(messages)) => {
                messages.filter_map(|message| Event::from_wire(&message)).for_each(see);
                Ok(true)
            }
            Err(error) if is_loss(&error) => {
                see(Event::Lost);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Monitor {
    /// To be polled; read through [`Monitor::receive_within`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
