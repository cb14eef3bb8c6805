//! A TCP server that echoes what it receives, for long-lived connections.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::namespace::Namespace;

/// Serves until the process ends.
pub fn serve(namespace: &Namespace, address: SocketAddr) {
    let listener = namespace.enter(|| TcpListener::bind(address)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that resets the connection only ends its own thread.
            std::thread::spawn(move || echo(stream));
        }
    });
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            length => stream.write_all(&buffer[..length])?,
        }
    }
}
