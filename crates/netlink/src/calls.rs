//! The calls to the kernel that a socket makes once it is open. Tests put [`crate::faults`] in their place.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Result;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recvfrom, sendmsg};

/// A datagram that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    /// How long it is; it may be longer than the buffer it was read into.
    pub(crate) length: usize,
    /// The port of its sender; zero is the kernel.
    pub(crate) sender: Option<u32>,
}

pub(crate) fn send(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Result<()> {
    sendmsg(fd, parts, &mut SendAncillaryBuffer::default(), SendFlags::empty()).map(drop)
}

/// Never waits: `EAGAIN` if there is nothing to read.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Datagram> {
    let (_, length, sender) = recvfrom(fd, buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
    let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
    Ok(Datagram { length, sender: sender.map(|sender| sender.pid()) })
}

/// Whether there is something to read before that time has passed.
pub(crate) fn wait(fd: BorrowedFd<'_>, time: &Timespec) -> Result<bool> {
    Ok(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(time))? > 0)
}
