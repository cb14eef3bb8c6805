//! What happens in the demo, in order. Every step waits for what it is about, with a deadline.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::proxy::Proxy;
use crate::report::{Direction, Facts, Update, counted_by_kernel};
use crate::screen::{Screen, milliseconds};
use crate::stage::{Pod, Stage, WAYS, WEB_BY_CLUSTER_IP, WEB_BY_NODE_PORT, Way};
use crate::traffic::{PER_SECOND, Traffic, try_once};
use testkit::patience::Deadline;

/// How long to watch the traffic.
#[derive(Clone, Copy, Debug)]
pub struct Tempo {
    /// Before each edit: by default the proxy leaves a second between two passes, so a change after a quiet second is
    /// made at once.
    before_edit: Duration,
    /// After a step.
    after: Duration,
}

impl Tempo {
    pub const CALM: Self =
        Self { before_edit: Duration::from_millis(2_000), after: Duration::from_millis(1_500) };
    pub const QUICK: Self =
        Self { before_edit: Duration::from_millis(1_050), after: Duration::from_millis(100) };
}

/// No step needs as long, not even on a machine with other things to do.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why it ended early.
#[derive(Debug)]
pub enum Stop {
    Interrupted,
    Failed(String),
}

#[derive(Debug)]
pub struct Timeline<'a> {
    stage: &'a mut Stage,
    tempo: Tempo,
    screen: Screen,
    stopped: &'a AtomicBool,
    proxy: Option<Proxy>,
    traffic: Option<Traffic>,
    began: Instant,
    updates: Vec<Update>,
    /// What the kernel had counted before the traffic.
    counted_before: Vec<(&'static Way, u64)>,
}

impl<'a> Timeline<'a> {
    pub fn new(stage: &'a mut Stage, tempo: Tempo, screen: Screen, stopped: &'a AtomicBool) -> Self {
        Self {
            stage,
            tempo,
            screen,
            stopped,
            proxy: None,
            traffic: None,
            began: Instant::now(),
            updates: Vec::new(),
            counted_before: Vec::new(),
        }
    }

    /// The whole of it. Returns the proxy as it is running in the end.
    pub fn tell(&mut self) -> Result<Proxy, Stop> {
        self.start()?;
        self.send_traffic();
        self.scale_up()?;
        self.scale_down()?;
        self.break_a_manifest()?;
        self.replace_the_proxy()?;
        self.pause(self.tempo.after)?;
        Ok(self.proxy.take().expect("the last step started it"))
    }

    /// Ends the traffic and returns what there is to report, also if the story broke off.
    pub fn end(mut self) -> Facts {
        let took = self.began.elapsed();
        let connections = self.traffic.take().map(Traffic::finish).unwrap_or_default();
        let counted = counted_by_kernel(self.stage.node());
        let before =
            |way| self.counted_before.iter().find(|(counted, _)| *counted == way).map_or(0, |it| it.1);
        Facts {
            counted: counted
                .into_iter()
                .map(|(way, count)| (way, count.saturating_sub(before(way))))
                .collect(),
            updates: self.updates,
            connections,
            began: self.began,
            took,
        }
    }

    fn start(&mut self) -> Result<(), Stop> {
        let started = self.start_proxy()?;
        // Asking the kernel first: a connection tried too early waits a second before it tries again.
        self.wait("the kernel has rules", |this| {
            (counted_by_kernel(this.stage.node()).len() == WAYS.len()).then_some(())
        })?;
        let first = self.stage.pod(Pod::A).enter(|| try_once(&WEB_BY_CLUSTER_IP, 0));
        first.outcome.map_err(|error| Stop::Failed(format!("web does not answer: {error}")))?;
        let (pid, elapsed) = (self.proxy.as_ref().map_or(0, Proxy::pid), started.elapsed());
        self.say(&format!("kube-proxy started as process {pid}, serving after {}", milliseconds(elapsed)));
        Ok(())
    }

    fn send_traffic(&mut self) {
        self.counted_before = counted_by_kernel(self.stage.node());
        self.traffic = Some(Traffic::start(self.stage));
        let total = PER_SECOND * WAYS.len() as u128;
        self.say(&format!("up to {total} new connections per second from now on:"));
        self.detail("client to web's node port, pod-a to the cluster IPs of web and dns");
    }

    fn scale_up(&mut self) -> Result<(), Stop> {
        self.pause(self.tempo.before_edit)?;
        self.say("edit web-endpoints.yaml: web gets pod-b and pod-c");
        let edited = self.stage.manifests.scale_web(&Pod::ALL);
        let b = self.first(Pod::B, edited)?;
        let c = self.first(Pod::C, edited)?;
        self.detail(&format!("pod-b reached after {}, pod-c after {}", milliseconds(b), milliseconds(c)));
        self.note(Pod::B, Direction::In, b);
        self.note(Pod::C, Direction::In, c);
        Ok(())
    }

    fn scale_down(&mut self) -> Result<(), Stop> {
        self.pause(self.tempo.before_edit)?;
        self.say("edit web-endpoints.yaml: web loses pod-b");
        let edited = self.stage.manifests.scale_web(&[Pod::A, Pod::C]);
        let last = self.last(Pod::B, edited)?;
        self.detail(&if last.is_zero() {
            "no connection to pod-b after the edit".into()
        } else {
            format!("last connection to pod-b after {}", milliseconds(last))
        });
        self.note(Pod::B, Direction::Out, last);
        self.stage.stop_web(Pod::B);
        self.detail("pod-b is stopped: what still went there would fail now");
        self.pause(self.tempo.after)
    }

    fn break_a_manifest(&mut self) -> Result<(), Stop> {
        self.say("edit web-endpoints.yaml, badly: a bracket is missing");
        let log_so_far = self.stage.log().len();
        let good = self.stage.manifests.break_web();
        let complaint = self.wait("kube-proxy complains", |this| {
            let log = this.stage.log();
            log.get(log_so_far..)?.lines().find(|line| line.contains(" manifest\"")).map(complaint)
        })?;
        self.detail(&format!("kube-proxy: {complaint}"));
        self.pause(self.tempo.after)?;
        self.stage.manifests.replace(&good);
        self.detail("traffic went on as before; repaired");
        self.pause(self.tempo.after)
    }

    fn replace_the_proxy(&mut self) -> Result<(), Stop> {
        self.say("kill -9 kube-proxy; meanwhile pod-b is back in web-endpoints.yaml");
        self.proxy = None;
        let killed = Instant::now();
        self.stage.start_web(Pod::B);
        self.stage.manifests.scale_web(&Pod::ALL);
        self.pause(self.tempo.after)?;
        let started = self.start_proxy()?;
        let away = self.between(killed, started);
        self.detail(&format!("{} connections without a proxy, {} failed", away.0, away.1));
        let reached = self.first(Pod::B, started)?;
        self.say(&format!("kube-proxy started again, pod-b reached after {}", milliseconds(reached)));
        self.pause(self.tempo.after)
    }
}

/// What the proxy has to say, without when and where.
fn complaint(line: &str) -> String {
    let (_, said) = line.split_once("] ").unwrap_or(("", line));
    let field = said.split_once("err=\"").and_then(|(_, rest)| rest.split_once('"'));
    field.map_or(said, |(err, _)| err).to_owned()
}

impl Timeline<'_> {
    fn say(&self, line: &str) {
        println!("{}", self.screen.line(self.began.elapsed(), line));
    }

    fn detail(&self, line: &str) {
        println!("{}", self.screen.detail(line));
    }

    fn note(&mut self, pod: Pod, direction: Direction, latency: Duration) {
        self.updates.push(Update { endpoint: pod.web(), direction, latency });
    }

    fn start_proxy(&mut self) -> Result<Instant, Stop> {
        let now = Instant::now();
        let proxy = Proxy::start(self.stage)
            .map_err(|error| Stop::Failed(format!("kube-proxy can't be started: {error}")))?;
        self.proxy = Some(proxy);
        Ok(now)
    }

    /// How long after that the pod first answered for `web`.
    fn first(&mut self, pod: Pod, since: Instant) -> Result<Duration, Stop> {
        let what = format!("a connection reaches {}", pod.name());
        let first = self.wait(&what, |this| this.reached(pod.web(), since).last().copied())?;
        Ok(first - since)
    }

    /// How long after that the pod last answered for `web`: zero if never.
    fn last(&mut self, pod: Pod, since: Instant) -> Result<Duration, Stop> {
        let what = format!("connections to {} cease", pod.name());
        self.wait(&what, |this| {
            let last = this.reached(pod.web(), since).first().copied().unwrap_or(since);
            this.is_without(last).then_some(last - since)
        })
    }

    /// Whether so many have asked for `web` since then that one of them would have got an endpoint that still counts.
    fn is_without(&self, since: Instant) -> bool {
        let Some(traffic) = &self.traffic else { return true };
        let seen = traffic.seen();
        let asked =
            |way| seen.iter().rev().filter(|it| it.way == way).take_while(|it| it.began > since).count();
        [&WEB_BY_NODE_PORT, &WEB_BY_CLUSTER_IP].into_iter().all(|way| asked(way) >= 50)
    }

    /// When connections reached this endpoint since then, the latest first.
    fn reached(&self, endpoint: SocketAddr, since: Instant) -> Vec<Instant> {
        let Some(traffic) = &self.traffic else { return Vec::new() };
        let seen = traffic.seen();
        let fresh = seen.iter().rev().take_while(|it| it.ended > since);
        fresh.filter(|it| it.reached(endpoint)).map(|it| it.ended).collect()
    }

    /// How many connections began in that time, and how many of them failed.
    fn between(&self, from: Instant, to: Instant) -> (usize, usize) {
        let Some(traffic) = &self.traffic else { return (0, 0) };
        let seen = traffic.seen();
        let began = seen.iter().filter(|it| (from..to).contains(&it.began));
        (began.clone().count(), began.filter(|it| it.outcome.is_err()).count())
    }

    fn pause(&mut self, length: Duration) -> Result<(), Stop> {
        let end = Instant::now() + length;
        self.wait("time passes", |_| (Instant::now() >= end).then_some(()))
    }

    /// Looks again and again until there is something. A proxy that ends meanwhile ends the demo.
    fn wait<T>(&mut self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> Result<T, Stop> {
        let mut deadline = Deadline::after(DEADLINE);
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                return Err(Stop::Interrupted);
            }
            if let Some(status) = self.proxy.as_mut().and_then(Proxy::ended) {
                return Err(Stop::Failed(format!("kube-proxy ended with {status}")));
            }
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if deadline.has_passed() {
                return Err(Stop::Failed(format!("waited for {} s until {what}", DEADLINE.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
