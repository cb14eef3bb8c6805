//! A network namespace that exists as long as its handle.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A handle to a network namespace. The kernel removes the namespace with its last handle and process.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// A fresh namespace with its loopback interface up.
    pub fn new() -> Self {
        let (send, receive) = std::sync::mpsc::channel();
        netlink::testing::in_fresh_netns(move || {
            send.send(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        });
        let namespace = Self(Arc::new(receive.recv().unwrap()));
        // Without duplicate address detection, an IPv6 address is usable at once.
        namespace.sysctl("ipv6/conf/all/accept_dad", "0");
        namespace.sysctl("ipv6/conf/default/accept_dad", "0");
        namespace.ip("link set lo up");
        namespace
    }

    /// The namespace of the calling thread.
    pub fn current() -> Self {
        Self::open("/proc/thread-self/ns/net").unwrap()
    }

    /// The namespace that a path names, such as `/run/netns/NAME` or `/proc/PID/ns/net`.
    pub fn open(path: impl AsRef<Path>) -> std::io::Result<Self> {
        File::open(path).map(|file| Self(Arc::new(file)))
    }

    /// Runs `action` on a thread inside. Sockets that it opens and processes that it starts stay in this namespace.
    pub fn enter<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.move_in();
            action()
        };
        std::thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(value) => value,
            Err(failure) => std::panic::resume_unwind(failure),
        })
    }

    /// Moves the calling thread inside, for good.
    pub fn move_in(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// The path that names this namespace to `ip link` and `nsenter`, as long as this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `ip` inside.
    pub fn ip(&self, arguments: &str) -> String {
        self.run(&format!("ip {arguments}"))
    }

    /// Runs one `ip -batch`; each line holds the arguments of one call.
    pub fn ip_all(&self, lines: &[String]) {
        self.run_with_input(Command::new("ip").args(["-batch", "-"]), &lines.join("\n"));
    }

    /// Runs a command inside and returns its output. Panics if it fails.
    pub fn run(&self, command_line: &str) -> String {
        self.enter(|| netlink::testing::run(command_line))
    }

    /// Runs a command inside with `input` as its standard input. Panics if it fails.
    pub fn run_with_input(&self, command: &mut Command, input: &str) {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn(command).unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {stderr}\n{input}");
    }

    /// Starts a process inside.
    pub fn spawn(&self, command: &mut Command) -> std::io::Result<std::process::Child> {
        self.enter(|| command.spawn())
    }

    /// Writes a sysctl below `net`, such as `ipv4/ip_forward`.
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
