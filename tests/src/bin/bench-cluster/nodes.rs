//! Many nodes with one API server: what it costs to start all kube-proxies at the same time, what one change costs, and when
//! the last node has it. `make bench-nodes` runs it with our kube-proxy and with upstream's.
//!
//! ```text
//!   etcd, API server ── lan0 ─┬── node-0: kube-proxy, observer
//!                             ├── node-1: kube-proxy, observer
//! ```
//!
//! A node is a network namespace that has the addresses of all endpoints. Its observer is a thread that connects to one
//! Service: repeatedly until that is served, then after each commit to the ruleset. So both proxies are measured alike, by what
//! happens to a packet.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::address::Family;
use netlink::nftables::{Monitor, Notification};
use serde_json::json;
use testkit::lab::{Place, TARGET};
use testkit::namespace::Namespace;
use testkit::process::Process;
use testkit::wait::{Deadline, eventually, within};
use tests::cluster::control_plane::components;
use tests::cluster::objects;
use tests::cluster::proxy::{Mode, flags};
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

use crate::encodings::api_server;
use crate::figures::FigureLog;
use crate::memory::{available, cpu_time, pss, status};
use crate::population::{name, populate_with_tcp, slice_at};

/// The endpoints of all Services. Each change moves those of one Service to the other list.
const ENDPOINTS: [[Place; 5]; 2] = [
    [Place::Remote(5), Place::Remote(6), Place::Remote(7), Place::Remote(8), Place::Remote(9)],
    [Place::Remote(15), Place::Remote(16), Place::Remote(17), Place::Remote(18), Place::Remote(19)],
];
/// Changes one by one, of which every node has each before the next.
const CHANGES: usize = 10;
/// Longer than any proxy's minimum interval between syncs.
const PAUSE: Duration = Duration::from_secs(3);
/// Changes in a row, for the API server's share of one, which is small compared with what it does without changes.
const BURST: u32 = 200;
const BURST_INTERVAL: Duration = Duration::from_millis(50);
/// Longer than the interval between two of upstream's periodic syncs.
const IDLE_WINDOW: Duration = Duration::from_secs(40);
/// How often an observer connects until its node serves.
const CONNECT_INTERVAL: Duration = Duration::from_millis(200);
/// Upstream needs minutes if hundreds share two cores.
const TIMEOUT: Duration = Duration::from_secs(1_800);
/// Gives up rather than that the kernel kills processes of others.
const MIN_AVAILABLE_MIB: f64 = 1_500.0;

/// Measures `count` kube-proxies: upstream's if that is the name, ours otherwise.
pub fn measure(cluster: &mut TestCluster, proxy_name: &str, count: usize, services: usize) {
    let mut figures = FigureLog::of(&format!("nodes-{count}-{proxy_name}"), services, ENDPOINTS[0].len());
    let upstream = components().join("kube-proxy");
    let binary = if proxy_name == "upstream" { upstream } else { cluster.kube_proxy().into() };
    populate_with_tcp(cluster, services, &ENDPOINTS[0]);
    let mut nodes = Nodes::new(cluster, count, &name(services - 1));

    let idle = nodes.idle();
    let before = nodes.usage();
    let started = Instant::now();
    nodes.start(&binary);
    let served = nodes.wait_until_reached(&ENDPOINTS[0]);
    figures.record("served_p50_s", (served[count / 2] - started).as_secs_f64());
    figures.record("served_last_s", (served[count - 1] - started).as_secs_f64());
    nodes.wait_until_idle();
    let start = nodes.usage().since(&before).without(&idle);
    figures.record("start_api_server_cpu_s", start.api_server);
    figures.record("start_sent_mib", start.sent / f64::from(1 << 20));
    figures.record("start_proxy_cpu_s", start.proxies);
    let idle = nodes.idle();
    figures.record("idle_api_server_cpu_ms_per_s", idle.api_server * 1e3 / idle.elapsed);
    figures.record("idle_proxy_cpu_ms_per_s", idle.proxies * 1e3 / idle.elapsed);
    figures.record("idle_sent_kib_per_s", idle.sent / 1024.0 / idle.elapsed);
    nodes.record_memory(&mut figures, "started");

    let before = nodes.usage();
    let (mut all, mut last) = (Vec::new(), Vec::new());
    for change in 1..=CHANGES {
        std::thread::sleep(PAUSE);
        let written = Instant::now();
        let places = nodes.change(change);
        let times: Vec<Duration> = nodes.wait_until_reached(places).iter().map(|at| *at - written).collect();
        last.push(times[count - 1]);
        all.extend(times);
    }
    nodes.wait_until_idle();
    let changes = nodes.usage().since(&before).without(&idle);
    figures.record("change_proxy_cpu_ms", changes.proxies * 1e3 / CHANGES as f64);
    all.sort();
    last.sort();
    figures.record("change_p50_ms", all[all.len() / 2].as_secs_f64() * 1e3);
    figures.record("change_last_node_p50_ms", last[CHANGES / 2].as_secs_f64() * 1e3);
    figures.record("change_last_node_max_ms", last[CHANGES - 1].as_secs_f64() * 1e3);
    nodes.record_memory(&mut figures, "changed");

    let burst = nodes.burst(CHANGES + 1).without(&idle);
    figures.record("change_api_server_cpu_ms", burst.api_server * 1e3 / f64::from(BURST));
    figures.record("change_sent_kib", burst.sent / 1024.0 / f64::from(BURST));
}

struct Nodes<'a> {
    cluster: &'a mut TestCluster,
    namespaces: Vec<Namespace>,
    observers: Vec<JoinHandle<()>>,
    proxies: Vec<Process>,
    api_server: u32,
    created: Instant,
    /// The Service that observers connect to and that changes.
    service: String,
    reached: Receiver<Reached>,
}

/// What an observer saw.
struct Reached {
    node: usize,
    at: Instant,
    endpoint: IpAddr,
}

impl<'a> Nodes<'a> {
    /// Without proxies yet.
    fn new(cluster: &'a mut TestCluster, count: usize, service: &str) -> Self {
        // The kernel limits the IPv6 neighbours of all namespaces together.
        cluster.control_plane().namespace.sysctl("ipv6/conf/default/disable_ipv6", "1");
        let address = cluster_ip(&cluster.api().get(&cluster.service(service)), Family::V4);
        let (send, reached) = channel();
        let (namespaces, observers) = (0..count)
            .map(|number| {
                let (namespace, ip) = join(cluster);
                let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": ip}]}});
                cluster
                    .api()
                    .create("/api/v1/nodes", &objects::with(objects::node(&node_name(number)), status));
                let (inside, send) = (namespace.clone(), send.clone());
                let observer = std::thread::spawn(move || observe(&inside, number, address, &send));
                (namespace, observer)
            })
            .unzip();
        Self {
            api_server: api_server(&cluster.control_plane().folder),
            cluster,
            namespaces,
            observers,
            proxies: Vec::new(),
            created: Instant::now(),
            service: service.to_owned(),
            reached,
        }
    }

    /// Starts all proxies. They leave the API server and the observers precedence, which run on machines of their own in a real
    /// cluster.
    fn start(&mut self, binary: &Path) {
        let control_plane = self.cluster.control_plane();
        let kubeconfig = self.cluster.kubeconfig(control_plane.address(), &self.cluster.proxy_user());
        for (number, namespace) in self.namespaces.iter().enumerate() {
            let node = node_name(number);
            let mut command: Vec<String> = ["-n", "10"].map(Into::into).into();
            command.push(binary.display().to_string());
            command.extend(flags(Mode::Nftables, &node, &kubeconfig));
            let log = self.cluster.folder().join(format!("{node}.log"));
            self.proxies.push(Process::start(namespace, Path::new("nice"), &command, &log));
        }
    }

    /// Waits until a connection from each node has reached one of `places`, and returns when, in ascending order.
    fn wait_until_reached(&mut self, places: &[Place]) -> Vec<Instant> {
        let mut times = HashMap::new();
        let mut deadline = Deadline::after(TIMEOUT);
        while times.len() < self.namespaces.len() {
            match self.reached.recv_timeout(Duration::from_secs(1)) {
                Ok(Reached { node, at, endpoint }) => {
                    if places.iter().any(|place| place.ip(Family::V4) == endpoint) {
                        times.entry(node).or_insert(at);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    assert!(!deadline.has_passed(), "{} nodes of {}", times.len(), self.namespaces.len());
                    self.check();
                }
                Err(RecvTimeoutError::Disconnected) => panic!("all observers have ended"),
            }
        }
        let mut times: Vec<_> = times.into_values().collect();
        times.sort();
        times
    }

    fn check(&mut self) {
        assert!(!self.observers.iter().any(JoinHandle::is_finished), "an observer ended, see above");
        for proxy in &mut self.proxies {
            assert!(proxy.try_wait().is_none(), "a kube-proxy ended:\n{}", proxy.log_tail());
        }
        assert!(available() > MIN_AVAILABLE_MIB, "only {:.0} MiB of memory are left", available());
    }

    /// Moves the endpoints of the Service, and returns where to.
    fn change(&self, number: usize) -> &'static [Place] {
        let places = &ENDPOINTS[number % 2];
        let path = self.cluster.slice(&self.service, Family::V4);
        self.cluster.api().replace(&path, &slice_at(&self.service, places));
        places
    }

    /// What many changes in a row use.
    fn burst(&mut self, first: usize) -> Usage {
        // Ends the observers.
        self.reached = channel().1;
        let before = self.usage();
        let mut next = Instant::now();
        for number in 0..BURST {
            self.change(first + number as usize);
            next += BURST_INTERVAL;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        std::thread::sleep(PAUSE);
        self.usage().since(&before)
    }

    /// Returns after a few seconds in which the proxies used little more than when idle.
    fn wait_until_idle(&self) {
        let few = 0.005 * self.proxies.len() as f64;
        within(TIMEOUT, "all kube-proxies are idle", || {
            let before = self.usage();
            std::thread::sleep(PAUSE);
            let used = self.usage().since(&before);
            used.proxies < few * used.elapsed
        });
    }

    /// What is used while nothing changes.
    fn idle(&self) -> Usage {
        let before = self.usage();
        std::thread::sleep(IDLE_WINDOW);
        self.usage().since(&before)
    }

    fn usage(&self) -> Usage {
        Usage {
            elapsed: self.created.elapsed().as_secs_f64(),
            api_server: cpu_time(self.api_server).as_secs_f64(),
            proxies: self.proxies.iter().map(|proxy| cpu_time(proxy.pid()).as_secs_f64()).sum(),
            sent: self.sent(),
        }
    }

    /// The bytes that the control plane has sent to nodes, with TLS and headers. Our own client uses another interface.
    fn sent(&self) -> f64 {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let devices = self.cluster.control_plane().namespace.enter(read);
        let line = devices.lines().find_map(|line| line.trim_start().strip_prefix("lan0:"));
        line.and_then(|line| line.split_whitespace().nth(8)).unwrap().parse().unwrap()
    }

    fn record_memory(&self, figures: &mut FigureLog, when: &str) {
        let sum = |of: fn(u32) -> f64| self.proxies.iter().map(|proxy| of(proxy.pid())).sum();
        figures.record(&format!("proxies_rss_{when}_mib"), sum(|process| status(process, "VmRSS:")));
        figures.record(&format!("proxies_pss_{when}_mib"), sum(pss));
        figures.record(&format!("api_server_rss_{when}_mib"), status(self.api_server, "VmRSS:"));
    }
}

/// Seconds, processor time in seconds, and bytes; either totals or their difference.
struct Usage {
    elapsed: f64,
    api_server: f64,
    /// Of all proxies, with the commands that they have run.
    proxies: f64,
    sent: f64,
}

impl Usage {
    fn since(&self, before: &Self) -> Self {
        Self {
            elapsed: self.elapsed - before.elapsed,
            api_server: self.api_server - before.api_server,
            proxies: self.proxies - before.proxies,
            sent: self.sent - before.sent,
        }
    }

    /// Subtracts what would have been used in the same time without any change.
    fn without(&self, idle: &Self) -> Self {
        let share = self.elapsed / idle.elapsed;
        Self {
            elapsed: self.elapsed,
            api_server: self.api_server - idle.api_server * share,
            proxies: self.proxies - idle.proxies * share,
            sent: self.sent - idle.sent * share,
        }
    }
}

fn node_name(number: usize) -> String {
    format!("node-{number}")
}

/// A fresh node and its address on the network of the control plane.
fn join(cluster: &mut TestCluster) -> (Namespace, IpAddr) {
    let namespace = Namespace::new();
    namespace.sysctl("ipv6/conf/default/disable_ipv6", "1");
    let ip = cluster.control_plane_mut().join(&namespace);
    namespace.ip_all(&[
        "route add local 10.244.1.0/24 dev lo".into(),
        // The kernel drops packets to Services that are not translated.
        format!("route add 10.96.0.0/16 dev lo src {ip}"),
    ]);
    (namespace, ip)
}

/// Sends which endpoint of `service` this node reaches: once it reaches one, and after each commit from then on. Ends with the
/// receiver.
fn observe(namespace: &Namespace, node: usize, service: SocketAddr, send: &Sender<Reached>) {
    namespace.move_in();
    let endpoint = loop {
        let next = Instant::now() + CONNECT_INTERVAL;
        match reach(service, CONNECT_INTERVAL) {
            Some(endpoint) => break endpoint,
            None => std::thread::sleep(next.saturating_duration_since(Instant::now())),
        }
    };
    let mut has_receiver = send.send(Reached { node, at: Instant::now(), endpoint }).is_ok();
    let mut monitor = Monitor::open().unwrap();
    while has_receiver {
        let mut committed = None;
        let see = |event: Notification<'_>| {
            if matches!(event, Notification::Committed { .. } | Notification::Lost) {
                committed = Some(Instant::now());
            }
        };
        monitor.receive_within(TIMEOUT, see).unwrap();
        if let Some((at, endpoint)) = committed.zip(reach(service, TIMEOUT)) {
            has_receiver = send.send(Reached { node, at, endpoint }).is_ok();
        }
    }
}

/// The endpoint that a connection from this namespace reaches, if any. Every endpoint is an address of this namespace.
fn reach(service: SocketAddr, timeout: Duration) -> Option<IpAddr> {
    let mut listener = None;
    // A process that this one is starting has the previous listener, too, until it executes its program.
    eventually("the port is free", || {
        listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, TARGET)).ok();
        listener.is_some()
    });
    let _client = TcpStream::connect_timeout(&service, timeout).ok()?;
    let (server, _) = listener?.accept().unwrap();
    Some(server.local_addr().unwrap().ip())
}
