//! Injects faults between a socket and the kernel, for tests. Behind the feature `testing`.
//!
//! ```text
//!   Socket ─▶ faults ─▶ calls ─▶ kernel
//! ```
//!
//! A test enables them for the sockets of its own thread while a closure runs: see [`Faults::during`]. A seed determines which
//! calls fail, and how. Only faults that the kernel can produce are injected: it never loses an answer without reporting
//! `ENOBUFS`, and never denies that an existing object exists.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::io::{Errno, Result};

use crate::calls::{self, Datagram};
use crate::message::{HEADER, Header, Messages, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR};

const NLM_F_MULTI: u16 = 0x2;
/// `NFNL_MSG_BATCH_BEGIN`.
const BATCH_BEGIN: u16 = 0x10;

/// A way for a call to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A signal interrupts the call, which has to be repeated.
    Interrupted,
    /// The call is delayed.
    Delayed,
    /// The kernel has no memory for the message, and does not process it.
    Unsent,
    /// The kernel rejects each request, or one message of the batch, and changes nothing.
    Refused,
    /// The kernel rejects the batch because the ruleset has changed, and names any message of it.
    Stale,
    /// The kernel performs the request, and its answer is lost.
    AnswerLost,
    /// One datagram is lost.
    Overrun,
    /// The socket reports `ENOBUFS`, but the answer was not lost.
    Congested,
    /// There is no memory to receive with; the datagram stays.
    Unread,
    /// A datagram is truncated.
    Short,
    /// A datagram is longer than the receive buffer.
    Long,
    /// The list has changed while it was dumped.
    DumpInterrupted,
    /// A dump ends with an error, and its remaining messages follow.
    DumpFailed,
    /// A wait ends before there is a datagram.
    Woken,
}

impl Fault {
    pub const ALL: [Self; 14] = [
        Self::Interrupted,
        Self::Delayed,
        Self::Unsent,
        Self::Refused,
        Self::Stale,
        Self::AnswerLost,
        Self::Overrun,
        Self::Congested,
        Self::Unread,
        Self::Short,
        Self::Long,
        Self::DumpInterrupted,
        Self::DumpFailed,
        Self::Woken,
    ];
}

/// Pseudo-random numbers from a seed: Steele, Lea and Flood's SplitMix.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    #[must_use]
    pub const fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`, which must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        usize::try_from(bits % end as u64).unwrap_or_default()
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        choices.get(self.below(choices.len().max(1))).copied()
    }
}

/// Called before each system call, with faults disabled.
type Observer = Box<dyn FnMut()>;

/// Decides which calls fail, and how.
pub struct Faults {
    chance: Chance,
    /// Failing calls per thousand.
    rate: usize,
    kinds: Vec<Fault>,
    injected: BTreeMap<Fault, usize>,
    /// Answers to deliver in place of those of the kernel, by socket.
    forged: HashMap<RawFd, VecDeque<Answer>>,
    observer: Option<Observer>,
}

enum Answer {
    Datagram(Vec<u8>),
    Error(Errno),
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("injected", &self.injected).finish_non_exhaustive()
    }
}

thread_local! {
    static ACTIVE: RefCell<Option<Faults>> = const { RefCell::new(None) };
}

impl Faults {
    /// Lets `rate` of a thousand calls fail in one of these ways.
    #[must_use]
    pub fn new(seed: u64, rate: usize, kinds: &[Fault]) -> Self {
        Self {
            chance: Chance::from_seed(seed),
            rate,
            kinds: kinds.to_vec(),
            injected: BTreeMap::new(),
            forged: HashMap::new(),
            observer: None,
        }
    }

    /// Calls `observe` before each system call. Its own calls neither fail nor are observed.
    #[must_use]
    pub fn observed_by(mut self, observe: impl FnMut() + 'static) -> Self {
        self.observer = Some(Box::new(observe));
        self
    }

    /// Lets calls of this thread fail while `body` runs.
    pub fn during<T>(&mut self, body: impl FnOnce() -> T) -> T {
        struct Restore<'a>(&'a mut Faults);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                if let Some(faults) = ACTIVE.take() {
                    *self.0 = faults;
                }
            }
        }
        let taken = std::mem::replace(self, Self::new(0, 0, &[]));
        ACTIVE.set(Some(taken));
        let restore = Restore(self);
        let result = body();
        drop(restore);
        self.forged.clear();
        result
    }

    /// How often each fault has been injected.
    #[must_use]
    pub fn injected(&self) -> &BTreeMap<Fault, usize> {
        &self.injected
    }

    /// One of these faults, if this call is to fail.
    fn strike(&mut self, possible: &[Fault]) -> Option<Fault> {
        if self.chance.below(1_000) >= self.rate {
            return None;
        }
        let possible: Vec<Fault> =
            possible.iter().copied().filter(|fault| self.kinds.contains(fault)).collect();
        let fault = self.chance.one_of(&possible)?;
        *self.injected.entry(fault).or_default() += 1;
        Some(fault)
    }
}

/// Takes the faults of this thread for one call, which itself runs without faults.
fn with<T>(call: impl FnOnce(Option<&mut Faults>) -> T) -> T {
    let mut faults = ACTIVE.take();
    if let Some(observe) = faults.as_mut().and_then(|faults| faults.observer.as_mut()) {
        observe();
    }
    let result = call(faults.as_mut());
    ACTIVE.set(faults);
    result
}

pub(crate) fn send(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Result<()> {
    use Fault::{AnswerLost, Delayed, Interrupted, Refused, Stale, Unsent};
    with(|faults| {
        let Some(faults) = faults else { return calls::send(fd, parts) };
        let request: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let is_batch = Messages::new(&request).next().is_some_and(|first| first.header.kind == BATCH_BEGIN);
        let common = [Interrupted, Delayed, Unsent, Refused, AnswerLost];
        let possible: Vec<Fault> = common.into_iter().chain(is_batch.then_some(Stale)).collect();
        match faults.strike(&possible) {
            Some(Interrupted) => Err(Errno::INTR),
            Some(Unsent) => {
                Err(faults.chance.one_of(&[Errno::NOBUFS, Errno::NOMEM]).unwrap_or(Errno::NOBUFS))
            }
            Some(fault @ (Refused | Stale)) => {
                let errno = if fault == Stale { Errno::RESTART } else { Errno::NOMEM };
                let mut refused: Vec<Header> =
                    Messages::new(&request).map(|message| message.header).collect();
                if is_batch {
                    let at = faults.chance.below(refused.len());
                    refused = refused.into_iter().skip(at).take(1).collect();
                }
                let answers = refused.into_iter().map(|header| Answer::Datagram(refusal(header, errno)));
                faults.forged.entry(fd.as_raw_fd()).or_default().extend(answers);
                Ok(())
            }
            Some(AnswerLost) => {
                calls::send(fd, parts)?;
                while calls::receive(fd, &mut []).is_ok() {}
                let forged = faults.forged.entry(fd.as_raw_fd()).or_default();
                forged.push_back(Answer::Error(Errno::NOBUFS));
                Ok(())
            }
            Some(Delayed) => {
                std::thread::sleep(Duration::from_micros(200));
                calls::send(fd, parts)
            }
            _ => calls::send(fd, parts),
        }
    })
}

pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Datagram> {
    use Fault::{Congested, Delayed, DumpFailed, DumpInterrupted, Interrupted, Long, Overrun, Short, Unread};
    with(|faults| {
        let Some(faults) = faults else { return calls::receive(fd, buffer) };
        match faults.forged.get_mut(&fd.as_raw_fd()).and_then(VecDeque::pop_front) {
            Some(Answer::Error(errno)) => return Err(errno),
            Some(Answer::Datagram(bytes)) => return Ok(deliver(&bytes, buffer)),
            None => {}
        }
        match faults.strike(&[Interrupted, Delayed, Overrun, Congested, Unread]) {
            Some(Interrupted) => return Err(Errno::INTR),
            Some(Congested) => return Err(Errno::NOBUFS),
            Some(Unread) => return Err(Errno::NOMEM),
            Some(Overrun) => {
                calls::receive(fd, buffer)?;
                return Err(Errno::NOBUFS);
            }
            Some(Delayed) => std::thread::sleep(Duration::from_micros(200)),
            _ => {}
        }
        let datagram = calls::receive(fd, buffer)?;
        let Some(bytes) = buffer.get_mut(..datagram.length) else { return Ok(datagram) };
        let Some(first) = Messages::new(bytes).next().map(|first| first.header) else { return Ok(datagram) };
        let is_list = first.flags & NLM_F_MULTI != 0 && first.kind != NLMSG_DONE;
        let possible: &[Fault] =
            if is_list { &[Short, Long, DumpInterrupted, DumpFailed] } else { &[Short, Long] };
        match faults.strike(possible) {
            // By less than a header, so that the cut is inside a message.
            Some(Short) => {
                let cut = 1 + faults.chance.below(HEADER - 1);
                Ok(Datagram { length: datagram.length.saturating_sub(cut), ..datagram })
            }
            Some(Long) => Ok(Datagram { length: usize::MAX, ..datagram }),
            Some(DumpInterrupted) => {
                let flags = first.flags | NLM_F_DUMP_INTR;
                if let Some(place) = bytes.get_mut(6..8) {
                    place.copy_from_slice(&flags.to_ne_bytes());
                }
                Ok(datagram)
            }
            Some(DumpFailed) => Ok(deliver(&failed_end(first), buffer)),
            _ => Ok(datagram),
        }
    })
}

pub(crate) fn wait(fd: BorrowedFd<'_>, time: &Timespec) -> Result<bool> {
    with(|faults| match faults.and_then(|faults| faults.strike(&[Fault::Interrupted, Fault::Woken])) {
        Some(Fault::Interrupted) => Err(Errno::INTR),
        Some(_) => Ok(true),
        None => calls::wait(fd, time),
    })
}

fn deliver(bytes: &[u8], buffer: &mut [u8]) -> Datagram {
    if let Some(place) = buffer.get_mut(..bytes.len()) {
        place.copy_from_slice(bytes);
    }
    Datagram { length: bytes.len(), sender: Some(0) }
}

/// The kernel's rejection of the message with this header: the error, and the header again.
fn refusal(of: Header, errno: Errno) -> Vec<u8> {
    let status = errno.raw_os_error().wrapping_neg().to_ne_bytes();
    let header = Header { kind: NLMSG_ERROR, flags: 0, sequence: of.sequence, port: 0 };
    whole(header, &[&status[..], &of.to_wire()].concat())
}

/// The end of a dump that failed.
fn failed_end(of: Header) -> Vec<u8> {
    let status = Errno::NOMEM.raw_os_error().wrapping_neg().to_ne_bytes();
    whole(Header { kind: NLMSG_DONE, flags: NLM_F_MULTI, ..of }, &status)
}

fn whole(header: Header, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap_or_default().to_ne_bytes();
    let header = header.to_wire();
    [&length[..], header.get(4..).unwrap_or_default(), body].concat()
}
