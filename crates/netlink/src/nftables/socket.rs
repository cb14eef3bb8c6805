//! Commits batches, and reads the ruleset.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::Family;
use crate::buffer::Buffer;
use crate::message::{Message, Outcome, Refusal};
use crate::nftables::batch::Batch;
use crate::nftables::describe::describe;
use crate::nftables::read::{FoundChain, FoundElement, FoundRule, FoundSet, FoundTable, Generation};
use crate::nftables::value::Value;
use crate::nftables::value::write_value;
use crate::nftables::wire::*;
use crate::socket::{DUMP_ATTEMPTS, NetlinkProtocol, Request, Socket, is, is_loss};

/// The kernel answers each key by a datagram of its own, and all must fit into the receive buffer, even if that cannot be
/// raised.
const KEYS_PER_REQUEST: usize = 50;

/// Why a batch was not committed. No part of it was.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Another program changed the ruleset after the caller read it. The caller has to read it again.
    #[error("ruleset changed under us")]
    Stale,
    /// The first object that the kernel rejected. Later errors are often consequences of it.
    #[error("kernel refused {object}{}", reason(.message))]
    Refused {
        /// Formatted like an `nft` command.
        object: String,
        /// The extended acknowledgement, or empty.
        message: String,
        #[source]
        errno: io::Error,
    },
    /// The send buffer is too small and cannot be raised. The caller has to split the batch.
    #[error("batch of {bytes} bytes is larger than the send buffer")]
    TooLarge { bytes: usize },
    #[error("cannot reach the kernel")]
    Socket(#[from] io::Error),
}

fn reason(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// A socket for nf_tables. A table with an owner belongs to the socket that added it.
#[derive(Debug)]
pub struct NftablesSocket {
    socket: Socket,
    /// How long to retry a dump of elements that change meanwhile.
    retry_limit: Duration,
}

impl NftablesSocket {
    /// Belongs to the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(NetlinkProtocol::Netfilter)?, retry_limit: Duration::MAX })
    }

    /// Stops retrying dumps of elements that change meanwhile after this time, rather than after many attempts. Does not
    /// interrupt the last attempt.
    #[must_use]
    pub fn retrying_for(self, retry_limit: Duration) -> Self {
        Self { retry_limit, ..self }
    }

    /// The netlink port, which events caused by this socket carry.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Keeps the send buffer from being raised for large batches.
    #[cfg(feature = "testing")]
    pub fn keep_send_buffer(&mut self) {
        self.socket.keep_send_buffer();
    }

    /// Commits all changes of the batch, or none.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), CommitError> {
        self.send(batch, None, Ending::Commit)
    }

    /// Like [`Self::commit`], but only if the ruleset is still at this generation. Every commit to any table of the namespace
    /// increments it, so this is for batches that depend on what was read.
    pub fn commit_at(&mut self, generation: u32, batch: &Batch) -> Result<(), CommitError> {
        self.send(batch, Some(generation), Ending::Commit)
    }

    /// Returns what [`Self::commit`] would return, and changes nothing.
    pub fn check(&mut self, batch: &Batch) -> Result<(), CommitError> {
        self.send(batch, None, Ending::Abort)
    }

    fn send(&mut self, batch: &Batch, generation: Option<u32>, ending: Ending) -> Result<(), CommitError> {
        let begin = Batch::begin(generation);
        let end = match ending {
            Ending::Commit => Some(batch.end()),
            Ending::Abort => None,
        };
        self.socket.send(&batch.parts(&begin, end.as_ref())).map_err(|error| {
            if is(&error, Errno::MSGSIZE) {
                CommitError::TooLarge { bytes: batch.len() }
            } else {
                error.into()
            }
        })?;
        self.first_refusal(batch)
    }

    /// The kernel has processed the batch when `send` returns, and no acknowledgement was requested: errors are in the receive
    /// buffer, and their absence means success. This holds for all kernels, while the acknowledgement of a batch needs 6.10.
    fn first_refusal(&mut self, batch: &Batch) -> Result<(), CommitError> {
        let mut first = Ok(());
        loop {
            let messages = match self.socket.receive_within(Duration::ZERO) {
                Ok(None) => {
                    self.socket.answered();
                    return first;
                }
                Ok(Some(messages)) => messages,
                // Some errors were lost. The others can still be received.
                Err(error) if is_loss(&error) => {
                    first = first.and(Err(CommitError::Socket(error)));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for message in messages {
                if let Outcome::Refused(refusal) = message.outcome()
                    && matches!(first, Ok(()) | Err(CommitError::Socket(_)))
                {
                    first = Err(refused(batch, message.header.sequence, refusal));
                }
            }
        }
    }

    /// The current generation of the ruleset, all tables of the namespace together.
    pub fn generation(&mut self) -> io::Result<Generation> {
        let request = Request { kind: kind(NFT_MSG_GETGEN), flags: 0, fixed: &fixed(0) };
        let found = self.socket.ask(request, |_| {}, Generation::from_wire)?;
        found.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub fn tables(&mut self, family: Family) -> io::Result<Vec<FoundTable>> {
        self.dump(NFT_MSG_GETTABLE, family, |_| {}, FoundTable::from_wire)
    }

    /// In the order they were added. Empty if the table does not exist.
    pub fn chains(&mut self, family: Family, table: &str) -> io::Result<Vec<FoundChain>> {
        // The kernel has no filter by table.
        let in_table = |message: &Message<'_>| FoundChain::from_wire(message).filter(|c| c.table == table);
        self.dump(NFT_MSG_GETCHAIN, family, |_| {}, in_table)
    }

    /// Chain by chain, in the order of evaluation. Empty if the table does not exist.
    pub fn rules(&mut self, family: Family, table: &str) -> io::Result<Vec<FoundRule>> {
        self.dump(NFT_MSG_GETRULE, family, |m| m.string(NFTA_TABLE, table), FoundRule::from_wire)
    }

    /// Fails with `NotFound` if the table does not exist.
    pub fn sets(&mut self, family: Family, table: &str) -> io::Result<Vec<FoundSet>> {
        self.dump(NFT_MSG_GETSET, family, |m| m.string(NFTA_TABLE, table), FoundSet::from_wire)
    }

    /// What `read` returns for each element, in no particular order. Fails with `NotFound` if the set does not exist. If the set
    /// changes meanwhile, the dump starts again and `read` sees elements twice.
    ///
    /// Takes quadratic time, because the kernel skips the elements of earlier datagrams one by one: 0.2 seconds for 50,000, 1.2
    /// for 100,000, half a minute for 500,000.
    pub fn elements<T>(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        mut read: impl FnMut(FoundElement<'_>) -> T,
    ) -> io::Result<Vec<T>> {
        let began = Instant::now();
        for _ in 0..DUMP_ATTEMPTS {
            let state = RandomState::new();
            let mut hash_and_read = |element: FoundElement<'_>| {
                let identity = (element.key, element.key_end, element.interval_end);
                (state.hash_one(identity), read(element))
            };
            let read_list = |message: &Message<'_>| {
                let elements = FoundElement::all_from_wire(message)?.map(&mut hash_and_read);
                Some((generation_of(message)?, elements.collect::<Vec<_>>()))
            };
            let lists = self.dump(NFT_MSG_GETSETELEM, family, |m| name_set(m, table, set), read_list)?;
            let same_generation = lists.windows(2).all(|pair| matches!(pair, [(a, _), (b, _)] if a == b));
            let found = lists.into_iter().flat_map(|(_, list)| list).collect::<Vec<_>>();
            if same_generation && has_no_duplicates(found.iter().map(|(hash, _)| *hash)) {
                return Ok(found.into_iter().map(|(_, element)| element).collect());
            }
            if began.elapsed() >= self.retry_limit {
                break;
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "set keeps changing while it is read"))
    }

    /// What `read` returns for the elements with these keys, in the same order; `None` for keys that do not exist.
    ///
    /// Takes linear time, so that a large set is better compared this way: look up all desired keys, and compare the count. Sends
    /// many requests; compare the generation before and after to detect changes between them.
    pub fn elements_at<T>(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        keys: impl IntoIterator<Item = Value>,
        mut read: impl FnMut(FoundElement<'_>) -> T,
    ) -> io::Result<Vec<Option<T>>> {
        let fixed = fixed(family.to_wire());
        let request = Request { kind: kind(NFT_MSG_GETSETELEM), flags: 0, fixed: &fixed };
        let mut keys = keys.into_iter();
        let mut asked: Vec<Value> = Vec::with_capacity(KEYS_PER_REQUEST);
        let mut found = Vec::new();
        loop {
            asked.extend(keys.by_ref().take(KEYS_PER_REQUEST - asked.len()));
            if asked.is_empty() {
                return Ok(found);
            }
            let body = |m: &mut Buffer| {
                name_set(m, table, set);
                m.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |m| {
                    for key in &asked {
                        m.nest(NFTA_LIST_ELEM, |m| write_value(m, NFTA_SET_ELEM_KEY, key));
                    }
                });
            };
            let before = found.len();
            let outcome = self.socket.ask(request, body, |message| {
                found.extend(FoundElement::all_from_wire(message)?.map(|element| Some(read(element))));
                Some(())
            });
            let received = found.len() - before;
            match outcome {
                Ok(_) if received == asked.len() => asked.clear(),
                // The kernel stops at the first key that does not exist, after it has sent those before.
                Err(error) if error.kind() == io::ErrorKind::NotFound && received < asked.len() => {
                    found.push(None);
                    asked.drain(..=received);
                }
                Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
                Err(error) => return Err(error),
            }
        }
    }

    fn dump<T>(
        &mut self,
        message: u8,
        family: Family,
        body: impl Fn(&mut Buffer),
        read: impl FnMut(&Message<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let fixed = fixed(family.to_wire());
        self.socket.dump(Request { kind: kind(message), flags: 0, fixed: &fixed }, body, read)
    }
}

fn name_set(m: &mut Buffer, table: &str, set: &str) {
    m.string(NFTA_TABLE, table);
    m.string(NFTA_SET_ELEM_LIST_SET, set);
}

/// The low half of the generation that a message was created in. The kernel does not set `NLM_F_DUMP_INTR` in dumps of
/// elements, unlike in all others.
fn generation_of(message: &Message<'_>) -> Option<[u8; 2]> {
    let [_, _, high, low] = *message.fixed::<FIXED>()?;
    Some([high, low])
}

/// If a hash table is resized while the kernel walks it, some elements are dumped twice and as many not at all. The kernel does
/// not report this; it was observed right after adding 50,000 elements.
fn has_no_duplicates(hashes: impl Iterator<Item = u64>) -> bool {
    let mut hashes: Vec<u64> = hashes.collect();
    hashes.sort_unstable();
    hashes.is_sorted_by(|a, b| a < b)
}

#[derive(Clone, Copy)]
enum Ending {
    Commit,
    Abort,
}

fn refused(batch: &Batch, sequence: u32, refusal: Refusal) -> CommitError {
    // If the generation differs, the kernel rejects the message that begins the batch. But if it has to restart after loading a
    // module, it names the message that needed the module: net/netfilter/nfnetlink.c.
    if is(&refusal.errno, Errno::RESTART) {
        return CommitError::Stale;
    }
    match batch.find(sequence) {
        None => CommitError::Refused {
            object: "transaction".into(),
            message: refusal.text.unwrap_or_default(),
            errno: refusal.errno,
        },
        Some(message) => CommitError::Refused {
            object: describe(&message, refusal.offset),
            message: refusal.text.unwrap_or_default(),
            errno: refusal.errno,
        },
    }
}
