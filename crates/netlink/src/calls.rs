//! The system calls of an open socket. Tests replace them by [`crate::faults`].

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Result;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recvfrom, sendmsg};

/// A datagram that has been received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    /// Its length, which may exceed that of the buffer.
    pub(crate) length: usize,
    /// The netlink port of the sender; zero is the kernel.
    pub(crate) sender: Option<u32>,
}

pub(crate) fn send(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Result<()> {
    sendmsg(fd, parts, &mut SendAncillaryBuffer::default(), SendFlags::empty()).map(drop)
}

/// Never blocks: fails with `EAGAIN` if there is no datagram.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Datagram> {
    let (_, length, sender) = recvfrom(fd, buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
    let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
    Ok(Datagram { length, sender: sender.map(|sender| sender.pid()) })
}

/// Waits up to `time`, and returns whether there is a datagram.
pub(crate) fn wait(fd: BorrowedFd<'_>, time: &Timespec) -> Result<bool> {
    Ok(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(time))? > 0)
}
