//! The whole line for one IP family: hears events, and makes passes that bring the kernel to what they ask for.
//!
//! ```text
//!   Event ─▶ Cluster ─▶ changes ─▶ Backend ─▶ rules
//!                               └▶ Conntrack ─▶ scanner, on a thread of its own
//! ```
//!
//! Each family has a thread of its own that owns everything on the line, so nothing on it needs a lock, and one that
//! fails does not hold up the other.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kernel::conntrack::{Conntrack, Contended, Report};
use kernel::difference::Wanted;
use kernel::nftables::Owners;
use kernel::stranger::Drift;
use model::address::Family;
use model::cluster::{Changes, Cluster, Counts, Here};
use model::event::Event;
use model::local::NodePortAddresses;
use model::names::{NamespacedName, ServicePortName};
use plan::trace::{self, Explanation, HealthCheck};
use settings::duration::Duration as GoDuration;

use crate::backend::{Backend, Change, Pass};
use crate::debug_api::question::{Question, kernel_picks};
use crate::health::node::NodeHealth;
use crate::health::service::ServiceHealth;
use crate::metrics::{Metrics, count, ip_family};
use crate::pace::{Pace, Pause};
use crate::repairs::{Repaired, Repairs};
use crate::threads;

/// Events heard in one go before looking whether a pass is due: a storm must not put it off for ever.
const AT_ONCE: usize = 10_000;

/// How far a source may be ahead of the model before it has to wait: enough to be read in one go.
pub const QUEUE: usize = AT_ONCE;

/// A quiet proxy looks once in a while whether all is well.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// What a family is told.
#[derive(Debug)]
pub enum Message {
    Event(Arc<Event>),
    /// Everything about the node is known: passes may begin.
    Start(Box<Start>),
    /// The kernel may hold something else than we wrote.
    Drifted(Drift),
    /// The rules of other modes are gone.
    Alone,
    /// These are all addresses of the node now.
    Moved(Arc<[IpAddr]>),
    /// Somebody wants to count connections, and to know whose they are.
    Owners(SyncSender<Owners>),
    /// Somebody wants to compare the kernel with what it should hold. No answer before there was a pass.
    Compare(SyncSender<Wanted>),
    /// Somebody wants to know what would happen to a packet.
    Explain(Box<Question>, SyncSender<Result<Explanation, String>>),
}

/// What passes need to know about the node. None of it changes afterwards.
pub struct Start {
    pub node_ip: IpAddr,
    pub backend: Box<dyn Backend>,
    pub conntrack: Conntrack,
    /// All addresses of the node.
    pub addresses: Arc<[IpAddr]>,
    pub node_port_addresses: NodePortAddresses,
    pub tracing: trace::Settings,
    pub pause: Pause,
    /// After a failure.
    pub sync_period: Duration,
    pub health: Arc<NodeHealth>,
    pub service_health: ServiceHealth,
    /// What to do once our rules are in the kernel, and only then: until that moment other rules serve.
    pub take_over: TakeOver,
}

/// Runs on a thread of its own.
pub type TakeOver = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// One family's line.
#[derive(Debug)]
pub struct Line {
    family: Family,
    cluster: Cluster,
    running: Option<Running>,
    metrics: Arc<Metrics>,
    /// Events that the metrics know of.
    counted: Counts,
}

struct Running {
    family: Family,
    backend: Box<dyn Backend>,
    conntrack: Conntrack,
    /// All addresses of the node.
    addresses: Arc<[IpAddr]>,
    tracing: trace::Settings,
    node_port_addresses: NodePortAddresses,
    /// The node's addresses that serve node ports; none where all do.
    node_port_ips: Vec<IpAddr>,
    /// The backend has not heard of them.
    moved: bool,
    /// How to talk to the family.
    kick: SyncSender<Message>,
    /// Somebody listens for strangers.
    listens: bool,
    pace: Pace,
    /// When the backend has something to log that it held back.
    report_due: Option<Instant>,
    sync_period: Duration,
    health: Arc<NodeHealth>,
    service_health: ServiceHealth,
    metrics: Arc<Metrics>,
    /// When changes were triggered that no pass has made good yet.
    unmeasured: Vec<Timestamp>,
    take_over: Option<TakeOver>,
    /// Whether that is done, so that all packets meet our rules.
    is_alone: bool,
    /// Whether the kernel has held what it should.
    has_passed: bool,
    /// Whether it has since the last time we heard of something.
    is_right: bool,
    /// The error that was last logged, and when, as long as syncs fail.
    failure: Option<(Instant, String)>,
    repairs: Repairs,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// Starts the thread that scans for stale flows, and returns what sends it requests.
pub fn scan_flows(family: Family, contended: Contended, metrics: Arc<Metrics>) -> anyhow::Result<Conntrack> {
    let (conntrack, scanner) = Conntrack::new(family, contended);
    // There from the start, so that its absence means something.
    metrics.conntrack_recheck_age.since([ip_family(family)], None);
    let mut failed_before = false;
    let report = move |report| {
        let label = [ip_family(family)];
        match report {
            Report::WaitingSince(since) => metrics.conntrack_recheck_age.since(label, since),
            Report::Scanned { elapsed, deleted, .. } => {
                failed_before = false;
                metrics.conntrack_reconciler_sync_duration.observe(label, elapsed.as_secs_f64());
                metrics.conntrack_reconciler_deleted_entries.add(label, count(deleted));
                let elapsed = GoDuration::from(elapsed);
                tracing::trace!(v = 4, ipFamily = %family, %elapsed, deletedEntries = deleted, "Finished reconciling conntrack entries");
            }
            Report::Failed(error) if !std::mem::replace(&mut failed_before, true) => {
                tracing::error!(ipFamily = %family, err = %error, "Failed to clean up stale conntrack entries");
            }
            Report::Failed(error) => {
                tracing::debug!(v = 2, ipFamily = %family, err = %error, "Failed again to clean up stale conntrack entries");
            }
        }
    };
    threads::spawn(format!("flows-{family}"), move || scanner.run(report))?;
    Ok(conntrack)
}

impl Line {
    /// Starts the family's thread, and returns how to talk to it.
    pub fn spawn(here: Here, metrics: Arc<Metrics>) -> anyhow::Result<SyncSender<Message>> {
        let (sender, inbox) = sync_channel(QUEUE);
        let family = here.family;
        let kick = sender.clone();
        let cluster = Cluster::new(here);
        let line = Self { family, cluster, running: None, metrics, counted: Counts::default() };
        threads::spawn(format!("sync-{family}"), move || line.run(&inbox, &kick))?;
        Ok(sender)
    }

    fn run(mut self, inbox: &Receiver<Message>, kick: &SyncSender<Message>) {
        loop {
            let wait = self.running.as_ref().map_or(Duration::MAX, |running| running.wait(Instant::now()));
            let first = match inbox.recv_timeout(wait.min(Duration::from_secs(3_600))) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            for message in first.into_iter().chain(inbox.try_iter().take(AT_ONCE)) {
                self.hear(message, kick);
            }
            self.count_events();
            self.pass_if_due();
            if let Some(running) = &mut self.running {
                running.report_due = running.backend.report(Instant::now());
            }
        }
    }

    fn hear(&mut self, message: Message, kick: &SyncSender<Message>) {
        match message {
            Message::Event(event) => {
                let was_complete = self.cluster.is_complete();
                for note in self.cluster.apply(&event) {
                    let (field, value) = note.detail.unwrap_or_default();
                    tracing::error!(ipFamily = %self.family, object = note.object, field, value, "{}", note.message);
                }
                // Before that nothing can be done; and then something has to be, be it to find that there is nothing.
                let is_complete = self.cluster.is_complete();
                if is_complete && (self.cluster.has_changes() || !was_complete) {
                    self.ask();
                }
            }
            Message::Start(start) => self.start(*start, kick),
            Message::Drifted(drift) => {
                if let Some(running) = &mut self.running {
                    match drift {
                        Drift::Heard(by) => running.repairs.noticed(by, Instant::now()),
                        Drift::Unheard => running.distrust(),
                    }
                }
            }
            Message::Alone => {
                if let Some(running) = &mut self.running {
                    running.is_alone = true;
                    running.conntrack.recheck_everything(self.cluster.frontends());
                    if running.is_right {
                        running.recheck_flows();
                    }
                }
            }
            Message::Moved(addresses) => {
                if let Some(running) = &mut self.running {
                    running.move_to(&addresses);
                    running.addresses = addresses;
                }
            }
            Message::Owners(answer) => {
                let owners = self.running.as_ref().map(|running| running.backend.owners());
                // Whoever asked may have stopped waiting.
                let _ = answer.try_send(owners.unwrap_or_default());
            }
            Message::Compare(answer) => {
                if let Some(running) = self.running.as_ref().filter(|running| running.has_passed) {
                    let _ = answer.try_send(running.backend.wanted());
                }
            }
            Message::Explain(question, answer) => {
                let _ = answer.try_send(self.explain(&question));
            }
        }
    }

    fn explain(&self, question: &Question) -> Result<Explanation, String> {
        let known = self.running.as_ref().filter(|_| self.cluster.is_complete());
        let running = known.ok_or("the proxy has only just started: ask again in a moment")?;
        let packet = question.packet(&running.addresses, self.cluster.node_ip(), kernel_picks);
        let packet = packet.map_err(|error| error.to_string())?;
        let seats = |name: &ServicePortName| running.backend.seats(name);
        let explained =
            trace::trace_seated(&packet, &running.tracing, &running.addresses, &self.cluster, seats);
        let mut explanation = explained.map_err(|error| error.to_string())?;
        if let Some(check) = &mut explanation.health_check {
            let service = NamespacedName::new(&check.namespace, &check.service);
            *check = HealthCheck::new(&service, check.local_endpoints, running.health.is_healthy());
            check.trouble = running.service_health.trouble(&service).map(Into::into);
        }
        Ok(explanation)
    }

    /// Because of an event: health counts from here.
    fn ask(&mut self) {
        if let Some(running) = &mut self.running {
            running.pace.ask();
            running.health.queued(self.family);
            let family = [ip_family(self.family)];
            self.metrics.sync_proxy_rules_last_queued_timestamp.set_to_time(family, Timestamp::now());
        }
    }

    /// Tells the metrics what was heard. Families share these, so that only what is new may be added.
    fn count_events(&mut self) {
        let (now, before) = (self.cluster.counts(), self.counted);
        let metrics = &self.metrics;
        let services = now.service_changes - before.service_changes;
        let endpoints = now.endpoint_changes - before.endpoint_changes;
        if services > 0 {
            metrics.sync_proxy_rules_service_changes.add([], count(services));
        }
        if endpoints > 0 {
            metrics.sync_proxy_rules_endpoint_changes.add([], count(endpoints));
        }
        if services > 0 || endpoints > 0 {
            self.show_pending();
        }
        self.counted = now;
    }

    fn show_pending(&self) {
        let (services, slices) = self.cluster.pending();
        self.metrics.sync_proxy_rules_service_changes_pending.set([], count(services));
        self.metrics.sync_proxy_rules_endpoint_changes_pending.set([], count(slices));
    }

    fn start(&mut self, start: Start, kick: &SyncSender<Message>) {
        let Start {
            node_ip,
            backend,
            conntrack,
            addresses,
            node_port_addresses,
            tracing,
            pause,
            sync_period,
            health,
            service_health,
            take_over,
        } = start;
        self.cluster.move_to(node_ip);
        let (Pause::Always(min_sync) | Pause::InProportion(min_sync)) = pause;
        tracing::debug!(
            v = 2,
            ipFamily = %self.family,
            minSyncPeriod = %GoDuration::from(min_sync),
            syncPeriod = %GoDuration::from(sync_period),
            maxSyncPeriod = %GoDuration::from(LONGEST_PAUSE),
            "{} sync params", backend.title()
        );
        let mut pace = Pace::new(pause, sync_period, LONGEST_PAUSE, Instant::now());
        pace.ask();
        health.started(self.family);
        let family = [ip_family(self.family)];
        // There from the start, so that an alert sees the first one.
        self.metrics.drift_repairs.add(family, 0.0);
        self.metrics.sync_proxy_rules_last_queued_timestamp.set_to_time(family, Timestamp::now());
        let kick = kick.clone();
        let metrics = self.metrics.clone();
        self.running = Some(Running {
            family: self.family,
            unmeasured: Vec::new(),
            take_over: Some(take_over),
            is_alone: false,
            has_passed: false,
            is_right: false,
            failure: None,
            repairs: Repairs::default(),
            backend,
            conntrack,
            addresses: addresses.clone(),
            tracing,
            node_port_addresses,
            node_port_ips: Vec::new(),
            moved: true,
            kick,
            listens: false,
            pace,
            report_due: None,
            sync_period,
            health,
            service_health,
            metrics,
        });
        if let Some(running) = &mut self.running {
            running.move_to(&addresses);
            running.listen_for_strangers();
        }
    }

    fn pass_if_due(&mut self) {
        let Some(running) = &mut self.running else { return };
        if running.repairs.begin(Instant::now()) {
            running.distrust();
        }
        if !running.pace.wait(Instant::now()).is_zero() {
            return;
        }
        let (family, mode) = (self.family, running.backend.mode());
        running.pace.started(Instant::now());
        if !self.cluster.is_complete() {
            tracing::debug!(v = 2, ipFamily = %family, "Not syncing {mode} until Services and Endpoints have been received from master");
            return;
        }
        tracing::debug!(v = 2, ipFamily = %family, "Syncing {mode} rules");
        // A sync that fails is due from its first attempt, also if no event asked for it. Upstream counts only events.
        running.health.queued(family);
        let changes = self.cluster.take_changes();
        let started = Instant::now();
        let outcome = running.pass(changes, &self.cluster);
        running.pace.ended(Instant::now(), outcome.is_ok());
        running.measure(started.elapsed(), outcome.as_ref().ok().copied());
        match outcome {
            Ok(_) => running.failure = None,
            Err(error) => running.log_failure(&format!("{error:#}"), Instant::now()),
        }
        self.show_pending();
    }
}

impl Running {
    /// How long nothing has to be done, if nobody asks for anything.
    fn wait(&self, now: Instant) -> Duration {
        let due = [self.report_due, self.repairs.due()].into_iter().flatten().min();
        let wait = due.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        self.pace.wait(now).min(wait)
    }

    /// Rules first; what follows from them only if they are right.
    fn pass(&mut self, changes: Changes, cluster: &Cluster) -> anyhow::Result<Pass> {
        self.is_right = false;
        let node_port_ips = std::mem::take(&mut self.moved).then(|| self.node_port_ips.clone());
        let Changes { routings, health_checks, service_cidrs, trigger_times, touches_udp, new_frontends } =
            changes;
        if touches_udp {
            self.conntrack.prepare(&routings);
        }
        self.conntrack.gain(new_frontends);
        self.service_health.hear(health_checks);
        self.unmeasured.extend(trigger_times.into_iter().flat_map(|(_, times)| times));
        let counts = cluster.counts();
        let endpoints = counts.endpoints;
        let pass = self.backend.sync(Change { routings, service_cidrs, endpoints, node_port_ips })?;
        let family = self.family;
        self.tell_repairs(pass, cluster);
        self.tell_latencies();
        self.tell_lack_of_local_endpoints(counts);
        self.health.synced(family);
        self.metrics.sync_proxy_rules_last_timestamp.set_to_time([ip_family(family)], Timestamp::now());
        self.service_health.settle();
        self.recheck_flows();
        self.is_right = true;
        self.has_passed = true;
        if let Some(take_over) = self.take_over.take() {
            let kick = self.kick.clone();
            let take_over = move || {
                take_over();
                // Who is told ends only with the process.
                let _ = kick.send(Message::Alone);
            };
            self.spawn("take-over", Box::new(take_over));
        }
        self.listen_for_strangers();
        Ok(pass)
    }

    /// The same error is logged once per sync period: until the first sync has succeeded, attempts are many.
    fn log_failure(&mut self, error: &str, now: Instant) {
        let is_known = self.failure.as_ref().is_some_and(|(logged, known)| {
            known == error && now.saturating_duration_since(*logged) < self.sync_period
        });
        if is_known {
            return;
        }
        let (family, mode) = (self.family, self.backend.mode());
        tracing::error!(ipFamily = %family, err = error, "{mode} sync failed");
        if let Some(retry) = self.pace.retry() {
            tracing::info!(ipFamily = %family, retryingTime = %GoDuration::from(retry), "Sync failed");
        }
        self.failure = Some((now, error.to_owned()));
    }

    /// The next pass looks at everything.
    fn distrust(&mut self) {
        self.backend.distrust();
        self.pace.ask();
    }

    /// A foreign writer that does no harm is not worth a word.
    fn tell_repairs(&mut self, pass: Pass, cluster: &Cluster) {
        if self.repairs.is_under_way() && pass.full {
            // Until then packets may have gone anywhere, and made flows that still do.
            self.conntrack.recheck_everything(cluster.frontends());
        }
        let Some(repaired) = self.repairs.synced(pass.mended, Instant::now()) else { return };
        self.metrics.drift_repairs.increment([ip_family(self.family)]);
        let family = self.family;
        match repaired {
            Repaired::Once(by) => {
                tracing::warn!(ipFamily = %family, by = by.to_string(), "Repaired rules that another process had changed");
            }
            Repaired::Slowed(by, delay) => {
                let delay = GoDuration::from(delay);
                tracing::warn!(ipFamily = %family, by = by.to_string(), %delay, "Another process keeps changing the rules: repairing them ever more slowly until it stops");
            }
            Repaired::Again => {
                tracing::debug!(v = 2, ipFamily = %family, "Repaired rules again that another process keeps changing");
            }
        }
    }

    /// How long it took from each change in the cluster until now.
    fn tell_latencies(&mut self) {
        let now = Timestamp::now();
        for triggered in self.unmeasured.drain(..) {
            let latency = now.duration_since(triggered).as_secs_f64();
            self.metrics.network_programming_duration.observe([ip_family(self.family)], latency);
        }
    }

    fn tell_lack_of_local_endpoints(&self, counts: Counts) {
        let gauge = &self.metrics.sync_proxy_rules_no_local_endpoints;
        let family = ip_family(self.family);
        gauge.set([family, "internal"], count(counts.internal_without_local));
        gauge.set([family, "external"], count(counts.external_without_local));
    }

    /// How long a pass took; one that failed before it knew its kind counts as full, which the next one will be.
    fn measure(&self, elapsed: Duration, pass: Option<Pass>) {
        let (family, seconds) = ([ip_family(self.family)], elapsed.as_secs_f64());
        self.metrics.sync_proxy_rules_duration.observe(family, seconds);
        match pass {
            Some(Pass { full: false, .. }) => {
                self.metrics.sync_partial_proxy_rules_duration.observe(family, seconds)
            }
            Some(Pass { full: true, .. }) | None => {
                self.metrics.sync_full_proxy_rules_duration.observe(family, seconds)
            }
        }
    }

    /// Addresses of pods' interfaces come and go all the time; a pass is made for those that serve node ports.
    fn move_to(&mut self, addresses: &[IpAddr]) {
        let of_family = addresses.iter().copied().filter(|ip| Family::of(*ip) == self.family);
        if self.node_port_addresses.match_all() {
            self.conntrack.move_to(of_family);
            return;
        }
        let serving = self.node_port_addresses.among(addresses);
        self.conntrack.move_to(serving.iter().copied());
        if serving != self.node_port_ips {
            self.node_port_ips = serving;
            self.moved = true;
            self.pace.ask();
        }
    }

    /// The rules are committed: has flows rechecked where counters don't prove that there are none.
    fn recheck_flows(&mut self) {
        self.conntrack.committed(|destination| self.is_alone && self.backend.is_unused(destination));
    }

    /// From the start, or from when it shows that others can spoil what we write.
    fn listen_for_strangers(&mut self) {
        if self.listens {
            return;
        }
        let Some(watch) = self.backend.watch() else { return };
        self.listens = true;
        let kick = self.kick.clone();
        self.spawn("drift", Box::new(move || watch(&mut |drift| kick.send(Message::Drifted(drift)).is_ok())));
    }

    fn spawn(&self, name: &str, what: Box<dyn FnOnce() + Send>) {
        let family = self.family;
        if let Err(error) = threads::spawn(format!("{name}-{family}"), what) {
            tracing::error!(ipFamily = %family, err = format!("{error:#}"), "Failed to go on");
        }
    }
}
