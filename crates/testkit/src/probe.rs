//! Probes: one connection or datagram each, and servers that answer with the address that was reached and the source
//! address they saw.

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
use crate::sctp::SctpSocket;
use crate::wait::{TimeoutReader, poll_until, wait_readable};

/// What became of one probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// `endpoint` answered, and saw the probe come from `client`.
    From {
        endpoint: SocketAddr,
        client: IpAddr,
    },
    Refused,
    TimedOut,
    /// The packet left the node by its default route: no rule translated, refused or dropped it.
    LeftNode,
}

/// Between namespaces of one machine, a packet that takes longer counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);

/// Answers every connection and datagram until dropped.
#[derive(Debug)]
pub struct Server {
    stop: Option<PipeWriter>,
    thread: Option<std::thread::JoinHandle<()>>,
}

enum Listener {
    Tcp(TcpListener),
    Udp(UdpSocket, SocketAddr),
    Sctp(SctpSocket, SocketAddr),
}

impl Server {
    /// Serves TCP, UDP and SCTP at `address`, which the namespace must own.
    pub fn start(namespace: &Namespace, address: SocketAddr) -> Self {
        Self::start_all(namespace, &[address])
    }

    pub fn start_all(namespace: &Namespace, addresses: &[SocketAddr]) -> Self {
        let listeners: Vec<Listener> =
            namespace.enter(|| addresses.iter().flat_map(|at| Listener::all(*at)).collect());
        let (stopped, stop) = io::pipe().unwrap();
        let serve = move || {
            let fds = listeners.iter().map(Listener::fd).chain([stopped.as_fd()]);
            let mut polled: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            while polled.last().is_some_and(|stop| stop.revents().is_empty()) {
                let readable = listeners.iter().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty());
                // The client reports a failure: it gets no answer.
                readable.for_each(|(listener, _)| _ = listener.answer());
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

impl Listener {
    fn all(address: SocketAddr) -> [Self; 3] {
        let fail = |error| panic!("serving at {address}: {error}");
        let tcp = TcpListener::bind(address).unwrap_or_else(fail);
        let udp = UdpSocket::bind(address).unwrap();
        let sctp = SctpSocket::bind(address.ip()).unwrap();
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
                Some((request, peer))
                    if request.destination == address.port() && request.payload.is_none() =>
                {
                    socket.answer(&request, peer, &format!("{address} {peer}"))
                }
                _ => Ok(()),
            },
        }
    }
}

/// Opens one connection, or sends one datagram from a new socket.
pub fn probe(from: &Namespace, protocol: Protocol, to: SocketAddr) -> Answer {
    probe_from(from, None, protocol, to)
}

/// Probes from `source`, which the namespace must own.
pub fn probe_from(from: &Namespace, source: Option<IpAddr>, protocol: Protocol, to: SocketAddr) -> Answer {
    from.enter(|| probe_here(source, protocol, to, ANSWER_TIMEOUT))
}

/// Probes from the namespace of the calling thread.
pub fn probe_here(source: Option<IpAddr>, protocol: Protocol, to: SocketAddr, timeout: Duration) -> Answer {
    let any = || of(Family::of(to.ip()), ["0.0.0.0".parse().unwrap(), "::".parse().unwrap()]);
    let source = source.unwrap_or_else(any);
    let answer = match protocol {
        Protocol::Tcp => probe_tcp(source, to, timeout),
        Protocol::Udp => probe_udp(source, to, timeout),
        Protocol::Sctp => probe_sctp(source, to, timeout),
    };
    to_answer(to, answer)
}

/// A UDP flow: all datagrams have the same source port.
#[derive(Debug)]
pub struct UdpFlow {
    socket: UdpSocket,
    to: SocketAddr,
}

impl UdpFlow {
    /// Opens a flow from the namespace of the calling thread.
    pub fn open(source: Option<IpAddr>, to: SocketAddr) -> Self {
        let any = || of(Family::of(to.ip()), ["0.0.0.0".parse().unwrap(), "::".parse().unwrap()]);
        let socket = bind_next(source.unwrap_or_else(any), to, UdpSocket::bind).unwrap();
        socket.connect(to).unwrap();
        Self { socket, to }
    }

    /// Sends one datagram.
    pub fn probe(&self, timeout: Duration) -> Answer {
        let sent = unless_dropped(self.socket.send(b"?").map(drop));
        to_answer(self.to, sent.and_then(|()| receive(&self.socket, timeout)))
    }
}

fn to_answer(to: SocketAddr, received: io::Result<String>) -> Answer {
    match received {
        Ok(text) => parse(&text),
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => Answer::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Answer::TimedOut,
            // How IPv4 and IPv6 report ICMP "administratively prohibited", which only the default router sends.
            ErrorKind::HostUnreachable | ErrorKind::PermissionDenied => Answer::LeftNode,
            _ => panic!("probing {to}: {error}"),
        },
    }
}

/// A source port that no recent probe of `to` used, so that conntrack does not take this one for part of an earlier flow. Other
/// destinations begin with other ports: IPVS confuses two connections from the same port to the same endpoint.
fn next_port(to: SocketAddr) -> u16 {
    static COUNTS: Mutex<BTreeMap<SocketAddr, u32>> = Mutex::new(BTreeMap::new());
    let mut counts = COUNTS.lock().unwrap();
    let destinations = u32::try_from(counts.len()).unwrap();
    let count = counts.entry(to).or_insert(1_000 * destinations);
    *count += 1;
    u16::try_from(10_000 + *count % 50_000).unwrap()
}

/// Binds to the first of the [`next_port`]s that is free.
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

fn probe_tcp(source: IpAddr, to: SocketAddr, timeout: Duration) -> io::Result<String> {
    connect_and_read(to, timeout, |socket| {
        sockopt::set_socket_reuseaddr(socket, true)?;
        bind_next(source, to, |from| Ok(rustix::net::bind(socket, &from)?))
    })
}

/// Connects a new TCP socket, which `bind` may bind first, and returns all that the server sends.
pub fn connect_and_read(
    to: SocketAddr,
    timeout: Duration,
    bind: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<String> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    bind(&socket)?;
    match rustix::net::connect(&socket, &to) {
        Err(Errno::INPROGRESS) => wait_for_connection(&socket, timeout)?,
        connected => connected?,
    }
    let mut text = String::new();
    TimeoutReader(TcpStream::from(socket), timeout).read_to_string(&mut text)?;
    Ok(text)
}

/// `poll` misses a refusal that arrives while the kernel is still sending; the socket's pending error does not.
fn wait_for_connection(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let pending_error = || Ok(sockopt::socket_error(socket)??);
    poll_until(socket, PollFlags::OUT, timeout, pending_error)?;
    pending_error()
}

fn probe_udp(source: IpAddr, to: SocketAddr, timeout: Duration) -> io::Result<String> {
    let socket = bind_next(source, to, UdpSocket::bind)?;
    socket.connect(to)?;
    unless_dropped(socket.send(b"?").map(drop))?;
    receive(&socket, timeout)
}

/// Returns the next datagram.
pub fn receive(socket: &UdpSocket, timeout: Duration) -> io::Result<String> {
    wait_readable(socket, timeout)?;
    let mut buffer = [0; 128];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Sends its packet up to three times, as real SCTP and TCP do: a busy machine drops some.
fn probe_sctp(source: IpAddr, to: SocketAddr, timeout: Duration) -> io::Result<String> {
    const ATTEMPTS: u32 = 3;
    let socket = SctpSocket::bind(source)?;
    socket.connect(to.ip())?;
    let port = next_port(to);
    let attempt = || {
        unless_dropped(socket.send_init(port, to.port()))?;
        receive_init_ack(&socket, port, to, timeout / ATTEMPTS)
    };
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {}
            answer => return answer,
        }
    }
    attempt()
}

fn receive_init_ack(
    socket: &SctpSocket,
    port: u16,
    from: SocketAddr,
    timeout: Duration,
) -> io::Result<String> {
    loop {
        wait_readable(socket.fd(), timeout)?;
        match socket.receive()? {
            // Before it was connected, the socket received the packets of other probes.
            Some((packet, ip))
                if (ip, packet.source, packet.destination) == (from.ip(), from.port(), port) =>
            {
                return packet.payload.ok_or_else(|| ErrorKind::InvalidData.into());
            }
            _ => {}
        }
    }
}

/// A packet that the output hook drops fails the call with EPERM; the probe then times out like any dropped one.
fn unless_dropped(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => Ok(()),
        sent => sent,
    }
}

fn parse(text: &str) -> Answer {
    let (endpoint, client) = text.split_once(' ').unwrap_or_else(|| panic!("not an answer: {text:?}"));
    Answer::From { endpoint: endpoint.parse().unwrap(), client: client.parse().unwrap() }
}
