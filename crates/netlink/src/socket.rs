//! A netlink socket: send, receive, request, dump.
//!
//! A socket stays in the network namespace of the thread that opened it. The kernel processes a request inside `send`, so
//! answers can be received as soon as `send` returns.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, netlink, socket_with, sockopt};

use crate::buffer::Buffer;
#[cfg(not(feature = "testing"))]
use crate::calls;
#[cfg(feature = "testing")]
use crate::faults as calls;
use crate::message::{
    Header, Message, Messages, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, Outcome,
};
use crate::sys;

// include/uapi/linux/netlink.h
const NETLINK_CAP_ACK: i32 = 10;
const NETLINK_EXT_ACK: i32 = 11;

/// Messages that do not fit into the receive buffer are lost, which the kernel reports as `ENOBUFS`.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The kernel sends at most 32 KiB per datagram of a dump; notifications may be somewhat larger.
const MAX_DATAGRAM: usize = 128 << 10;
/// The kernel counts its own bookkeeping towards the send buffer.
const SEND_MARGIN: usize = 64 << 10;
/// Answers are there when `send` returns. This only ends the wait for one that never comes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A dump that keeps changing while it is read fails after this many attempts.
pub(crate) const DUMP_ATTEMPTS: u32 = 20;

/// The netlink protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkProtocol {
    Route,
    Netfilter,
    Generic,
}

impl NetlinkProtocol {
    fn to_wire(self) -> Option<rustix::net::Protocol> {
        match self {
            Self::Route => None, // NETLINK_ROUTE is zero, the default protocol
            Self::Netfilter => Some(netlink::NETFILTER),
            Self::Generic => Some(netlink::GENERIC),
        }
    }
}

/// A bound socket and its receive buffer.
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    sequence: u32,
    send_room: usize,
    received: Vec<u8>,
    /// Whether answers to an earlier request, which failed, may still be in the receive buffer.
    has_leftovers: bool,
}

impl Socket {
    /// Opens a socket for requests in the namespace of the calling thread.
    pub fn open(protocol: NetlinkProtocol) -> io::Result<Self> {
        Self::bound(protocol, 0)
    }

    /// Opens a socket that receives from these multicast groups, which are numbered from 1 to 32.
    pub fn subscribe(protocol: NetlinkProtocol, groups: &[u32]) -> io::Result<Self> {
        let bit = |group: &u32| group.checked_sub(1).and_then(|shift| 1_u32.checked_shl(shift));
        let mask = groups.iter().try_fold(0, |mask, group| Some(mask | bit(group)?));
        Self::bound(protocol, mask.ok_or(io::ErrorKind::InvalidInput)?)
    }

    fn bound(protocol: NetlinkProtocol, groups: u32) -> io::Result<Self> {
        let fd =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol.to_wire())?;
        sys::enable_netlink_option(&fd, NETLINK_EXT_ACK)?;
        sys::enable_netlink_option(&fd, NETLINK_CAP_ACK)?;
        // Forcing needs CAP_NET_ADMIN in the initial user namespace; without it the kernel limits the size.
        sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER))?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        let address = SocketAddrNetlink::try_from(getsockname(&fd)?)?;
        Ok(Self {
            fd,
            port: address.pid(),
            sequence: 0,
            send_room: 0,
            received: vec![0; MAX_DATAGRAM],
            has_leftovers: false,
        })
    }

    /// The netlink port of this socket. Notifications of changes that it makes carry this port.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Sends the parts as one datagram, and raises the send buffer for it if needed. `EMSGSIZE` means that it cannot be raised
    /// enough. The caller must call [`Self::answered`] once it has received all answers.
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.drop_leftovers()?;
        self.make_room(parts.iter().map(|part| part.len()).sum());
        self.has_leftovers = true;
        Ok(retry_on_intr(|| calls::send(self.fd.as_fd(), parts))?)
    }

    /// The next datagram, or `None` if none arrives in time. Does not wait if `time` is zero. `ENOBUFS` means that datagrams were
    /// lost; the others can still be received.
    pub fn receive_within(&mut self, time: Duration) -> io::Result<Option<Messages<'_>>> {
        // It is usually there already, which saves the system call to wait for it.
        let mut received = self.read()?;
        if received.is_none() && !time.is_zero() {
            // The wait may end for a datagram from another process, or for none.
            let began = Instant::now();
            while received.is_none() && self.wait(time.saturating_sub(began.elapsed()))? {
                received = self.read()?;
            }
        }
        Ok(received.map(|length| self.messages(length)))
    }

    /// Notes that all answers to the last request have been received.
    pub(crate) fn answered(&mut self) {
        self.has_leftovers = false;
    }

    /// Sends one request, and returns what `read` extracts from the answers once the kernel has acknowledged it.
    pub fn ask<T>(
        &mut self,
        request: Request<'_>,
        body: impl FnOnce(&mut Buffer),
        read: impl FnMut(&Message<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        self.exchange(request, NLM_F_ACK, body, read).map(|answer| answer.found)
    }

    /// Sends one request per item in a single datagram, and returns the results in the order of the items. The kernel processes
    /// all of them, also after one that it rejects.
    pub fn ask_each<'i, T>(
        &mut self,
        items: &'i [T],
        request: impl Fn(&'i T) -> Request<'i>,
        body: impl Fn(&T, &mut Buffer),
    ) -> io::Result<Vec<io::Result<()>>> {
        let first = self.sequence.wrapping_add(1);
        let mut buffer = Buffer::new();
        for item in items {
            let request = request(item);
            let flags = request.flags | NLM_F_ACK | NLM_F_REQUEST;
            self.sequence = self.sequence.wrapping_add(1);
            let header = Header { kind: request.kind, flags, sequence: self.sequence, port: 0 };
            buffer.message(header, request.fixed, |message| body(item, message));
        }
        if items.is_empty() {
            return Ok(Vec::new());
        }
        self.send(&[IoSlice::new(buffer.as_bytes())])?;

        let mut answers: Vec<Option<io::Result<()>>> = items.iter().map(|_| None).collect();
        let mut missing = answers.len();
        while missing > 0 {
            let messages = self.receive_within(ANSWER_TIMEOUT)?.ok_or(io::ErrorKind::TimedOut)?;
            for message in messages {
                let at = usize::try_from(message.header.sequence.wrapping_sub(first)).unwrap_or(usize::MAX);
                let Some(answer) = answers.get_mut(at).filter(|answer| answer.is_none()) else { continue };
                *answer = match message.outcome() {
                    Outcome::Pending => continue,
                    Outcome::Success => Some(Ok(())),
                    Outcome::Refused(refusal) => Some(Err(refusal.errno)),
                };
                missing -= 1;
            }
        }
        self.answered();
        Ok(answers.into_iter().flatten().collect())
    }

    /// Requests a list, and returns what `read` extracts from its messages. If the list changes meanwhile or a part is lost, the
    /// dump starts again and earlier results are dropped, so `read` may see an object twice.
    pub fn dump<T>(
        &mut self,
        request: Request<'_>,
        body: impl Fn(&mut Buffer),
        mut read: impl FnMut(&Message<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut last = io::Error::new(io::ErrorKind::ResourceBusy, "list keeps changing while it is read");
        for _ in 0..DUMP_ATTEMPTS {
            match self.exchange(request, NLM_F_DUMP, &body, &mut read) {
                Ok(answer) if answer.interrupted => {}
                Ok(answer) => return Ok(answer.found),
                Err(error) if is_loss(&error) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn exchange<T>(
        &mut self,
        request: Request<'_>,
        flags: u16,
        body: impl FnOnce(&mut Buffer),
        mut read: impl FnMut(&Message<'_>) -> Option<T>,
    ) -> io::Result<Answer<T>> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let flags = request.flags | flags | NLM_F_REQUEST;
        let mut buffer = Buffer::new();
        buffer.message(Header { kind: request.kind, flags, sequence, port: 0 }, request.fixed, body);
        self.send(&[IoSlice::new(buffer.as_bytes())])?;

        let mut answer = Answer { found: Vec::new(), interrupted: false };
        loop {
            let messages = self.receive_within(ANSWER_TIMEOUT)?.ok_or(io::ErrorKind::TimedOut)?;
            for message in messages.filter(|message| message.header.sequence == sequence) {
                answer.interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.outcome() {
                    Outcome::Pending => answer.found.extend(read(&message)),
                    Outcome::Success => {
                        self.answered();
                        return Ok(answer);
                    }
                    Outcome::Refused(refusal) => return Err(refusal.errno),
                }
            }
        }
    }

    /// Drops the remaining answers of a failed exchange. They could be mistaken for those of the next request, since batches use
    /// sequence numbers of their own, and the kernel starts no dump before the last one has been received.
    fn drop_leftovers(&mut self) -> io::Result<()> {
        while self.has_leftovers {
            match self.read() {
                Ok(None) => self.has_leftovers = false,
                Ok(Some(_)) => {}
                Err(error) if is_loss(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Raises the send buffer. Failing to is no error here, because `send` reports a buffer that is too small.
    fn make_room(&mut self, length: usize) {
        let needed = length.saturating_add(SEND_MARGIN);
        if needed > self.send_room {
            let raised = sockopt::set_socket_send_buffer_size_force(&self.fd, needed)
                .or_else(|_| sockopt::set_socket_send_buffer_size(&self.fd, needed));
            if raised.is_ok() {
                self.send_room = needed;
            }
        }
    }

    /// Keeps the send buffer from being raised.
    #[cfg(feature = "testing")]
    pub(crate) fn keep_send_buffer(&mut self) {
        self.send_room = usize::MAX;
    }

    fn wait(&self, time: Duration) -> io::Result<bool> {
        let time = Timespec::try_from(time).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(retry_on_intr(|| calls::wait(self.fd.as_fd(), &time))?)
    }

    /// Receives one datagram from the kernel, if there is one. Skips datagrams from other processes.
    fn read(&mut self) -> io::Result<Option<usize>> {
        loop {
            let received = retry_on_intr(|| calls::receive(self.fd.as_fd(), &mut self.received));
            let datagram = match received {
                Ok(datagram) => datagram,
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            };
            if datagram.length > self.received.len() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "datagram larger than any expected"));
            }
            if datagram.sender != Some(0) {
                continue;
            }
            if !self.messages(datagram.length).is_whole() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "datagram ends within a message"));
            }
            return Ok(Some(datagram.length));
        }
    }

    fn messages(&self, received: usize) -> Messages<'_> {
        Messages::new(self.received.get(..received).unwrap_or_default())
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("fd", &self.fd).field("port", &self.port).finish_non_exhaustive()
    }
}

impl AsFd for Socket {
    /// For polling. Receive by [`Socket::receive_within`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A request without its attributes.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub kind: u16,
    /// In addition to those that every request or dump needs.
    pub flags: u16,
    /// The part before the attributes, which depends on the kind.
    pub fixed: &'a [u8],
}

struct Answer<T> {
    found: Vec<T>,
    interrupted: bool,
}

pub(crate) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Whether the error means that messages were lost, and the socket is still usable.
pub(crate) fn is_loss(error: &io::Error) -> bool {
    is(error, Errno::NOBUFS) || error.kind() == io::ErrorKind::InvalidData
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_do_not_exist_cannot_be_subscribed_to() {
        for group in [0, 33, u32::MAX] {
            let refused = Socket::subscribe(NetlinkProtocol::Route, &[1, group]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{group}");
        }
    }
}
