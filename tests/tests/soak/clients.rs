//! Clients of the stable Services, and their failures.
//!
//! A connection has failed if it is refused, reset, answered by a wrong server, or not answered until a deadline that is
//! longer than the machine freezes: TCP retransmits by itself, and the UDP clients send again each second, as resolvers do.
//! The report counts how often they had to.

use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use model::address::Family;
use rustix::io::Errno;
use rustix::net::sockopt;
use testkit::lab::{ClientPlace, TARGET};
use testkit::namespace::Namespace;
use testkit::network::of;
use testkit::probe::{connect_and_read, receive};
use testkit::wait::TimeoutReader;
use testkit::wait::within;
use tests::cluster::test_cluster::TestCluster;

use crate::services::Targets;

/// Time in which the machine was frozen does not count.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
const UDP_RESEND: Duration = Duration::from_secs(1);
/// Leaves a small machine enough CPU time for the proxy.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Clients {
    clients: Vec<Client>,
    failures: Mutex<Vec<Failure>>,
    is_paused: AtomicBool,
    idle: AtomicUsize,
}

#[derive(Clone, Debug)]
pub struct Failure {
    client: String,
    reason: String,
    pub began: Instant,
    pub ended: Instant,
}

/// One client, which makes one attempt after the other.
#[derive(Debug)]
struct Client {
    name: String,
    namespace: Namespace,
    to: SocketAddr,
    kind: Kind,
    attempts: AtomicU64,
    resent: AtomicU64,
    slowest: Mutex<Duration>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Opens a connection for each attempt.
    NewTcp,
    /// One connection to an echo server, state for as long as it holds; an attempt is an exchange over it.
    LongTcp,
    /// Uses a new source port for each attempt.
    NewUdp,
    /// Uses one source port for all attempts.
    FixedUdp,
}

/// The state of a client between attempts.
#[derive(Debug, Default)]
struct ClientState {
    port: u16,
    stream: Option<TcpStream>,
    socket: Option<UdpSocket>,
}

impl Clients {
    pub fn new(cluster: &TestCluster, targets: &[Targets; 2]) -> Self {
        let (pod, outside) =
            (cluster.lab.namespace(ClientPlace::Pod), cluster.lab.namespace(ClientPlace::Outside));
        let mut clients = Vec::new();
        for (family, at) in Family::BOTH.into_iter().zip(targets) {
            for (name, namespace, kind, to) in [
                ("tcp, pod to cluster IP", pod, Kind::NewTcp, at.cluster_ip),
                ("tcp, pod to cluster IP with affinity", pod, Kind::NewTcp, at.sticky_cluster_ip),
                ("tcp, outside to node port", outside, Kind::NewTcp, at.node_port_tcp),
                ("tcp, outside to load balancer", outside, Kind::NewTcp, at.load_balancer_ip),
                ("tcp, one connection, pod to cluster IP", pod, Kind::LongTcp, at.echo_cluster_ip),
                ("tcp, one connection, outside to node port", outside, Kind::LongTcp, at.echo_node_port),
                ("udp, pod to cluster IP", pod, Kind::NewUdp, at.cluster_ip),
                ("udp, one port, pod to cluster IP with affinity", pod, Kind::FixedUdp, at.sticky_cluster_ip),
                ("udp, one port, outside to node port", outside, Kind::FixedUdp, at.node_port_udp),
            ] {
                clients.push(Client {
                    name: format!("{family} {name}"),
                    namespace: namespace.clone(),
                    to,
                    kind,
                    attempts: AtomicU64::new(0),
                    resent: AtomicU64::new(0),
                    slowest: Mutex::default(),
                });
            }
        }
        Self {
            clients,
            failures: Mutex::default(),
            is_paused: AtomicBool::new(false),
            idle: AtomicUsize::new(0),
        }
    }

    /// Runs each client on a thread until the flag is set.
    pub fn spawn<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, is_over: &'scope AtomicBool) {
        for client in &self.clients {
            scope.spawn(move || self.run(client, is_over));
        }
    }

    fn run(&self, client: &Client, is_over: &AtomicBool) {
        client.namespace.move_in();
        let mut state = ClientState::default();
        while !is_over.load(Ordering::Relaxed) {
            if self.is_paused.load(Ordering::Relaxed) {
                self.idle.fetch_add(1, Ordering::Relaxed);
                while self.is_paused.load(Ordering::Relaxed) && !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(50));
                }
                self.idle.fetch_sub(1, Ordering::Relaxed);
            }
            let began = Instant::now();
            let outcome = client.attempt(&mut state);
            let ended = Instant::now();
            client.attempts.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = outcome {
                let (client, reason) = (client.name.clone(), error.to_string());
                self.failures.lock().unwrap().push(Failure { client, reason, began, ended });
                state = ClientState { port: state.port, ..ClientState::default() };
            }
            let mut slowest = client.slowest.lock().unwrap();
            *slowest = (*slowest).max(ended - began);
            drop(slowest);
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until each client has made a hundred attempts.
    pub fn wait_for_attempts(&self) {
        within(2 * ANSWER_TIMEOUT, "all clients are served", || {
            self.clients.iter().all(|client| client.attempts.load(Ordering::Relaxed) > 100)
        });
    }

    /// Returns when no attempt is under way. Long-lived connections stay open.
    pub fn pause(&self) {
        self.is_paused.store(true, Ordering::Relaxed);
        within(2 * ANSWER_TIMEOUT, "all clients pause", || {
            self.idle.load(Ordering::Relaxed) == self.clients.len()
        });
    }

    pub fn resume(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
    }

    pub fn failures(&self) -> Vec<Failure> {
        self.failures.lock().unwrap().clone()
    }

    pub fn attempts(&self) -> u64 {
        self.clients.iter().map(|client| client.attempts.load(Ordering::Relaxed)).sum()
    }
}

impl Client {
    fn attempt(&self, state: &mut ClientState) -> io::Result<()> {
        match self.kind {
            Kind::NewTcp => {
                let from = self.next_port(state);
                let text = connect_and_read(self.to, ANSWER_TIMEOUT, |socket| {
                    sockopt::set_socket_reuseaddr(socket, true)?;
                    Ok(rustix::net::bind(socket, &from)?)
                })?;
                answered_by_an_endpoint(&text)
            }
            Kind::LongTcp => exchange(self.to, &mut state.stream),
            Kind::NewUdp => loop {
                match UdpSocket::bind(self.next_port(state)) {
                    // The client of the other family uses this port.
                    Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                    bound => return self.request(&bound?),
                }
            },
            Kind::FixedUdp => {
                let socket = match &mut state.socket {
                    Some(socket) => socket,
                    none => none.insert(UdpSocket::bind(SocketAddr::new(self.any(), 0))?),
                };
                self.request(socket)
            }
        }
    }

    /// The next source port, so that conntrack does not take a connection for one that has just ended.
    fn next_port(&self, state: &mut ClientState) -> SocketAddr {
        state.port = (state.port + 1) % 20_000;
        // Below the kernel's ephemeral ports.
        SocketAddr::new(self.any(), 10_000 + state.port)
    }

    fn any(&self) -> IpAddr {
        of(Family::of(self.to.ip()), ["0.0.0.0", "::"]).parse().unwrap()
    }

    fn request(&self, socket: &UdpSocket) -> io::Result<()> {
        socket.connect(self.to)?;
        for attempt in 0..ANSWER_TIMEOUT.as_secs() / UDP_RESEND.as_secs() {
            if attempt > 0 {
                self.resent.fetch_add(1, Ordering::Relaxed);
            }
            match socket.send(b"?") {
                // Dropped by the output hook: wait for an answer that does not come.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => {}
                sent => drop(sent?),
            }
            match receive(socket, UDP_RESEND) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                answer => return answered_by_an_endpoint(&answer?),
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

/// Servers answer with their own address.
fn answered_by_an_endpoint(text: &str) -> io::Result<()> {
    let endpoint: Option<SocketAddr> = text.split(' ').next().and_then(|address| address.parse().ok());
    match endpoint {
        Some(endpoint) if endpoint.port() == TARGET => Ok(()),
        _ => Err(io::Error::other(format!("a wrong server answered: {text:?}"))),
    }
}

fn exchange(to: SocketAddr, state: &mut Option<TcpStream>) -> io::Result<()> {
    let stream = match state {
        Some(stream) => stream,
        none => {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            none.insert(stream)
        }
    };
    stream.write_all(b"8 bytes.")?;
    TimeoutReader(&*stream, ANSWER_TIMEOUT).read_exact(&mut [0; 8])
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = (self.ended - self.began).as_secs_f64();
        write!(f, "{}: {} after {took:.3} s", self.client, self.reason)
    }
}

impl fmt::Display for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<55} {:>9} {:>7} {:>7} {:>10}", "clients", "attempts", "failed", "resent", "slowest")?;
        let failures = self.failures.lock().unwrap();
        for client in &self.clients {
            let failed = failures.iter().filter(|failure| failure.client == client.name).count();
            let [attempts, resent] =
                [&client.attempts, &client.resent].map(|count| count.load(Ordering::Relaxed));
            let slowest = format!("{} ms", client.slowest.lock().unwrap().as_millis());
            writeln!(f, "{:<55} {attempts:>9} {failed:>7} {resent:>7} {slowest:>10}", client.name)?;
        }
        Ok(())
    }
}
