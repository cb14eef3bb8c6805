//! Steady new connections, each one remembered: all that the demo tells is read from them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::names::Protocol;
use testkit::namespace::Namespace;
use testkit::talk::{hear, hear_connected};

use crate::stage::{DNS_BY_CLUSTER_IP, Pod, Stage, WEB_BY_CLUSTER_IP, WEB_BY_NODE_PORT, Way};

/// Between two connections of one way in.
const INTERVAL: Duration = Duration::from_millis(4);
pub const PER_SECOND: u128 = 1_000 / INTERVAL.as_millis();

/// Long enough for a busy machine; a visitor of a page would have given up, too.
const PATIENCE: Duration = Duration::from_secs(3);

/// One that was tried, and what came of it.
#[derive(Clone, Debug)]
pub struct Connection {
    pub way: &'static Way,
    pub began: Instant,
    pub ended: Instant,
    /// Who answered, or why nobody did.
    pub outcome: Result<SocketAddr, String>,
}

impl Connection {
    pub fn reached(&self, endpoint: SocketAddr) -> bool {
        self.outcome == Ok(endpoint)
    }
}

/// Runs until dropped.
#[derive(Debug)]
pub struct Traffic {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Connection>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    pub fn start(stage: &Stage) -> Self {
        let mut traffic = Self { stop: Arc::default(), seen: Arc::default(), threads: Vec::new() };
        traffic.add(stage.client(), &WEB_BY_NODE_PORT);
        traffic.add(stage.pod(Pod::A), &WEB_BY_CLUSTER_IP);
        traffic.add(stage.pod(Pod::A), &DNS_BY_CLUSTER_IP);
        traffic
    }

    fn add(&mut self, from: &Namespace, way: &'static Way) {
        let (from, stop, seen) = (from.clone(), self.stop.clone(), self.seen.clone());
        let keep_asking = move || {
            let mut next = Instant::now();
            for number in (0..=u16::MAX).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                let connection = try_once(way, number);
                next = (next + INTERVAL).max(connection.ended);
                lock(&seen).push(connection);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        };
        self.threads.push(std::thread::spawn(move || from.enter(keep_asking)));
    }

    pub fn seen(&self) -> MutexGuard<'_, Vec<Connection>> {
        lock(&self.seen)
    }

    /// Ends it and returns every connection, in the order they ended.
    pub fn finish(mut self) -> Vec<Connection> {
        if let Err(panic) = self.halt() {
            std::panic::resume_unwind(panic);
        }
        std::mem::take(&mut *self.seen())
    }

    fn halt(&mut self) -> std::thread::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).map(JoinHandle::join).fold(Ok(()), Result::and)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

fn lock(seen: &Mutex<Vec<Connection>>) -> MutexGuard<'_, Vec<Connection>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From the namespace of the calling thread. The number tells it from others of the same way in.
pub fn try_once(way: &'static Way, number: u16) -> Connection {
    let began = Instant::now();
    let answer = match way.protocol {
        Protocol::Tcp => ask_tcp(way.address(), number),
        Protocol::Udp => ask_udp(way.address(), number),
        Protocol::Sctp => Err(io::ErrorKind::Unsupported.into()),
    };
    let outcome = answer.map_err(|error| error.to_string()).and_then(|text| {
        let endpoint = text.split(' ').next().and_then(|endpoint| endpoint.parse().ok());
        endpoint.ok_or_else(|| format!("not an answer: {text:?}"))
    });
    Connection { way, began, ended: Instant::now(), outcome }
}

fn ask_tcp(to: SocketAddr, number: u16) -> io::Result<String> {
    hear_connected(to, PATIENCE, |socket| Ok(rustix::net::bind(socket, &fresh_port(number))?))
}

fn ask_udp(to: SocketAddr, number: u16) -> io::Result<String> {
    let socket = UdpSocket::bind(fresh_port(number))?;
    socket.connect(to)?;
    socket.send(b"?")?;
    hear(&socket, PATIENCE)
}

/// One that nobody has used before: to the kernel a datagram from a port used a moment ago is no new connection, and a
/// TCP connection from one may have to begin twice. Left to itself it takes the same ones again after some seconds.
fn fresh_port(number: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, 20_000 + number % 40_000).into()
}
