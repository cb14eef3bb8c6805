//! A transaction being written: all of it happens, or nothing.

use std::io::IoSlice;

use crate::Family;
use crate::buffer::Buffer;
use crate::message::{Header, Message, Messages, NLM_F_REQUEST};
use crate::nftables::wire::*;

/// Changes to one table, in the order they will be made. Keeps its memory when cleared, to be used again.
///
/// What is added must come after what it refers to: sets before their elements and rules, chains before
/// whatever leads to them.
#[derive(Clone, Debug)]
pub struct Batch {
    family: Family,
    table: Box<str>,
    messages: Buffer,
    count: u32,
    set_ids: u32,
}

impl Batch {
    #[must_use]
    pub fn new(family: Family, table: &str) -> Self {
        Self { family, table: table.into(), messages: Buffer::new(), count: 0, set_ids: 0 }
    }

    pub fn clear(&mut self) {
        self.messages.clear();
        self.count = 0;
        self.set_ids = 0;
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Bytes to be sent in one piece. The kernel takes hundreds of megabytes if the send buffer may be
    /// forced, else a few hundred kilobytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Appends one message; `body` is given the table's name.
    pub(super) fn message(&mut self, message: u8, flags: u16, body: impl FnOnce(&mut Buffer, &str)) {
        self.count += 1;
        let header = header(kind(message), flags, self.count);
        self.messages.message(header, &fixed(self.family.to_wire()), |m| body(m, &self.table));
    }

    /// Appends a message that says no more than the name of something in the table.
    pub(super) fn named(&mut self, message: u8, attribute: u16, name: &str) {
        self.message(message, 0, |m, table| {
            m.string(NFTA_TABLE, table);
            m.string(attribute, name);
        });
    }

    /// Sets are numbered within their batch; anonymous ones have no other name yet.
    pub(super) const fn next_set_id(&mut self) -> u32 {
        self.set_ids += 1;
        self.set_ids
    }

    /// What `sendmsg` takes, between the messages that open and close a transaction. Without the closing
    /// one the kernel tries everything and then forgets it.
    pub(super) fn parts<'a>(&'a self, begin: &'a Buffer, end: Option<&'a Buffer>) -> Vec<IoSlice<'a>> {
        let mut parts = vec![IoSlice::new(begin.as_bytes()), IoSlice::new(self.messages.as_bytes())];
        parts.extend(end.map(|end| IoSlice::new(end.as_bytes())));
        parts
    }

    /// Opens the transaction, on condition of the ruleset's generation if one is given.
    pub(super) fn begin(generation: Option<u32>) -> Buffer {
        let mut begin = Buffer::new();
        begin.message(header(NFNL_MSG_BATCH_BEGIN, 0, 0), &SUBSYSTEM, |m| {
            if let Some(generation) = generation {
                m.be32(NFNL_BATCH_GENID, generation);
            }
        });
        begin
    }

    pub(super) fn end(&self) -> Buffer {
        let mut end = Buffer::new();
        end.message(header(NFNL_MSG_BATCH_END, 0, self.count.wrapping_add(1)), &SUBSYSTEM, |_| {});
        end
    }

    /// The message with that number, counted from one; zero is the one that begins the transaction.
    pub(super) fn find(&self, sequence: u32) -> Option<Message<'_>> {
        Messages::new(self.messages.as_bytes()).find(|message| message.header.sequence == sequence)
    }

    #[cfg(test)]
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.messages.as_bytes()
    }
}

/// A `struct nfgenmsg` for the whole of nf_tables.
const SUBSYSTEM: [u8; FIXED] = [0, 0, 0, NFNL_SUBSYS_NFTABLES];

const fn header(kind: u16, flags: u16, sequence: u32) -> Header {
    Header { kind, flags: flags | NLM_F_REQUEST, sequence, port: 0 }
}
