//! Constant load while a test changes things, and a report of the failures in each step.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lab::NODE_PORT;
use crate::namespace::Namespace;
use crate::network::of;
use crate::probe::{Answer, probe_here, receive};
use crate::wait::{TimeoutReader, within};
use model::address::Family;
use model::names::Protocol;

/// An answer that takes longer is lost: the namespaces are on one machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// One client, and how it makes one request.
pub struct Load {
    name: Arc<str>,
    namespace: Namespace,
    /// Between two requests.
    interval: Duration,
    request: Box<dyn FnMut() -> Result<(), String> + Send>,
}

impl Load {
    fn new(
        name: &str,
        namespace: &Namespace,
        request: impl FnMut() -> Result<(), String> + Send + 'static,
    ) -> Self {
        // Leaves a small machine enough CPU time for the proxy.
        let interval = Duration::from_millis(1);
        Self { name: name.into(), namespace: namespace.clone(), interval, request: Box::new(request) }
    }

    /// Makes requests less often. Minutes of new connections need it, or source ports are used again that conntrack still knows.
    #[must_use]
    pub fn with_interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Opens a connection for each request.
    pub fn new_tcp(name: &str, from: &Namespace, to: SocketAddr) -> Self {
        Self::new(name, from, move || by_endpoint(probe_here(None, Protocol::Tcp, to, ANSWER_TIMEOUT)))
    }

    /// Uses a new source port for each request.
    pub fn new_udp(name: &str, from: &Namespace, to: SocketAddr) -> Self {
        Self::new(name, from, move || by_endpoint(probe_here(None, Protocol::Udp, to, ANSWER_TIMEOUT)))
    }

    /// Sends all requests over one connection to an echo server; reconnects after a failure.
    pub fn long_tcp(name: &str, from: &Namespace, to: SocketAddr) -> Self {
        let mut connection: Option<TcpStream> = None;
        Self::new(name, from, move || {
            let echoed = exchange(&mut connection, to);
            if echoed.is_err() {
                connection = None;
            }
            echoed.map_err(|error| error.to_string())
        })
    }

    /// Uses one source port for all requests.
    pub fn long_udp(name: &str, from: &Namespace, to: SocketAddr) -> Self {
        let mut socket: Option<UdpSocket> = None;
        Self::new(name, from, move || request_again(&mut socket, to))
    }
}

/// An answer of the node's own server at the node port is a failure: the proxy did not translate the packet.
fn by_endpoint(answer: Answer) -> Result<(), String> {
    match answer {
        Answer::From { endpoint, .. } if endpoint.port() != NODE_PORT => Ok(()),
        Answer::From { .. } | Answer::Refused | Answer::TimedOut | Answer::LeftNode => {
            Err(format!("{answer:?}"))
        }
    }
}

fn exchange(connection: &mut Option<TcpStream>, to: SocketAddr) -> std::io::Result<()> {
    let stream = match connection {
        Some(stream) => stream,
        none => {
            let stream = TcpStream::connect_timeout(&to, ANSWER_TIMEOUT)?;
            stream.set_nodelay(true)?;
            none.insert(stream)
        }
    };
    stream.write_all(b"8 bytes.")?;
    TimeoutReader(&*stream, ANSWER_TIMEOUT).read_exact(&mut [0; 8])
}

fn request_again(socket: &mut Option<UdpSocket>, to: SocketAddr) -> Result<(), String> {
    let socket = socket.get_or_insert_with(|| {
        let socket = UdpSocket::bind(of(Family::of(to.ip()), ["0.0.0.0:0", "[::]:0"])).unwrap();
        socket.connect(to).unwrap();
        socket
    });
    let answer =
        socket.send(b"?").and_then(|_| receive(socket, ANSWER_TIMEOUT)).map_err(|error| error.to_string())?;
    let node_server = format!(":{NODE_PORT} ");
    if answer.contains(&node_server) { Err(format!("the node's own server: {answer}")) } else { Ok(()) }
}

/// Runs the loads, and records requests, failures and steps.
#[derive(Debug)]
pub struct Hammer {
    is_over: AtomicBool,
    requests: AtomicUsize,
    failures: Mutex<Vec<Failure>>,
    steps: Mutex<Vec<Step>>,
}

#[derive(Debug)]
struct Failure {
    /// When the request began.
    at: Instant,
    load: Arc<str>,
    reason: String,
}

#[derive(Debug)]
struct Step {
    name: String,
    began: Instant,
    ended: Instant,
    requests: usize,
}

/// Sets its flag when dropped, also by a panic, so that a scope does not wait forever for threads that watch the flag.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Hammer {
    /// Runs the loads while `during` runs, after a first step in which nothing changes.
    pub fn run(loads: Vec<Load>, during: impl FnOnce(&Self)) -> HammerReport {
        let hammer = Self {
            is_over: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            failures: Mutex::default(),
            steps: Mutex::default(),
        };
        std::thread::scope(|scope| {
            let _over = SetOnDrop(&hammer.is_over);
            for load in loads {
                let hammer = &hammer;
                scope.spawn(move || hammer.repeat(load));
            }
            hammer.step("nothing changes".to_owned(), || hammer.wait_for_requests());
            during(&hammer);
        });
        HammerReport {
            failures: hammer.failures.into_inner().unwrap(),
            steps: hammer.steps.into_inner().unwrap(),
        }
    }

    fn repeat(&self, mut load: Load) {
        load.namespace.move_in();
        while !self.is_over.load(Ordering::Relaxed) {
            let at = Instant::now();
            if let Err(reason) = (load.request)() {
                self.failures.lock().unwrap().push(Failure { at, load: load.name.clone(), reason });
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(load.interval);
        }
    }

    /// Runs `action` as a step of the report.
    pub fn step(&self, name: String, action: impl FnOnce()) {
        let (began, before) = (Instant::now(), self.requests.load(Ordering::Relaxed));
        action();
        let requests = self.requests.load(Ordering::Relaxed) - before;
        self.steps.lock().unwrap().push(Step { name, began, ended: Instant::now(), requests });
    }

    /// Returns after a thousand more requests.
    pub fn wait_for_requests(&self) {
        let enough = self.requests.load(Ordering::Relaxed) + 1_000;
        within(Duration::from_secs(60), "a thousand requests", || {
            self.requests.load(Ordering::Relaxed) >= enough
        });
    }
}

/// The failures, by step.
#[derive(Debug)]
pub struct HammerReport {
    failures: Vec<Failure>,
    steps: Vec<Step>,
}

impl HammerReport {
    pub fn failures(&self) -> impl Iterator<Item = String> {
        self.failures.iter().map(|failure| format!("{}: {}", failure.load, failure.reason))
    }

    pub fn failures_in(&self, name: &str) -> usize {
        self.steps.iter().filter(|step| step.name == name).flat_map(|step| self.failures_of(step)).count()
    }

    /// Failures of requests that began outside of all steps.
    pub fn failures_between_steps(&self) -> Vec<String> {
        let in_step = |at: &Instant| self.steps.iter().any(|step| (step.began..step.ended).contains(at));
        let between = self.failures.iter().filter(|failure| !in_step(&failure.at));
        between.map(|failure| format!("{}: {}", failure.load, failure.reason)).collect()
    }

    fn failures_of(&self, step: &Step) -> impl Iterator<Item = &Failure> {
        self.failures.iter().filter(|failure| (step.began..step.ended).contains(&failure.at))
    }
}

impl fmt::Display for HammerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<60} {:>8} {:>6} {:>6} {:>15}",
            "step", "requests", "per s", "failed", "last failure at"
        )?;
        for step in &self.steps {
            let rate = step.requests as f64 / (step.ended - step.began).as_secs_f64();
            let failed = self.failures_of(step).count();
            let last = self.failures_of(step).map(|failure| failure.at - step.began).max();
            let outage = last.map(|last| format!("{} ms", last.as_millis())).unwrap_or_default();
            writeln!(f, "{:<60} {:>8} {rate:>6.0} {failed:>6} {outage:>15}", step.name, step.requests)?;
            let mut kinds: BTreeMap<(&str, &str), usize> = BTreeMap::new();
            self.failures_of(step)
                .for_each(|failure| *kinds.entry((&failure.load, &failure.reason)).or_default() += 1);
            for ((load, reason), count) in kinds {
                writeln!(f, "{count:>10} times {load}: {reason}")?;
            }
        }
        Ok(())
    }
}
