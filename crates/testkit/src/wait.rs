//! Waiting on a machine that may freeze for seconds: frozen time does not count, and the signals that come with it do not
//! end a wait.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// For conditions that hold within seconds on an idle machine. An emulated one takes 15 times as long.
pub const USUAL_TIMEOUT: Duration = Duration::from_secs(300);

/// Waits until `condition` holds, and panics if it does not within [`USUAL_TIMEOUT`].
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(USUAL_TIMEOUT, what, condition);
}

/// Waits until `condition` holds, and panics if it does not within `timeout`.
pub fn within(timeout: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(timeout, condition), "not within {timeout:?}: {what}");
}

/// Waits until `condition` holds, and returns whether it does within `timeout`: for callers that describe what they last saw.
pub fn holds_within(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let mut deadline = Deadline::after(timeout);
    while !condition() {
        if deadline.has_passed() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A point in time that moves on while the machine is frozen.
#[derive(Debug)]
pub struct Deadline {
    left: Duration,
    checked: Instant,
}

impl Deadline {
    pub fn after(time: Duration) -> Self {
        Self { left: time, checked: Instant::now() }
    }

    /// Whether the time has passed. Of the time since the last call, at most two seconds count: call it that often.
    pub fn has_passed(&mut self) -> bool {
        const LONGEST: Duration = Duration::from_secs(2);
        let now = Instant::now();
        self.left = self.left.saturating_sub((now - self.checked).min(LONGEST));
        self.checked = now;
        self.left.is_zero()
    }
}

/// Reads from a socket and gives each read this timeout.
#[derive(Debug)]
pub struct TimeoutReader<S>(pub S, pub Duration);

impl<S: AsFd + Read> Read for TimeoutReader<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        wait_readable(&self.0, self.1)?;
        self.0.read(buffer)
    }
}

/// Waits until the socket has data or an error to read.
pub fn wait_readable(socket: impl AsFd, timeout: Duration) -> io::Result<()> {
    poll_until(socket, PollFlags::IN, timeout, || Ok(()))
}

/// Waits until the socket has one of `flags`, or `check` fails. A poll counts as [`POLL_INTERVAL`], however long it took.
pub fn poll_until(
    socket: impl AsFd,
    flags: PollFlags,
    timeout: Duration,
    mut check: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let interval = Timespec::try_from(POLL_INTERVAL).map_err(|_| ErrorKind::InvalidInput)?;
    for _ in 0..timeout.as_millis().div_ceil(POLL_INTERVAL.as_millis()) {
        check()?;
        match poll(&mut [PollFd::new(&socket, flags)], Some(&interval)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(ErrorKind::TimedOut.into())
}

const POLL_INTERVAL: Duration = Duration::from_millis(10);
