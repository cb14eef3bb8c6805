//! Encodes a transaction, which the kernel commits as a whole or not at all.

use std::io::IoSlice;

use crate::Family;
use crate::buffer::Buffer;
use crate::message::{Header, Message, Messages, NLM_F_REQUEST};
use crate::nftables::wire::*;

/// Changes to one table, in order.
///
/// Objects must be added before others refer to them: sets before their elements and rules, chains before rules that jump to
/// them.
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

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The size in bytes of the datagram. The kernel accepts hundreds of megabytes if the send buffer can be forced, otherwise a
    /// few hundred kilobytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Appends one message. `body` gets the name of the table.
    pub(super) fn message(&mut self, message: u8, flags: u16, body: impl FnOnce(&mut Buffer, &str)) {
        self.count += 1;
        let header = header(kind(message), flags, self.count);
        self.messages.message(header, &fixed(self.family.to_wire()), |m| body(m, &self.table));
    }

    /// Appends a message that only names an object of the table.
    pub(super) fn named(&mut self, message: u8, attribute: u16, name: &str) {
        self.message(message, 0, |m, table| {
            m.string(NFTA_TABLE, table);
            m.string(attribute, name);
        });
    }

    /// Sets are numbered within a batch.
    pub(super) const fn next_set_id(&mut self) -> u32 {
        self.set_ids += 1;
        self.set_ids
    }

    /// The parts of the datagram. Without `end`, the kernel validates the transaction and then aborts it.
    pub(super) fn parts<'a>(&'a self, begin: &'a Buffer, end: Option<&'a Buffer>) -> Vec<IoSlice<'a>> {
        let mut parts = vec![IoSlice::new(begin.as_bytes()), IoSlice::new(self.messages.as_bytes())];
        parts.extend(end.map(|end| IoSlice::new(end.as_bytes())));
        parts
    }

    /// The message that begins the transaction, on condition that the ruleset is at `generation`, if given.
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

    /// The message with this sequence number. They count from one; zero is the message that begins the transaction.
    pub(super) fn find(&self, sequence: u32) -> Option<Message<'_>> {
        Messages::new(self.messages.as_bytes()).find(|message| message.header.sequence == sequence)
    }

    #[cfg(test)]
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.messages.as_bytes()
    }
}

/// The `struct nfgenmsg` that selects nf_tables.
const SUBSYSTEM: [u8; FIXED] = [0, 0, 0, NFNL_SUBSYS_NFTABLES];

const fn header(kind: u16, flags: u16, sequence: u32) -> Header {
    Header { kind, flags: flags | NLM_F_REQUEST, sequence, port: 0 }
}
