//! A network namespace that lives as long as its handle.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace of its own, with its loopback interface up.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    pub fn new() -> Self {
        let (send, receive) = std::sync::mpsc::channel();
        netlink::testing::in_fresh_netns(move || {
            send.send(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        });
        let namespace = Self(Arc::new(receive.recv().unwrap()));
        // Without looking for duplicates, an address can be used at once.
        namespace.sysctl("ipv6/conf/all/accept_dad", "0");
        namespace.sysctl("ipv6/conf/default/accept_dad", "0");
        namespace.ip("link set lo up");
        namespace
    }

    /// The one that the calling thread is in.
    pub fn here() -> Self {
        Self(Arc::new(File::open("/proc/thread-self/ns/net").unwrap()))
    }

    /// Runs something inside. Sockets made there stay there; so do processes.
    pub fn enter<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.move_in();
            what()
        };
        std::thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(value) => value,
            Err(failure) => std::panic::resume_unwind(failure),
        })
    }

    /// Takes the calling thread inside, for good.
    pub fn move_in(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// How to name it to `ip link`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `ip` with these arguments inside.
    pub fn ip(&self, arguments: &str) -> String {
        self.run(&format!("ip {arguments}"))
    }

    /// Runs one `ip` for all these lines, each the arguments of one call.
    pub fn ip_all(&self, lines: &[String]) {
        self.feed(Command::new("ip").args(["-batch", "-"]), &lines.join("\n"));
    }

    /// Runs a command inside and returns what it printed. A command that fails ends the test.
    pub fn run(&self, command_line: &str) -> String {
        self.enter(|| netlink::testing::run(command_line))
    }

    /// Runs a command inside that reads this text. A command that fails ends the test.
    pub fn feed(&self, command: &mut Command, text: &str) {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn(command).unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}\n{text}");
    }

    /// Starts a process inside.
    pub fn spawn(&self, command: &mut Command) -> std::io::Result<std::process::Child> {
        self.enter(|| command.spawn())
    }

    /// Writes a network setting of this namespace.
    pub fn sysctl(&self, name: &str, value: &str) {
        self.enter(|| std::fs::write(format!("/proc/sys/net/{name}"), value))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}
