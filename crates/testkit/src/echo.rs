//! A server that says everything back, for connections that last.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::namespace::Namespace;

/// Serves for as long as the process lives.
pub fn serve(namespace: &Namespace, address: SocketAddr) {
    let listener = namespace.enter(|| TcpListener::bind(address)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || say_back(stream));
        }
    });
}

// How a client leaves is its own business.
fn say_back(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            length => stream.write_all(&buffer[..length])?,
        }
    }
}
