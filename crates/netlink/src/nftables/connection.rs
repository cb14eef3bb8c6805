//! The conversation: commit a batch, ask for what the kernel holds.

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
use crate::socket::{DUMP_ATTEMPTS, Protocol, Request, Socket, is, is_loss};

/// Each is answered by a datagram of its own, and all must find room before we read the first, also where
/// the receive buffer may not be raised.
const KEYS_AT_ONCE: usize = 50;

/// Why a batch was not committed. Nothing of it was, in any case.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Someone else changed the ruleset between our read and our write: read again.
    #[error("ruleset changed under us")]
    Stale,
    /// The first object the kernel found fault with; later ones are often its consequence.
    #[error("kernel refused {object}{}", reason(.message))]
    Refused {
        /// In the manner of an `nft` command.
        object: String,
        /// The kernel's own words, if it had any.
        message: String,
        #[source]
        errno: io::Error,
    },
    /// More than the send buffer takes, and we may not raise it: cut it.
    #[error("batch of {bytes} bytes is larger than the send buffer")]
    TooLarge { bytes: usize },
    #[error("cannot reach the kernel")]
    Socket(#[from] io::Error),
}

fn reason(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// A socket for nf_tables. A table with an owner belongs to the connection that added it.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    /// For how long elements that keep changing are read again.
    persistence: Duration,
}

impl Connection {
    /// Belongs to the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)?, persistence: Duration::MAX })
    }

    /// Elements that keep changing while they are read are given up after that time, rather than after many
    /// attempts. The one that is under way is not cut short.
    #[must_use]
    pub fn persistent_for(self, persistence: Duration) -> Self {
        Self { persistence, ..self }
    }

    /// What events caused by this connection carry as their port.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Makes all changes of the batch, or none.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), CommitError> {
        self.send(batch, None, Ending::Commit)
    }

    /// As [`Self::commit`], but only if the ruleset is still at that generation. Any change to any table
    /// of the namespace makes a new one, so this is for batches that follow a read.
    pub fn commit_at(&mut self, generation: u32, batch: &Batch) -> Result<(), CommitError> {
        self.send(batch, Some(generation), Ending::Commit)
    }

    /// Says what [`Self::commit`] would say, and changes nothing.
    pub fn check(&mut self, batch: &Batch) -> Result<(), CommitError> {
        self.send(batch, None, Ending::Abandon)
    }

    fn send(&mut self, batch: &Batch, generation: Option<u32>, ending: Ending) -> Result<(), CommitError> {
        let begin = Batch::begin(generation);
        let end = match ending {
            Ending::Commit => Some(batch.end()),
            Ending::Abandon => None,
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

    /// The kernel has done all its work by the time `send` returns, and we asked for no acknowledgement:
    /// what it has to say is waiting, and silence is success. This holds for every kernel, while
    /// acknowledging the end of a batch is new in 6.10.
    fn first_refusal(&mut self, batch: &Batch) -> Result<(), CommitError> {
        let mut first = Ok(());
        loop {
            let messages = match self.socket.receive_within(Duration::ZERO) {
                Ok(None) => {
                    self.socket.answered();
                    return first;
                }
                Ok(Some(messages)) => messages,
                // So many refusals that some were lost; those that were not can still be read.
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

    /// In the order they were added; none if there is no such table.
    pub fn chains(&mut self, family: Family, table: &str) -> io::Result<Vec<FoundChain>> {
        // The kernel doesn't let us choose the table.
        let in_table = |message: &Message<'_>| FoundChain::from_wire(message).filter(|c| c.table == table);
        self.dump(NFT_MSG_GETCHAIN, family, |_| {}, in_table)
    }

    /// Chain by chain, in the order packets meet them there; none if there is no such table.
    pub fn rules(&mut self, family: Family, table: &str) -> io::Result<Vec<FoundRule>> {
        self.dump(NFT_MSG_GETRULE, family, |m| m.string(NFTA_TABLE, table), FoundRule::from_wire)
    }

    /// `NotFound` if there is no such table.
    pub fn sets(&mut self, family: Family, table: &str) -> io::Result<Vec<FoundSet>> {
        self.dump(NFT_MSG_GETSET, family, |m| m.string(NFTA_TABLE, table), FoundSet::from_wire)
    }

    /// What `read` makes of each element, in no particular order; `NotFound` if there is no such set. If
    /// the set changes while it is read we start again, and `read` sees elements twice.
    ///
    /// Takes time with the square of their number, because the kernel walks over what it has told before:
    /// 0.2 seconds for 50,000, 1.2 for 100,000, half a minute for 500,000.
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
            let mut note = |element: FoundElement<'_>| {
                let identity = (element.key, element.key_end, element.interval_end);
                (state.hash_one(identity), read(element))
            };
            let read_list = |message: &Message<'_>| {
                let elements = FoundElement::all_from_wire(message)?.map(&mut note);
                Some((generation_of(message)?, elements.collect::<Vec<_>>()))
            };
            let lists = self.dump(NFT_MSG_GETSETELEM, family, |m| name_set(m, table, set), read_list)?;
            let same_generation = lists.windows(2).all(|pair| matches!(pair, [(a, _), (b, _)] if a == b));
            let found = lists.into_iter().flat_map(|(_, list)| list).collect::<Vec<_>>();
            if same_generation && no_element_twice(found.iter().map(|(hash, _)| *hash)) {
                return Ok(found.into_iter().map(|(_, element)| element).collect());
            }
            if began.elapsed() >= self.persistence {
                break;
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "set keeps changing while it is read"))
    }

    /// What `read` makes of the elements with these keys, in the same order; `None` for what is not there.
    /// Takes time with their number only, so that a large set is better compared this way: all wanted ones
    /// with what they should lead to, and their count. Asks in many steps; whether something changed
    /// between them is told by the generation before and after.
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
        let mut asked: Vec<Value> = Vec::with_capacity(KEYS_AT_ONCE);
        let mut found = Vec::new();
        loop {
            asked.extend(keys.by_ref().take(KEYS_AT_ONCE - asked.len()));
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
            let told = found.len() - before;
            match outcome {
                Ok(_) if told == asked.len() => asked.clear(),
                // The kernel stops at the first one that is not there, and has told those before it.
                Err(error) if error.kind() == io::ErrorKind::NotFound && told < asked.len() => {
                    found.push(None);
                    asked.drain(..=told);
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

/// The low half of the generation a message was written in. Elements are the only list that the kernel
/// doesn't mark as interrupted when it changes half-way.
fn generation_of(message: &Message<'_>) -> Option<[u8; 2]> {
    let [_, _, high, low] = *message.fixed::<FIXED>()?;
    Some([high, low])
}

/// If a hash table is resized while the kernel walks it, elements come twice and as many don't come at
/// all. The kernel doesn't tell; it was seen right after adding 50,000 elements.
fn no_element_twice(hashes: impl Iterator<Item = u64>) -> bool {
    let mut hashes: Vec<u64> = hashes.collect();
    hashes.sort_unstable();
    hashes.is_sorted_by(|a, b| a < b)
}

#[derive(Clone, Copy)]
enum Ending {
    Commit,
    Abandon,
}

fn refused(batch: &Batch, sequence: u32, refusal: Refusal) -> CommitError {
    // Another generation is what the message that begins the batch is refused for. But if the kernel has loaded a module
    // and begins again, it names the message at which it noticed that it had to: net/netfilter/nfnetlink.c.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::{Element, Field, Set, Table};
    use crate::testing::in_fresh_netns;

    #[test]
    fn a_batch_that_does_not_fit_is_to_be_cut() {
        in_fresh_netns(|| {
            let mut connection = Connection::open().unwrap();
            connection.socket.make_no_room();
            let mut batch = Batch::new(Family::Ipv4, "t");
            batch.add_table(&Table::default());
            batch.add_set(&Set::new("s", &[Field::Mark]));
            connection.commit(&batch).expect("a small one fits");
            batch.add_elements("s", (0..1_000_000_u32).map(|number| Element::new(number.to_ne_bytes())));
            let refused = connection.commit(&batch).unwrap_err();
            assert!(
                matches!(refused, CommitError::TooLarge { bytes } if bytes == batch.len()),
                "{refused:?}"
            );
        });
    }
}
