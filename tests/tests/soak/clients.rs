//! Clients of the stable Services, and what becomes of their connections.
//!
//! A connection has failed if it is refused, reset, answered by a wrong server, or not answered until a deadline that is
//! longer than the machine stands still: TCP repeats what is lost by itself, and the UDP clients send again each second, as
//! resolvers do. How often they had to is counted.

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
use testkit::lab::{TARGET, Who};
use testkit::namespace::Namespace;
use testkit::network::of;
use testkit::patience::Patient;
use testkit::talk::{hear, hear_connected};
use tests::cluster::stage::Stage;
use tests::matrix::within;

use crate::services::Targets;

/// Counts only time in which the machine was at work.
const ANSWER_DEADLINE: Duration = Duration::from_secs(40);
const UDP_RESEND: Duration = Duration::from_secs(1);
/// Leaves a small machine enough time for the proxy.
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
    why: String,
    pub began: Instant,
    pub ended: Instant,
}

/// Makes one attempt after the other, all of one kind.
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
    /// A connection for each attempt.
    NewTcp,
    /// One connection to an echo server, kept for as long as it holds; an attempt is an exchange over it.
    LongTcp,
    /// A port for each attempt.
    NewUdp,
    /// The same port for all attempts.
    FixedUdp,
}

/// What a client keeps from one attempt to the next.
#[derive(Debug, Default)]
struct Kept {
    port: u16,
    stream: Option<TcpStream>,
    socket: Option<UdpSocket>,
}

impl Clients {
    pub fn new(stage: &Stage, targets: &[Targets; 2]) -> Self {
        let (pod, outside) = (stage.lab.namespace(Who::Pod), stage.lab.namespace(Who::Outside));
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

    /// Each client gets a thread until the flag is raised.
    pub fn spawn<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, is_over: &'scope AtomicBool) {
        for client in &self.clients {
            scope.spawn(move || self.run(client, is_over));
        }
    }

    fn run(&self, client: &Client, is_over: &AtomicBool) {
        client.namespace.move_in();
        let mut kept = Kept::default();
        while !is_over.load(Ordering::Relaxed) {
            if self.is_paused.load(Ordering::Relaxed) {
                self.idle.fetch_add(1, Ordering::Relaxed);
                while self.is_paused.load(Ordering::Relaxed) && !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(50));
                }
                self.idle.fetch_sub(1, Ordering::Relaxed);
            }
            let began = Instant::now();
            let outcome = client.attempt(&mut kept);
            let ended = Instant::now();
            client.attempts.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = outcome {
                let (client, why) = (client.name.clone(), error.to_string());
                self.failures.lock().unwrap().push(Failure { client, why, began, ended });
                kept = Kept { port: kept.port, ..Kept::default() };
            }
            let mut slowest = client.slowest.lock().unwrap();
            *slowest = (*slowest).max(ended - began);
            drop(slowest);
            std::thread::sleep(PAUSE);
        }
    }

    /// Until each has done its work often.
    pub fn wait_for_attempts(&self) {
        within(2 * ANSWER_DEADLINE, "all clients are served", || {
            self.clients.iter().all(|client| client.attempts.load(Ordering::Relaxed) > 100)
        });
    }

    /// Returns when no attempt is under way. Connections that last stay.
    pub fn pause(&self) {
        self.is_paused.store(true, Ordering::Relaxed);
        within(2 * ANSWER_DEADLINE, "all clients pause", || {
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
    fn attempt(&self, kept: &mut Kept) -> io::Result<()> {
        match self.kind {
            Kind::NewTcp => {
                let from = self.next_port(kept);
                let text = hear_connected(self.to, ANSWER_DEADLINE, |socket| {
                    sockopt::set_socket_reuseaddr(socket, true)?;
                    Ok(rustix::net::bind(socket, &from)?)
                })?;
                answered_by_an_endpoint(&text)
            }
            Kind::LongTcp => exchange(self.to, &mut kept.stream),
            Kind::NewUdp => loop {
                match UdpSocket::bind(self.next_port(kept)) {
                    // The client of the other family has it.
                    Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                    bound => return self.request(&bound?),
                }
            },
            Kind::FixedUdp => {
                let socket = match &mut kept.socket {
                    Some(socket) => socket,
                    none => none.insert(UdpSocket::bind(SocketAddr::new(self.any(), 0))?),
                };
                self.request(socket)
            }
        }
    }

    /// So that no connection is taken for one that has just ended.
    fn next_port(&self, kept: &mut Kept) -> SocketAddr {
        kept.port = (kept.port + 1) % 20_000;
        // Below the ports that the kernel itself chooses.
        SocketAddr::new(self.any(), 10_000 + kept.port)
    }

    fn any(&self) -> IpAddr {
        of(Family::of(self.to.ip()), ["0.0.0.0", "::"]).parse().unwrap()
    }

    fn request(&self, socket: &UdpSocket) -> io::Result<()> {
        socket.connect(self.to)?;
        for attempt in 0..ANSWER_DEADLINE.as_secs() / UDP_RESEND.as_secs() {
            if attempt > 0 {
                self.resent.fetch_add(1, Ordering::Relaxed);
            }
            match socket.send(b"?") {
                // Stopped on the way out: nothing will come back.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => {}
                sent => drop(sent?),
            }
            match hear(socket, UDP_RESEND) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                heard => return answered_by_an_endpoint(&heard?),
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

/// Servers say where they are.
fn answered_by_an_endpoint(text: &str) -> io::Result<()> {
    let endpoint: Option<SocketAddr> = text.split(' ').next().and_then(|address| address.parse().ok());
    match endpoint {
        Some(endpoint) if endpoint.port() == TARGET => Ok(()),
        _ => Err(io::Error::other(format!("a wrong server answered: {text:?}"))),
    }
}

fn exchange(to: SocketAddr, kept: &mut Option<TcpStream>) -> io::Result<()> {
    let stream = match kept {
        Some(stream) => stream,
        none => {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            none.insert(stream)
        }
    };
    stream.write_all(b"8 bytes.")?;
    Patient(&*stream, ANSWER_DEADLINE).read_exact(&mut [0; 8])
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = (self.ended - self.began).as_secs_f64();
        write!(f, "{}: {} after {took:.3} s", self.client, self.why)
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
