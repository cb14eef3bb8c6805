//! The locks of versions whose `iptables-restore` takes none: before 1.6.2, unless a distribution taught it.

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
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(200);

/// The process that holds the lock which commands of version 1.4.20 and later take, if it can be seen.
pub fn holder() -> Option<Holder> {
    let file = std::env::var_os("XTABLES_LOCKFILE").unwrap_or_else(|| FILE.into());
    Holder::of_lock(Path::new(&file))
}

/// Held until dropped. Versions differ in which of the two they know.
#[derive(Debug)]
pub struct Locks {
    _file: File,
    _socket: UnixListener,
}

impl Locks {
    pub fn take() -> Result<Self, Error> {
        Self::take_these(Path::new(FILE), SOCKET, PATIENCE)
    }

    fn take_these(file: &Path, socket: &str, patience: Duration) -> Result<Self, Error> {
        let which = |which, name: String| move |source| Error::Lock { which, name, source };
        let name = file.display().to_string();
        let file = persist(patience, || lock_file(file)).map_err(which("new", name))?;
        let address = SocketAddr::from_abstract_name(socket);
        let listen = |address: &SocketAddr| UnixListener::bind_addr(address);
        let socket = address
            .and_then(|address| persist(patience, || listen(&address)))
            .map_err(which("old", format!("@{socket}")))?;
        Ok(Self { _file: file, _socket: socket })
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

fn persist<T>(patience: Duration, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE.min(patience)),
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASTE: Duration = Duration::from_millis(20);

    fn refused(error: &Error) -> &'static str {
        assert!(error.to_string().ends_with(": another process holds it"), "{error}");
        let Error::Lock { which, .. } = error else { panic!("{error}") };
        which
    }

    // Upstream's TestRestoreAllGrabNewLock and TestRestoreAllGrabOldLock. Sockets belong to the network namespace.
    #[test]
    fn either_lock_can_be_held_by_somebody_else() {
        netlink::testing::in_fresh_netns(|| {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("xtables.lock");
            let take = || Locks::take_these(&file, "xtables", HASTE);

            let held = take().unwrap();
            assert_eq!(refused(&take().unwrap_err()), "new");
            drop(held);
            drop(take().expect("what was held has been let go"));

            let address = SocketAddr::from_abstract_name("xtables").unwrap();
            let socket = UnixListener::bind_addr(&address).unwrap();
            assert_eq!(refused(&take().unwrap_err()), "old");
            drop(socket);
            take().expect("the file was let go when the socket was not to be had");
        });
    }

    #[test]
    fn a_lock_that_is_let_go_in_time_is_taken() {
        netlink::testing::in_fresh_netns(|| {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("xtables.lock");
            let held = lock_file(&file).unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(HASTE);
                drop(held);
            });
            Locks::take_these(&file, "xtables", Duration::from_secs(10)).unwrap();
        });
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let error = Locks::take_these(Path::new("/proc/xtables.lock"), "x", HASTE).unwrap_err();
        assert_eq!(error.to_string(), "cannot acquire the new iptables lock /proc/xtables.lock");
    }
}
