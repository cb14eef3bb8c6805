//! Network namespaces for tests of this and other crates. Behind the feature `testing`.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// Runs `test` in a network namespace of its own, which ends with it. A namespace belongs to a thread, so the test runs on a
/// thread of its own; processes that it starts are in the same namespace.
pub fn in_fresh_netns(test: impl FnOnce() + Send + 'static) {
    let alone = move || {
        crate::sys::enter_new_network_namespace().expect("kernel tests run as root");
        test();
    };
    if let Err(failure) = std::thread::spawn(alone).join() {
        std::panic::resume_unwind(failure);
    }
}

/// Runs a command in the caller's network namespace, and returns its output. Panics if it fails.
pub fn run(command_line: &str) -> String {
    let mut words = command_line.split_whitespace();
    let program = words.next().expect("a command line names a program");
    let output = Command::new(program).args(words).output().expect("the program is installed");
    assert!(
        output.status.success(),
        "{command_line}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits for a datagram, and returns its length and sender. Panics if none arrives.
pub fn receive(socket: &UdpSocket) -> (usize, SocketAddr) {
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout above zero");
    loop {
        match socket.recv_from(&mut [0; 128]) {
            // A virtual machine that was suspended interrupts calls with a timeout.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received.expect("a datagram"),
        }
    }
}
