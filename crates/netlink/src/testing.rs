//! What tests of this and other crates need to be alone with a kernel. Behind the feature `testing`.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// Runs `test` alone in a fresh network namespace. Namespaces belong to threads, so the test gets a
/// thread of its own and nothing is left behind when it ends. Processes it starts are in there too.
pub fn in_fresh_netns(test: impl FnOnce() + Send + 'static) {
    let alone = move || {
        crate::sys::leave_network_namespace().expect("kernel tests run as root");
        test();
    };
    if let Err(failure) = std::thread::spawn(alone).join() {
        std::panic::resume_unwind(failure);
    }
}

/// Runs a command in the caller's network namespace and returns what it printed; fails the test if it fails.
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

/// Waits for a datagram, and returns its length and who sent it; fails the test if none comes.
pub fn hear(socket: &UdpSocket) -> (usize, SocketAddr) {
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout above zero");
    loop {
        match socket.recv_from(&mut [0; 128]) {
            // A machine that stood still for a moment ends calls that have a timeout.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            heard => return heard.expect("a datagram"),
        }
    }
}
