//! The locks that `iptables-restore` before 1.6.2 does not take itself, unless a distribution backported that.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::error::Error;
use crate::holder::Holder;

const FILE: &str = "/run/xtables.lock";
const SOCKET: &str = "xtables";
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The process that holds the lock of iptables 1.4.20 and later, if this process can see it.
pub fn holder() -> Option<Holder> {
    let file = std::env::var_os("XTABLES_LOCKFILE").unwrap_or_else(|| FILE.into());
    Holder::of_lock(Path::new(&file))
}

/// Both locks, released when dropped. Which of the two a version of iptables uses depends on its age.
#[derive(Debug)]
pub struct Locks {
    _file: File,
    _socket: UnixListener,
}

impl Locks {
    pub fn acquire() -> Result<Self, Error> {
        Self::acquire_from(Path::new(FILE), SOCKET, LOCK_TIMEOUT)
    }

    fn acquire_from(file: &Path, socket: &str, timeout: Duration) -> Result<Self, Error> {
        let which = |which, name: String| move |source| Error::Lock { which, name, source };
        let name = file.display().to_string();
        let file = retry_for(timeout, || lock_file(file)).map_err(which("new", name))?;
        let address = SocketAddr::from_abstract_name(socket);
        let listen = |address: &SocketAddr| UnixListener::bind_addr(address);
        let socket = address
            .and_then(|address| retry_for(timeout, || listen(&address)))
            .map_err(which("old", format!("@{socket}")))?;
        Ok(Self { _file: file, _socket: socket })
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

fn retry_for<T>(timeout: Duration, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL.min(timeout)),
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn refused(error: &Error) -> &'static str {
        assert!(error.to_string().ends_with(": another process holds it"), "{error}");
        let Error::Lock { which, .. } = error else { panic!("{error}") };
        which
    }

    /// A socket that no other test binds.
    fn socket(test: &str) -> String {
        format!("xtables-{test}-{}", std::process::id())
    }

    // Upstream's TestRestoreAllGrabNewLock and TestRestoreAllGrabOldLock.
    #[test]
    fn another_process_can_hold_either_lock() {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("xtables.lock"), socket("either"));
        let acquire = || Locks::acquire_from(&file, &socket, SHORT);

        let held = acquire().unwrap();
        assert_eq!(refused(&acquire().unwrap_err()), "new");
        drop(held);
        drop(acquire().expect("both locks are free again"));

        let address = SocketAddr::from_abstract_name(&socket).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        assert_eq!(refused(&acquire().unwrap_err()), "old");
        drop(listener);
        acquire().expect("the failed attempt released the file");
    }

    #[test]
    fn a_lock_that_is_released_in_time_is_acquired() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("xtables.lock");
        let held = lock_file(&file).unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(SHORT);
            drop(held);
        });
        Locks::acquire_from(&file, &socket("released"), Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn the_error_names_a_file_that_cannot_be_created() {
        let error = Locks::acquire_from(Path::new("/proc/xtables.lock"), "x", SHORT).unwrap_err();
        assert_eq!(error.to_string(), "cannot acquire the new iptables lock /proc/xtables.lock");
    }
}
