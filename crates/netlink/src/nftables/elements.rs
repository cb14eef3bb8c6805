//! Encodes elements of sets and maps. Splits them into several messages, since the length of a list has 16 bits.

use std::time::Duration;

use crate::buffer::Buffer;
use crate::message::NLM_F_CREATE;
use crate::nftables::batch::Batch;
use crate::nftables::sets::{SetRef, milliseconds};
use crate::nftables::userdata;
use crate::nftables::value::{Value, Verdict, write_value};
use crate::nftables::wire::*;

/// The next element starts a new list when the current one has this size. The largest element, with two keys, a datum, a chain name
/// and a comment, takes less than the remaining kilobyte.
const MAX_LIST: usize = 0xffff - 1024;

/// An element of a set, or of a map if it has data. See [`Element::new`].
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    pub key: Value,
    /// The last key of the range that begins with `key`, in sets of concatenated ranges.
    pub key_end: Option<Value>,
    pub data: Option<Datum<'a>>,
    /// The key is the first one after a range, in interval sets of single fields.
    pub interval_end: bool,
    pub timeout: Option<Duration>,
    /// Truncated to what the kernel can keep.
    pub comment: Option<&'a str>,
}

/// The data of a map element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datum<'a> {
    Value(Value),
    Verdict(Verdict<'a>),
}

impl Element<'_> {
    #[must_use]
    pub fn new(key: impl Into<Value>) -> Self {
        Self { key: key.into(), key_end: None, data: None, interval_end: false, timeout: None, comment: None }
    }

    /// An element of a map.
    #[must_use]
    pub fn pair(key: impl Into<Value>, value: impl Into<Value>) -> Self {
        Self { data: Some(Datum::Value(value.into())), ..Self::new(key) }
    }

    fn write(&self, m: &mut Buffer) {
        if self.interval_end {
            m.be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
        }
        if let Some(timeout) = self.timeout {
            m.be64(NFTA_SET_ELEM_TIMEOUT, milliseconds(timeout));
        }
        self.write_key(m);
        match self.data {
            None => {}
            Some(Datum::Value(value)) => write_value(m, NFTA_SET_ELEM_DATA, &value),
            Some(Datum::Verdict(verdict)) => verdict.write(m, NFTA_SET_ELEM_DATA),
        }
        if self.comment.is_some() {
            userdata::comment(self.comment).write(m, NFTA_SET_ELEM_USERDATA);
        }
    }

    fn write_key(&self, m: &mut Buffer) {
        write_value(m, NFTA_SET_ELEM_KEY, &self.key);
        if let Some(key_end) = &self.key_end {
            write_value(m, NFTA_SET_ELEM_KEY_END, key_end);
        }
    }

    /// The part that identifies an element.
    fn write_to_delete(&self, m: &mut Buffer) {
        if self.interval_end {
            m.be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
        }
        self.write_key(m);
    }
}

impl Batch {
    /// The kernel accepts an element that exists with the same data, and rejects one that exists with other data.
    pub fn add_elements<'a, 's>(
        &mut self,
        set: impl Into<SetRef<'s>>,
        elements: impl IntoIterator<Item = Element<'a>>,
    ) {
        self.elements(NFT_MSG_NEWSETELEM, NLM_F_CREATE, set.into(), elements, Element::write);
    }

    /// The kernel rejects an element that does not exist.
    pub fn delete_elements<'a, 's>(
        &mut self,
        set: impl Into<SetRef<'s>>,
        elements: impl IntoIterator<Item = Element<'a>>,
    ) {
        self.elements(NFT_MSG_DELSETELEM, 0, set.into(), elements, Element::write_to_delete);
    }

    fn elements<'a>(
        &mut self,
        message: u8,
        flags: u16,
        set: SetRef<'_>,
        elements: impl IntoIterator<Item = Element<'a>>,
        write: impl Fn(&Element<'a>, &mut Buffer),
    ) {
        let mut remaining = elements.into_iter();
        while let Some(first) = remaining.next() {
            self.message(message, flags, |m, table| {
                m.string(NFTA_TABLE, table);
                m.string(NFTA_SET_ELEM_LIST_SET, set.name);
                if let Some(id) = set.id {
                    m.be32(NFTA_SET_ELEM_LIST_SET_ID, id);
                }
                m.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |m| {
                    let full = m.len() + MAX_LIST;
                    m.nest(NFTA_LIST_ELEM, |m| write(&first, m));
                    while m.len() < full
                        && let Some(element) = remaining.next()
                    {
                        m.nest(NFTA_LIST_ELEM, |m| write(&element, m));
                    }
                });
            });
        }
    }
}
