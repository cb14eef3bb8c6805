//! Servers that say who they are and whom they see, and clients that ask.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, PipeWriter, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::namespace::Namespace;
use crate::network::of;
use crate::patience::{Patient, wait_for, wait_to_read};
use crate::sctp;

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
    /// The packet left the node for the internet: nobody translated it, nobody stopped it.
    Strayed,
}

/// How long a packet may take within one machine before it counts as lost.
const PATIENCE: Duration = Duration::from_millis(400);

/// Answers every connection and datagram until dropped.
#[derive(Debug)]
pub struct Server {
    stop: Option<PipeWriter>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A socket that is asked.
enum Ear {
    Tcp(TcpListener),
    Udp(UdpSocket, SocketAddr),
    Sctp(sctp::Socket, SocketAddr),
}

impl Server {
    /// Serves TCP, UDP and SCTP at this address, which the namespace must have.
    pub fn start(namespace: &Namespace, address: SocketAddr) -> Self {
        Self::start_all(namespace, &[address])
    }

    pub fn start_all(namespace: &Namespace, addresses: &[SocketAddr]) -> Self {
        let ears: Vec<Ear> = namespace.enter(|| addresses.iter().flat_map(|at| Ear::all(*at)).collect());
        let (stopped, stop) = io::pipe().unwrap();
        let serve = move || {
            let fds = ears.iter().map(Ear::fd).chain([stopped.as_fd()]);
            let mut polled: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            while polled.last().is_some_and(|stop| stop.revents().is_empty()) {
                // What goes wrong on the way is what the asker finds out.
                let asked = ears.iter().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty());
                asked.for_each(|(ear, _)| _ = ear.answer());
                _ = poll(&mut polled, None);
            }
        };
        Self { stop: Some(stop), thread: Some(std::thread::spawn(serve)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Ear {
    fn all(address: SocketAddr) -> [Self; 3] {
        let named = |error| panic!("serving at {address}: {error}");
        let tcp = TcpListener::bind(address).unwrap_or_else(named);
        let udp = UdpSocket::bind(address).unwrap();
        let sctp = sctp::Socket::bind(address.ip()).unwrap();
        [Self::Tcp(tcp), Self::Udp(udp, address), Self::Sctp(sctp, address)]
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Udp(socket, _) => socket.as_fd(),
            Self::Sctp(socket, _) => socket.fd().as_fd(),
        }
    }

    fn answer(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => {
                let (mut stream, peer) = listener.accept()?;
                let answer = format!("{} {}", stream.local_addr()?, peer.ip());
                stream.write_all(answer.as_bytes())
            }
            Self::Udp(socket, address) => {
                let (_, peer) = socket.recv_from(&mut [0; 64])?;
                socket.send_to(format!("{address} {}", peer.ip()).as_bytes(), peer).map(drop)
            }
            Self::Sctp(socket, address) => match socket.receive()? {
                Some((question, peer))
                    if question.destination == address.port() && question.words.is_none() =>
                {
                    socket.answer(&question, peer, &format!("{address} {peer}"))
                }
                _ => Ok(()),
            },
        }
    }
}

/// Makes one new connection, or sends one datagram from a new socket, and tells what came of it.
pub fn ask(from: &Namespace, protocol: Protocol, to: SocketAddr) -> Answer {
    ask_from(from, None, protocol, to)
}

/// The same from an address of the namespace's choice.
pub fn ask_from(from: &Namespace, source: Option<IpAddr>, protocol: Protocol, to: SocketAddr) -> Answer {
    from.enter(|| ask_here(source, protocol, to, PATIENCE))
}

/// The same from the namespace that the thread is in.
pub fn ask_here(source: Option<IpAddr>, protocol: Protocol, to: SocketAddr, patience: Duration) -> Answer {
    let any = || of(Family::of(to.ip()), ["0.0.0.0".parse().unwrap(), "::".parse().unwrap()]);
    let source = source.unwrap_or_else(any);
    answer(
        to,
        match protocol {
            Protocol::Tcp => ask_tcp(source, to, patience),
            Protocol::Udp => ask_udp(source, to, patience),
            Protocol::Sctp => ask_sctp(source, to, patience),
        },
    )
}

/// A UDP flow that lasts: all of its datagrams are from the same port.
#[derive(Debug)]
pub struct Flow {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Flow {
    /// From the namespace that the thread is in.
    pub fn open(source: Option<IpAddr>, to: SocketAddr) -> Self {
        let any = || of(Family::of(to.ip()), ["0.0.0.0".parse().unwrap(), "::".parse().unwrap()]);
        let socket = bind_next(source.unwrap_or_else(any), to, UdpSocket::bind).unwrap();
        socket.connect(to).unwrap();
        Self { socket, to }
    }

    /// Sends a datagram.
    pub fn ask(&self, patience: Duration) -> Answer {
        let sent = unless_stopped(self.socket.send(b"?").map(drop));
        answer(self.to, sent.and_then(|()| hear(&self.socket, patience)))
    }
}

fn answer(to: SocketAddr, heard: io::Result<String>) -> Answer {
    match heard {
        Ok(text) => parse(&text),
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => Answer::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Answer::Silence,
            // How IPv4 and IPv6 say "prohibited".
            ErrorKind::HostUnreachable | ErrorKind::PermissionDenied => Answer::Strayed,
            _ => panic!("asking {to}: {error}"),
        },
    }
}

/// No two questions to an address come from the same port, so that none is taken for part of an earlier conversation.
fn next_port(to: SocketAddr) -> u16 {
    static ASKED: Mutex<BTreeMap<SocketAddr, u16>> = Mutex::new(BTreeMap::new());
    let mut asked = ASKED.lock().unwrap();
    let count = asked.entry(to).or_default();
    *count = (*count + 1) % 50_000;
    10_000 + *count
}

/// Binds to a port of our own, whatever else may have it.
fn bind_next<T>(
    source: IpAddr,
    to: SocketAddr,
    mut bind: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match bind(SocketAddr::new(source, next_port(to))) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
}

fn ask_tcp(source: IpAddr, to: SocketAddr, patience: Duration) -> io::Result<String> {
    hear_connected(to, patience, |socket| {
        sockopt::set_socket_reuseaddr(socket, true)?;
        bind_next(source, to, |from| Ok(rustix::net::bind(socket, &from)?))
    })
}

/// What a server says to a new connection of a socket that was bound to something.
pub fn hear_connected(
    to: SocketAddr,
    patience: Duration,
    bind: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<String> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    bind(&socket)?;
    match rustix::net::connect(&socket, &to) {
        Err(Errno::INPROGRESS) => wait_for_connection(&socket, patience)?,
        connected => connected?,
    }
    let mut text = String::new();
    Patient(TcpStream::from(socket), patience).read_to_string(&mut text)?;
    Ok(text)
}

/// A refusal that comes back while the kernel is still busy sending does not end the attempt, but it can be asked for.
fn wait_for_connection(socket: &OwnedFd, patience: Duration) -> io::Result<()> {
    let refusal = || Ok(sockopt::socket_error(socket)??);
    wait_for(socket, PollFlags::OUT, patience, refusal)?;
    refusal()
}

fn ask_udp(source: IpAddr, to: SocketAddr, patience: Duration) -> io::Result<String> {
    let socket = bind_next(source, to, UdpSocket::bind)?;
    socket.connect(to)?;
    unless_stopped(socket.send(b"?").map(drop))?;
    hear(&socket, patience)
}

/// The next datagram.
pub fn hear(socket: &UdpSocket, patience: Duration) -> io::Result<String> {
    wait_to_read(socket, patience)?;
    let mut buffer = [0; 128];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn ask_sctp(source: IpAddr, to: SocketAddr, patience: Duration) -> io::Result<String> {
    let socket = sctp::Socket::bind(source)?;
    socket.connect(to.ip())?;
    let port = next_port(to);
    unless_stopped(socket.ask(port, to.port()))?;
    loop {
        wait_to_read(socket.fd(), patience)?;
        match socket.receive()? {
            // Before it was connected, the socket heard what others were told.
            Some((packet, from))
                if (from, packet.source, packet.destination) == (to.ip(), to.port(), port) =>
            {
                return packet.words.ok_or_else(|| ErrorKind::InvalidData.into());
            }
            _ => {}
        }
    }
}

/// A packet that is stopped on the sender's own machine fails the call; whether anything came back is still to be seen.
fn unless_stopped(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => Ok(()),
        sent => sent,
    }
}

fn parse(text: &str) -> Answer {
    let (endpoint, client) = text.split_once(' ').unwrap_or_else(|| panic!("not an answer: {text:?}"));
    Answer::From { endpoint: endpoint.parse().unwrap(), client: client.parse().unwrap() }
}
