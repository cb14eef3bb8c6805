//! Finds the process that holds a lock or a netfilter socket, to name it in error messages.
//!
//! The kernel names a netlink port or an inode; `/proc` leads from there to a process, if this process may see it.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};

/// A process that holds a lock or a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    pub command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.command, self.pid)
    }
}

impl Holder {
    /// The process with a netfilter socket that has this port, in the network namespace of the calling thread. A port is
    /// often the id of its process, but need not be.
    pub fn of_netfilter_port(port: u32) -> Option<Self> {
        let sockets = fs::read_to_string("/proc/thread-self/net/netlink").ok()?;
        let target = format!("socket:[{}]", inode_of_port(&sockets, port)?);
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let has_socket = |pid: &u32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|link| link == *target))
        };
        Self::with_pid(pids.find(has_socket)?)
    }

    /// The process that has locked a file with `flock`.
    pub fn of_lock(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        let device = (major(file.dev()), minor(file.dev()));
        Self::with_pid(pid_of_lock(&fs::read_to_string("/proc/locks").ok()?, device, file.ino())?)
    }

    fn with_pid(pid: u32) -> Option<Self> {
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(Self { pid, command: command.trim_end().to_owned() })
    }
}

/// From the lines of `/proc/net/netlink`: address, protocol, port, ..., inode.
fn inode_of_port(sockets: &str, port: u32) -> Option<u64> {
    const NETLINK_NETFILTER: &str = "12";
    sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, protocol, of, .., inode] = *fields else { return None };
        if protocol == NETLINK_NETFILTER && of.parse() == Ok(port) { inode.parse().ok() } else { None }
    })
}

/// From the lines of `/proc/locks`: number, kind, advisory, mode, process, device and inode, range. Requests that wait
/// for a lock have an arrow after their number, and do not count.
fn pid_of_lock(locks: &str, (major, minor): (u32, u32), inode: u64) -> Option<u32> {
    let target = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = *fields else { return None };
        // Zero stands for a process of another PID namespace.
        if file == target { pid.parse().ok().filter(|pid| *pid > 0) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};

    #[test]
    fn sockets_of_other_protocols_with_the_same_port_are_ignored() {
        let sockets =
            "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
000000008f1b9d9c 0   1234       00000111 0        0        0     2        0        11
000000008f1b9d9c 12  4026531    00000000 0        0        0     2        0        12
000000008f1b9d9c 12  1234       00000000 0        0        0     2        0        13
short 12
";
        assert_eq!(inode_of_port(sockets, 1234), Some(13));
        assert_eq!(inode_of_port(sockets, 5), None);
    }

    #[test]
    fn the_holder_of_a_lock_is_its_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(Holder::of_lock(file.path()), None);
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let holder = Holder::of_lock(file.path()).unwrap();
        assert_eq!(holder.pid, std::process::id());
        assert_eq!(holder.to_string(), format!("{} (pid {})", holder.command, holder.pid));
    }

    #[test]
    fn waiting_and_invisible_processes_are_not_named() {
        let locks = "1: -> FLOCK  ADVISORY  WRITE 7 fe:00:99 0 EOF
2: POSIX  ADVISORY  WRITE 8 fe:00:99 0 EOF
3: FLOCK  ADVISORY  WRITE 0 fe:00:98 0 EOF
4: FLOCK  ADVISORY  WRITE 505 fe:00:99 0 EOF
";
        assert_eq!(pid_of_lock(locks, (0xfe, 0), 99), Some(505));
        assert_eq!(pid_of_lock(locks, (0xfe, 0), 98), None);
        assert_eq!(pid_of_lock(locks, (0, 0), 99), None);
    }
}
