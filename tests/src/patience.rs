//! Waiting for a socket on a machine that may stand still for a while, as build machines do: that time does not count,
//! and the signals that come with it do not end the wait.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// However long a look took by the clock, it counts as this.
const LOOK: Duration = Duration::from_millis(10);

/// Returns when there is something to read, or to learn of an error.
pub fn wait_to_read(socket: impl AsFd, patience: Duration) -> io::Result<()> {
    wait_for(socket, PollFlags::IN, patience, || Ok(()))
}

/// Returns when one of the flags is true of the socket; before every look something else is looked at.
pub fn wait_for(
    socket: impl AsFd,
    flags: PollFlags,
    patience: Duration,
    mut before: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let look = Timespec::try_from(LOOK).map_err(|_| ErrorKind::InvalidInput)?;
    for _ in 0..patience.as_millis().div_ceil(LOOK.as_millis()) {
        before()?;
        match poll(&mut [PollFd::new(&socket, flags)], Some(&look)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(ErrorKind::TimedOut.into())
}
