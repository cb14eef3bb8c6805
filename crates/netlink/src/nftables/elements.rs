//! Elements of sets and maps: many to a message, split so that no list outgrows its 16-bit length.

use std::time::Duration;

use crate::buffer::Buffer;
use crate::message::NLM_F_CREATE;
use crate::nftables::batch::Batch;
use crate::nftables::sets::{SetRef, milliseconds};
use crate::nftables::userdata;
use crate::nftables::value::{Value, Verdict, write_value};
use crate::nftables::wire::*;

/// When a list has grown to this, the next element starts a new one: two keys, a datum, a chain name and
/// a comment of the greatest size take less than the rest.
const FULL: usize = 0xffff - 1024;

/// An element of a set, or of a map if it has data. Start from [`Element::new`].
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    pub key: Value,
    /// The last key of the range that begins with `key`, in sets of concatenated ranges.
    pub key_end: Option<Value>,
    pub data: Option<Datum<'a>>,
    /// The key is the first one after a range, in interval sets of single fields.
    pub interval_end: bool,
    pub timeout: Option<Duration>,
    /// Cut if it is longer than the kernel keeps.
    pub comment: Option<&'a str>,
}

/// What an element of a map leads to.
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

    /// The key leads to that value.
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

    /// What finds an element: its data and comment don't matter.
    fn write_to_delete(&self, m: &mut Buffer) {
        if self.interval_end {
            m.be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
        }
        self.write_key(m);
    }
}

impl Batch {
    /// No error for one that is there already with the same data; refused if it is there with other data.
    pub fn add_elements<'a, 's>(
        &mut self,
        set: impl Into<SetRef<'s>>,
        elements: impl IntoIterator<Item = Element<'a>>,
    ) {
        self.elements(NFT_MSG_NEWSETELEM, NLM_F_CREATE, set.into(), elements, Element::write);
    }

    /// Refused if one is not there.
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
        let mut rest = elements.into_iter();
        while let Some(first) = rest.next() {
            self.message(message, flags, |m, table| {
                m.string(NFTA_TABLE, table);
                m.string(NFTA_SET_ELEM_LIST_SET, set.name);
                if let Some(id) = set.id {
                    m.be32(NFTA_SET_ELEM_LIST_SET_ID, id);
                }
                m.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |m| {
                    let full = m.len() + FULL;
                    m.nest(NFTA_LIST_ELEM, |m| write(&first, m));
                    while m.len() < full
                        && let Some(element) = rest.next()
                    {
                        m.nest(NFTA_LIST_ELEM, |m| write(&element, m));
                    }
                });
            });
        }
    }
}
