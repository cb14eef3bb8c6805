//! Waiting on a machine that may stand still for a while, as build machines do, be it for half a minute: that time does not
//! count, and the signals that come with it do not end the wait.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// However long a look took by the clock, it counts as this.
const LOOK: Duration = Duration::from_millis(10);

/// Returns when there is something to read, or to learn of an error.
pub fn wait_to_read(socket: impl AsFd, patience: Duration) -> io::Result<()> {
    wait_for(socket, PollFlags::IN, patience, || Ok(()))
}

/// Reads what comes, each part of it with the same patience.
#[derive(Debug)]
pub struct Patient<S>(pub S, pub Duration);

impl<S: AsFd + Read> Read for Patient<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        wait_to_read(&self.0, self.1)?;
        self.0.read(buffer)
    }
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

/// Passes after so much time in which the machine was at work.
#[derive(Debug)]
pub struct Deadline {
    left: Duration,
    looked: Instant,
}

impl Deadline {
    pub fn after(time: Duration) -> Self {
        Self { left: time, looked: Instant::now() }
    }

    /// To be asked again and again, at least every other second.
    pub fn has_passed(&mut self) -> bool {
        const LONGEST: Duration = Duration::from_secs(2);
        let now = Instant::now();
        self.left = self.left.saturating_sub((now - self.looked).min(LONGEST));
        self.looked = now;
        self.left.is_zero()
    }
}
