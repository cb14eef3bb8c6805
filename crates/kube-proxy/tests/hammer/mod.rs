//! Clients that ask all the time while things happen, and what came of it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use model::address::Family;
use model::names::Protocol;
use testkit::lab::NODE_PORT;
use testkit::namespace::Namespace;
use testkit::network::of;
use testkit::patience::{Deadline, Patient};
use testkit::talk::{Answer, ask_here, hear};

/// Longer than the kernel takes for anything it is going to answer at all.
const PATIENCE: Duration = Duration::from_secs(2);

/// Questions of one kind from one place.
pub struct Load {
    name: &'static str,
    namespace: Namespace,
    ask: Box<dyn FnMut() -> Result<(), String> + Send>,
}

impl Load {
    fn new(
        name: &'static str,
        namespace: &Namespace,
        ask: impl FnMut() -> Result<(), String> + Send + 'static,
    ) -> Self {
        Self { name, namespace: namespace.clone(), ask: Box::new(ask) }
    }

    /// A connection per question.
    pub fn new_tcp(name: &'static str, from: &Namespace, to: SocketAddr) -> Self {
        Self::new(name, from, move || by_an_endpoint(ask_here(None, Protocol::Tcp, to, PATIENCE)))
    }

    /// A port per question.
    pub fn new_udp(name: &'static str, from: &Namespace, to: SocketAddr) -> Self {
        Self::new(name, from, move || by_an_endpoint(ask_here(None, Protocol::Udp, to, PATIENCE)))
    }

    /// One connection for as long as it holds, to a server that says everything back.
    pub fn long_tcp(name: &'static str, from: &Namespace, to: SocketAddr) -> Self {
        let mut held: Option<TcpStream> = None;
        Self::new(name, from, move || {
            let said = say(&mut held, to);
            if said.is_err() {
                held = None;
            }
            said.map_err(|error| error.to_string())
        })
    }

    /// The same port for every question.
    pub fn long_udp(name: &'static str, from: &Namespace, to: SocketAddr) -> Self {
        let mut held: Option<UdpSocket> = None;
        Self::new(name, from, move || ask_again(&mut held, to))
    }
}

/// At the node port the node has a server of its own, which nobody wants to meet.
fn by_an_endpoint(answer: Answer) -> Result<(), String> {
    match answer {
        Answer::From { endpoint, .. } if endpoint.port() != NODE_PORT => Ok(()),
        Answer::From { .. } | Answer::Refused | Answer::Silence | Answer::Strayed => {
            Err(format!("{answer:?}"))
        }
    }
}

fn say(held: &mut Option<TcpStream>, to: SocketAddr) -> std::io::Result<()> {
    let stream = match held {
        Some(stream) => stream,
        none => {
            let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.set_nodelay(true)?;
            none.insert(stream)
        }
    };
    stream.write_all(b"8 bytes.")?;
    Patient(&*stream, PATIENCE).read_exact(&mut [0; 8])
}

fn ask_again(held: &mut Option<UdpSocket>, to: SocketAddr) -> Result<(), String> {
    let socket = held.get_or_insert_with(|| {
        let socket = UdpSocket::bind(of(Family::of(to.ip()), ["0.0.0.0:0", "[::]:0"])).unwrap();
        socket.connect(to).unwrap();
        socket
    });
    let answer = socket.send(b"?").and_then(|_| hear(socket, PATIENCE)).map_err(|error| error.to_string())?;
    let own = format!(":{NODE_PORT} ");
    if answer.contains(&own) { Err(format!("the node's own server: {answer}")) } else { Ok(()) }
}

/// What happens to the clients.
#[derive(Debug)]
pub struct Hammer {
    over: AtomicBool,
    asked: AtomicUsize,
    failed: Mutex<Vec<Failure>>,
    steps: Mutex<Vec<Step>>,
}

#[derive(Debug)]
struct Failure {
    /// When the question was asked.
    at: Instant,
    load: &'static str,
    why: String,
}

#[derive(Debug)]
struct Step {
    name: String,
    began: Instant,
    ended: Instant,
    asked: usize,
}

/// Says that it is over when dropped, also by a failure: nobody shall wait for the others for ever.
struct Over<'a>(&'a Hammer);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Hammer {
    /// Puts on the load for as long as `during` takes.
    pub fn swing(loads: Vec<Load>, during: impl FnOnce(&Self)) -> Report {
        let hammer = Self {
            over: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            failed: Mutex::default(),
            steps: Mutex::default(),
        };
        std::thread::scope(|scope| {
            let _over = Over(&hammer);
            for load in loads {
                let hammer = &hammer;
                scope.spawn(move || hammer.run(load));
            }
            hammer.step("nothing happens".to_owned(), || hammer.let_ask());
            during(&hammer);
        });
        Report { failed: hammer.failed.into_inner().unwrap(), steps: hammer.steps.into_inner().unwrap() }
    }

    fn run(&self, mut load: Load) {
        load.namespace.move_in();
        while !self.over.load(Ordering::Relaxed) {
            let at = Instant::now();
            if let Err(why) = (load.ask)() {
                self.failed.lock().unwrap().push(Failure { at, load: load.name, why });
            }
            self.asked.fetch_add(1, Ordering::Relaxed);
            // Thousands of questions a second leave a small machine enough time for whoever is put to the test.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Something happens.
    pub fn step(&self, name: String, what: impl FnOnce()) {
        let (began, asked) = (Instant::now(), self.asked.load(Ordering::Relaxed));
        what();
        let asked = self.asked.load(Ordering::Relaxed) - asked;
        self.steps.lock().unwrap().push(Step { name, began, ended: Instant::now(), asked });
    }

    /// Gives every client time for many questions.
    pub fn let_ask(&self) {
        let enough = self.asked.load(Ordering::Relaxed) + 1_000;
        let mut deadline = Deadline::after(Duration::from_secs(60));
        while self.asked.load(Ordering::Relaxed) < enough {
            assert!(!deadline.has_passed(), "clients do not get to ask");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What came of it, step by step.
#[derive(Debug)]
pub struct Report {
    failed: Vec<Failure>,
    steps: Vec<Step>,
}

impl Report {
    pub fn failures(&self) -> impl Iterator<Item = String> {
        self.failed.iter().map(|failure| format!("{}: {}", failure.load, failure.why))
    }

    pub fn failures_in(&self, name: &str) -> usize {
        self.steps.iter().filter(|step| step.name == name).flat_map(|step| self.of(step)).count()
    }

    /// Those that came when nothing was done any more.
    pub fn failures_in_between(&self) -> Vec<String> {
        let in_step = |at: &Instant| self.steps.iter().any(|step| (step.began..step.ended).contains(at));
        let between = self.failed.iter().filter(|failure| !in_step(&failure.at));
        between.map(|failure| format!("{}: {}", failure.load, failure.why)).collect()
    }

    fn of(&self, step: &Step) -> impl Iterator<Item = &Failure> {
        self.failed.iter().filter(|failure| (step.began..step.ended).contains(&failure.at))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<60} {:>7} {:>6} {:>6} {:>15}",
            "step", "asked", "per s", "failed", "served again in"
        )?;
        for step in &self.steps {
            let rate = step.asked as f64 / (step.ended - step.began).as_secs_f64();
            let failed = self.of(step).count();
            let last = self.of(step).map(|failure| failure.at - step.began).max();
            let outage = last.map(|last| format!("{} ms", last.as_millis())).unwrap_or_default();
            writeln!(f, "{:<60} {:>7} {rate:>6.0} {failed:>6} {outage:>15}", step.name, step.asked)?;
            let mut kinds: BTreeMap<(&str, &str), usize> = BTreeMap::new();
            self.of(step).for_each(|failure| *kinds.entry((failure.load, &failure.why)).or_default() += 1);
            for ((load, why), count) in kinds {
                writeln!(f, "{count:>10} times {load}: {why}")?;
            }
        }
        Ok(())
    }
}
