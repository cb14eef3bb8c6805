//! The steps of the demo, in order. Every step waits for its effect, with a deadline.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::{DemoCluster, DemoFrontend, DemoPod, FRONTENDS, WEB_BY_CLUSTER_IP, WEB_BY_NODE_PORT};
use crate::proxy::DemoProxy;
use crate::report::{EndpointChange, Observations, Update, kernel_counts};
use crate::screen::{Screen, milliseconds};
use crate::traffic::{Load, PER_SECOND, try_once};
use testkit::wait::Deadline;

/// The pauses between steps.
#[derive(Clone, Copy, Debug)]
pub struct Tempo {
    /// Before each edit. By default the proxy leaves a second between two syncs, so it applies a change at once after a
    /// second without changes.
    before_edit: Duration,
    /// After each step.
    after: Duration,
}

impl Tempo {
    pub const CALM: Self =
        Self { before_edit: Duration::from_millis(2_000), after: Duration::from_millis(1_500) };
    pub const QUICK: Self =
        Self { before_edit: Duration::from_millis(1_050), after: Duration::from_millis(100) };
}

/// Generous, for a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the demo ended early.
#[derive(Debug)]
pub enum Stop {
    Interrupted,
    Failed(String),
}

#[derive(Debug)]
pub struct Timeline<'a> {
    cluster: &'a mut DemoCluster,
    tempo: Tempo,
    screen: Screen,
    stopped: &'a AtomicBool,
    proxy: Option<DemoProxy>,
    traffic: Option<Load>,
    began: Instant,
    updates: Vec<Update>,
    /// The kernel's counters before the load began.
    counted_before: Vec<(&'static DemoFrontend, u64)>,
}

impl<'a> Timeline<'a> {
    pub fn new(cluster: &'a mut DemoCluster, tempo: Tempo, screen: Screen, stopped: &'a AtomicBool) -> Self {
        Self {
            cluster,
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

    /// Runs all steps, and returns the running proxy.
    pub fn run(&mut self) -> Result<DemoProxy, Stop> {
        self.start()?;
        self.send_traffic();
        self.scale_up()?;
        self.scale_down()?;
        self.break_a_manifest()?;
        self.replace_the_proxy()?;
        self.pause(self.tempo.after)?;
        Ok(self.proxy.take().expect("the last step started it"))
    }

    /// Ends the load and returns what was observed, also after a failed step.
    pub fn finish(mut self) -> Observations {
        let took = self.began.elapsed();
        let connections = self.traffic.take().map(Load::finish).unwrap_or_default();
        let counted = kernel_counts(self.cluster.node());
        let before = |frontend| {
            self.counted_before.iter().find(|(counted, _)| *counted == frontend).map_or(0, |it| it.1)
        };
        Observations {
            counted: counted
                .into_iter()
                .map(|(frontend, count)| (frontend, count.saturating_sub(before(frontend))))
                .collect(),
            updates: self.updates,
            connections,
            began: self.began,
            took,
        }
    }

    fn start(&mut self) -> Result<(), Stop> {
        let started = self.start_proxy()?;
        // First wait for the rules: TCP retransmits a SYN that is lost only after a second.
        self.wait("the kernel has the rules", |this| {
            (kernel_counts(this.cluster.node()).len() == FRONTENDS.len()).then_some(())
        })?;
        let first = self.cluster.pod(DemoPod::A).enter(|| try_once(&WEB_BY_CLUSTER_IP, 0));
        first.outcome.map_err(|error| Stop::Failed(format!("web does not answer: {error}")))?;
        let (pid, elapsed) = (self.proxy.as_ref().map_or(0, DemoProxy::pid), started.elapsed());
        self.print(&format!("kube-proxy started as process {pid}, serving after {}", milliseconds(elapsed)));
        Ok(())
    }

    fn send_traffic(&mut self) {
        self.counted_before = kernel_counts(self.cluster.node());
        self.traffic = Some(Load::start(self.cluster));
        let total = PER_SECOND * FRONTENDS.len() as u128;
        self.print(&format!("up to {total} new connections per second from now on:"));
        self.detail("client to web's node port, pod-a to the cluster IPs of web and dns");
    }

    fn scale_up(&mut self) -> Result<(), Stop> {
        self.pause(self.tempo.before_edit)?;
        self.print("edit web-endpoints.yaml: web gets pod-b and pod-c");
        let edited = self.cluster.manifests.scale_web(&DemoPod::ALL);
        let b = self.first_answer(DemoPod::B, edited)?;
        let c = self.first_answer(DemoPod::C, edited)?;
        self.detail(&format!("pod-b reached after {}, pod-c after {}", milliseconds(b), milliseconds(c)));
        self.record(DemoPod::B, EndpointChange::Added, b);
        self.record(DemoPod::C, EndpointChange::Added, c);
        Ok(())
    }

    fn scale_down(&mut self) -> Result<(), Stop> {
        self.pause(self.tempo.before_edit)?;
        self.print("edit web-endpoints.yaml: web loses pod-b");
        let edited = self.cluster.manifests.scale_web(&[DemoPod::A, DemoPod::C]);
        let last = self.last_answer(DemoPod::B, edited)?;
        self.detail(&if last.is_zero() {
            "no connection to pod-b after the edit".into()
        } else {
            format!("last connection to pod-b after {}", milliseconds(last))
        });
        self.record(DemoPod::B, EndpointChange::Removed, last);
        self.cluster.stop_web(DemoPod::B);
        self.detail("pod-b is stopped: what still went there would fail now");
        self.pause(self.tempo.after)
    }

    fn break_a_manifest(&mut self) -> Result<(), Stop> {
        self.print("edit web-endpoints.yaml, badly: a bracket is missing");
        let log_so_far = self.cluster.log().len();
        let good = self.cluster.manifests.break_web();
        let error = self.wait("kube-proxy logs the error", |this| {
            let log = this.cluster.log();
            log.get(log_so_far..)?.lines().find(|line| line.contains(" manifest\"")).map(log_error)
        })?;
        self.detail(&format!("kube-proxy: {error}"));
        self.pause(self.tempo.after)?;
        self.cluster.manifests.replace(&good);
        self.detail("traffic went on as before; repaired");
        self.pause(self.tempo.after)
    }

    fn replace_the_proxy(&mut self) -> Result<(), Stop> {
        self.print("kill -9 kube-proxy; meanwhile pod-b is back in web-endpoints.yaml");
        self.proxy = None;
        let killed = Instant::now();
        self.cluster.start_web(DemoPod::B);
        self.cluster.manifests.scale_web(&DemoPod::ALL);
        self.pause(self.tempo.after)?;
        let started = self.start_proxy()?;
        let away = self.between(killed, started);
        self.detail(&format!("{} connections without a proxy, {} failed", away.0, away.1));
        let reached = self.first_answer(DemoPod::B, started)?;
        self.print(&format!("kube-proxy started again, pod-b reached after {}", milliseconds(reached)));
        self.pause(self.tempo.after)
    }
}

/// The error of a log line, without its header.
fn log_error(line: &str) -> String {
    let (_, message) = line.split_once("] ").unwrap_or(("", line));
    let field = message.split_once("err=\"").and_then(|(_, rest)| rest.split_once('"'));
    field.map_or(message, |(err, _)| err).to_owned()
}

impl Timeline<'_> {
    fn print(&self, line: &str) {
        println!("{}", self.screen.line(self.began.elapsed(), line));
    }

    fn detail(&self, line: &str) {
        println!("{}", self.screen.detail(line));
    }

    fn record(&mut self, pod: DemoPod, change: EndpointChange, latency: Duration) {
        self.updates.push(Update { endpoint: pod.web(), change, latency });
    }

    fn start_proxy(&mut self) -> Result<Instant, Stop> {
        let now = Instant::now();
        let proxy = DemoProxy::start(self.cluster)
            .map_err(|error| Stop::Failed(format!("kube-proxy can't be started: {error}")))?;
        self.proxy = Some(proxy);
        Ok(now)
    }

    /// The time from `since` to the first answer of the pod for `web`.
    fn first_answer(&mut self, pod: DemoPod, since: Instant) -> Result<Duration, Stop> {
        let what = format!("a connection reaches {}", pod.name());
        let first = self.wait(&what, |this| this.reached(pod.web(), since).last().copied())?;
        Ok(first - since)
    }

    /// The time from `since` to the last answer of the pod for `web`; zero if there was none.
    fn last_answer(&mut self, pod: DemoPod, since: Instant) -> Result<Duration, Stop> {
        let what = format!("connections to {} end", pod.name());
        self.wait(&what, |this| {
            let last = this.reached(pod.web(), since).first().copied().unwrap_or(since);
            this.is_drained(last).then_some(last - since)
        })
    }

    /// Whether enough connections to `web` began after `since` that one would have reached an endpoint still in use.
    fn is_drained(&self, since: Instant) -> bool {
        let Some(traffic) = &self.traffic else { return true };
        let seen = traffic.seen();
        let attempts = |frontend| {
            seen.iter().rev().filter(|it| it.frontend == frontend).take_while(|it| it.began > since).count()
        };
        [&WEB_BY_NODE_PORT, &WEB_BY_CLUSTER_IP].into_iter().all(|frontend| attempts(frontend) >= 50)
    }

    /// When connections reached this endpoint after `since`, the latest first.
    fn reached(&self, endpoint: SocketAddr, since: Instant) -> Vec<Instant> {
        let Some(traffic) = &self.traffic else { return Vec::new() };
        let seen = traffic.seen();
        let fresh = seen.iter().rev().take_while(|it| it.ended > since);
        fresh.filter(|it| it.reached(endpoint)).map(|it| it.ended).collect()
    }

    /// The number of connections that began between two times, and how many of them failed.
    fn between(&self, from: Instant, to: Instant) -> (usize, usize) {
        let Some(traffic) = &self.traffic else { return (0, 0) };
        let seen = traffic.seen();
        let began = seen.iter().filter(|it| (from..to).contains(&it.began));
        (began.clone().count(), began.filter(|it| it.outcome.is_err()).count())
    }

    fn pause(&mut self, length: Duration) -> Result<(), Stop> {
        let end = Instant::now() + length;
        self.wait("the pause is over", |_| (Instant::now() >= end).then_some(()))
    }

    /// Polls until there is a result. Fails if the proxy ends.
    fn wait<T>(&mut self, what: &str, mut poll: impl FnMut(&Self) -> Option<T>) -> Result<T, Stop> {
        let mut deadline = Deadline::after(STEP_TIMEOUT);
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                return Err(Stop::Interrupted);
            }
            if let Some(status) = self.proxy.as_mut().and_then(DemoProxy::try_wait) {
                return Err(Stop::Failed(format!("kube-proxy ended with {status}")));
            }
            if let Some(found) = poll(self) {
                return Ok(found);
            }
            if deadline.has_passed() {
                return Err(Stop::Failed(format!("waited for {} s until {what}", STEP_TIMEOUT.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
