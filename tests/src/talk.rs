//! Servers that say who they are and whom they see, and clients that ask.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::names::Protocol;

use crate::namespace::Namespace;

/// What a client got.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// Who answered, and the address the client had in its eyes.
    From {
        endpoint: SocketAddr,
        client: IpAddr,
    },
    Refused,
    Silence,
}

/// How long a packet may take within one machine before it counts as lost.
const PATIENCE: Duration = Duration::from_millis(400);

/// Answers every connection and datagram until dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Serves TCP and UDP at this address, which the namespace must have.
    pub fn start(namespace: &Namespace, address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tcp, udp) =
            namespace.enter(|| (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap()));
        let patience = Some(Duration::from_millis(50));
        udp.set_read_timeout(patience).unwrap();
        rustix::net::sockopt::set_socket_timeout(&tcp, rustix::net::sockopt::Timeout::Recv, patience)
            .unwrap();
        let threads = vec![
            std::thread::spawn({
                let stop = stop.clone();
                move || serve_tcp(&tcp, address, &stop)
            }),
            std::thread::spawn({
                let stop = stop.clone();
                move || serve_udp(&udp, address, &stop)
            }),
        ];
        Self { stop, threads }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve_tcp(listener: &TcpListener, address: SocketAddr, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok((mut stream, peer)) = listener.accept() {
            let _ = stream.write_all(format!("{address} {}", peer.ip()).as_bytes());
        }
    }
}

fn serve_udp(socket: &UdpSocket, address: SocketAddr, stop: &AtomicBool) {
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(format!("{address} {}", peer.ip()).as_bytes(), peer);
        }
    }
}

/// Makes one new connection, or sends one datagram from a new socket, and tells what came of it.
pub fn ask(from: &Namespace, protocol: Protocol, to: SocketAddr) -> Answer {
    ask_from(from, None, protocol, to)
}

/// The same from an address of the namespace's choice.
pub fn ask_from(from: &Namespace, source: Option<IpAddr>, protocol: Protocol, to: SocketAddr) -> Answer {
    let answer = from.enter(|| match protocol {
        Protocol::Tcp => ask_tcp(source, to),
        Protocol::Udp => ask_udp(source, to),
        Protocol::Sctp => panic!("this kernel has no SCTP sockets"),
    });
    match answer {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Answer::Refused,
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => Answer::Silence,
        Err(error) => panic!("asking {to}: {error}"),
    }
}

fn ask_tcp(source: Option<IpAddr>, to: SocketAddr) -> std::io::Result<String> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
    let mut stream = match source {
        None => TcpStream::connect_timeout(&to, PATIENCE)?,
        Some(source) => {
            let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
            bind(&socket, &SocketAddr::new(source, 0))?;
            connect(&socket, &to).map_err(|error| match error {
                rustix::io::Errno::INPROGRESS | rustix::io::Errno::AGAIN => ErrorKind::TimedOut.into(),
                error => std::io::Error::from(error),
            })?;
            socket.into()
        }
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn ask_udp(source: Option<IpAddr>, to: SocketAddr) -> std::io::Result<String> {
    let any = if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let socket = UdpSocket::bind((source.unwrap_or(any), 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"?")?;
    let mut buffer = [0; 128];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn parse(text: &str) -> Answer {
    let (endpoint, client) = text.split_once(' ').unwrap_or_else(|| panic!("not an answer: {text:?}"));
    Answer::From { endpoint: endpoint.parse().unwrap(), client: client.parse().unwrap() }
}
