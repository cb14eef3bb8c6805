//! A steady load of new connections. The demo reports what became of each of them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::names::Protocol;
use testkit::namespace::Namespace;
use testkit::probe::{connect_and_read, receive};

use crate::cluster::{
    DNS_BY_CLUSTER_IP, DemoCluster, DemoFrontend, DemoPod, WEB_BY_CLUSTER_IP, WEB_BY_NODE_PORT,
};

/// Between two connections to one frontend.
const INTERVAL: Duration = Duration::from_millis(4);
pub const PER_SECOND: u128 = 1_000 / INTERVAL.as_millis();

/// Generous, for a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// One attempt to connect.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub frontend: &'static DemoFrontend,
    pub began: Instant,
    pub ended: Instant,
    /// The endpoint that answered, or the error.
    pub outcome: Result<SocketAddr, String>,
}

impl Attempt {
    pub fn reached(&self, endpoint: SocketAddr) -> bool {
        self.outcome == Ok(endpoint)
    }
}

/// Runs until dropped.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Attempt>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(cluster: &DemoCluster) -> Self {
        let mut traffic = Self { stop: Arc::default(), seen: Arc::default(), threads: Vec::new() };
        traffic.add(cluster.client(), &WEB_BY_NODE_PORT);
        traffic.add(cluster.pod(DemoPod::A), &WEB_BY_CLUSTER_IP);
        traffic.add(cluster.pod(DemoPod::A), &DNS_BY_CLUSTER_IP);
        traffic
    }

    fn add(&mut self, from: &Namespace, frontend: &'static DemoFrontend) {
        let (from, stop, seen) = (from.clone(), self.stop.clone(), self.seen.clone());
        let run = move || {
            let mut next = Instant::now();
            for number in (0..=u16::MAX).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                let connection = try_once(frontend, number);
                next = (next + INTERVAL).max(connection.ended);
                lock(&seen).push(connection);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        };
        self.threads.push(std::thread::spawn(move || from.enter(run)));
    }

    pub fn seen(&self) -> MutexGuard<'_, Vec<Attempt>> {
        lock(&self.seen)
    }

    /// Stops the load and returns all attempts, in the order in which they ended.
    pub fn finish(mut self) -> Vec<Attempt> {
        if let Err(panic) = self.stop_threads() {
            std::panic::resume_unwind(panic);
        }
        std::mem::take(&mut *self.seen())
    }

    fn stop_threads(&mut self) -> std::thread::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).map(JoinHandle::join).fold(Ok(()), Result::and)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.stop_threads();
    }
}

fn lock(seen: &Mutex<Vec<Attempt>>) -> MutexGuard<'_, Vec<Attempt>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects from the namespace of the calling thread. `number` selects the source port.
pub fn try_once(frontend: &'static DemoFrontend, number: u16) -> Attempt {
    let began = Instant::now();
    let answer = match frontend.protocol {
        Protocol::Tcp => request_tcp(frontend.address(), number),
        Protocol::Udp => request_udp(frontend.address(), number),
        Protocol::Sctp => Err(io::ErrorKind::Unsupported.into()),
    };
    let outcome = answer.map_err(|error| error.to_string()).and_then(|text| {
        let endpoint = text.split(' ').next().and_then(|endpoint| endpoint.parse().ok());
        endpoint.ok_or_else(|| format!("not an answer: {text:?}"))
    });
    Attempt { frontend, began, ended: Instant::now(), outcome }
}

fn request_tcp(to: SocketAddr, number: u16) -> io::Result<String> {
    connect_and_read(to, ANSWER_TIMEOUT, |socket| Ok(rustix::net::bind(socket, &fresh_port(number))?))
}

fn request_udp(to: SocketAddr, number: u16) -> io::Result<String> {
    let socket = UdpSocket::bind(fresh_port(number))?;
    socket.connect(to)?;
    socket.send(b"?")?;
    receive(&socket, ANSWER_TIMEOUT)
}

/// A port that was not used recently: a datagram from a port in use belongs to an existing flow, and a TCP connection from
/// one in TIME_WAIT may need a second SYN. The kernel itself would reuse ports within seconds.
fn fresh_port(number: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, 20_000 + number % 40_000).into()
}
