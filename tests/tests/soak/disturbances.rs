//! Disturbances of kube-proxy, its rules and its API server, one after the other, while clients and changes continue.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use model::address::Family;
use testkit::lab::{Place, TARGET};
use testkit::network::of;
use testkit::wait::within;
use tests::cluster::control_plane::ADDRESS;
use tests::cluster::etcd;
use tests::cluster::proxy::{Mode, Proxy, flags};
use tests::cluster::relay::Relay;
use tests::cluster::test_cluster::TestCluster;

use crate::clients::Failure;
use crate::random::SeededRandom;

/// The port of the relay between kube-proxy and the API server.
pub const RELAY_PORT: u16 = 7443;
/// Longer than kube-proxy's longest back-off between attempts to reach the API server.
const SYNC_TIMEOUT: Duration = Duration::from_secs(240);
const REPAIR_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Kill,
    Terminate,
    KillWhileApiServerIsAway,
    RestartApiServer,
    RestartApiServerWithoutHistory,
    RestartEtcd,
    CutConnections,
    Flush,
}

#[derive(Debug)]
struct Disturbance {
    kind: Kind,
    began: Instant,
    ended: Instant,
}

/// Whether kube-proxy itself is killed, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kills {
    Included,
    Excluded,
}

#[derive(Debug)]
pub struct Disturbances {
    mode: Mode,
    namespace: String,
    /// Between kube-proxy and the API server.
    relay: Relay,
    kubeconfig: PathBuf,
    proxy: Option<Proxy>,
    random: SeededRandom,
    history: Vec<Disturbance>,
    /// The times from a flush until the repair. Empty in nftables mode.
    unprotected: Vec<(Instant, Instant)>,
    /// The number of changes by other programs that the kernel refused.
    refused: usize,
}

impl Disturbances {
    pub fn new(cluster: &TestCluster, mode: Mode, seed: u64) -> Self {
        let at = SocketAddr::new(ADDRESS.parse().unwrap(), RELAY_PORT);
        let relay = Relay::start(&cluster.control_plane().namespace, at, cluster.control_plane().address());
        Self {
            mode,
            namespace: cluster.namespace().to_owned(),
            relay,
            kubeconfig: cluster.kubeconfig(at, &cluster.proxy_user()),
            proxy: None,
            // A sequence that differs from the churn's.
            random: SeededRandom::new(!seed),
            history: Vec::new(),
            unprotected: Vec::new(),
            refused: 0,
        }
    }

    /// Starts kube-proxy, and returns when it has synced both families.
    pub fn start_proxy(&mut self, cluster: &TestCluster) {
        let written = self.spawn_proxy(cluster);
        self.wait_for_sync(written);
    }

    /// Returns the length of the log before the start.
    fn spawn_proxy(&mut self, cluster: &TestCluster) -> usize {
        let written = std::fs::metadata(cluster.log()).map_or(0, |log| usize::try_from(log.len()).unwrap());
        self.proxy = Some(cluster.proxy_as(self.mode, &self.kubeconfig, &[]));
        written
    }

    fn wait_for_sync(&mut self, written: usize) {
        let proxy = self.proxy.as_mut().unwrap();
        within(SYNC_TIMEOUT, "the first sync", || {
            assert!(proxy.is_running(), "kube-proxy ended:\n{}", proxy.log());
            let log = proxy.log();
            let syncs = log[written..].lines().filter(|line| line.contains("SyncProxyRules complete"));
            ["IPv4", "IPv6"].iter().all(|family| syncs.clone().any(|line| line.contains(family)))
        });
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    /// Runs until the given time. With kills, every disturbance happens at least once.
    pub fn run(&mut self, cluster: &mut TestCluster, until: Instant, kills: Kills) {
        let mut kinds = vec![
            Kind::RestartApiServer,
            Kind::RestartApiServerWithoutHistory,
            Kind::RestartEtcd,
            Kind::CutConnections,
            Kind::Flush,
            Kind::Flush,
        ];
        if kills == Kills::Included {
            kinds.extend([Kind::Kill, Kind::Kill, Kind::Terminate, Kind::KillWhileApiServerIsAway]);
        }
        let mut is_incomplete = kills == Kills::Included;
        while is_incomplete || Instant::now() < until {
            self.random.shuffle(&mut kinds);
            for kind in &kinds {
                if !is_incomplete && Instant::now() >= until {
                    return;
                }
                assert!(self.proxy.as_mut().unwrap().is_running(), "kube-proxy ended before {kind:?}");
                let began = Instant::now();
                self.disturb(cluster, *kind);
                self.history.push(Disturbance { kind: *kind, began, ended: Instant::now() });
                self.pause();
            }
            is_incomplete = false;
        }
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_millis(self.random.below(2_000) as u64));
    }

    fn disturb(&mut self, cluster: &mut TestCluster, kind: Kind) {
        match kind {
            Kind::Kill => {
                // Dropping the proxy sends SIGKILL.
                self.proxy = None;
                self.pause();
                self.start_proxy(cluster);
            }
            Kind::Terminate => {
                let proxy = self.proxy.as_mut().unwrap();
                proxy.terminate();
                proxy.wait();
                self.start_proxy(cluster);
            }
            Kind::KillWhileApiServerIsAway => {
                cluster.control_plane_mut().stop_api_server();
                self.proxy = None;
                let written = self.spawn_proxy(cluster);
                self.pause();
                cluster.control_plane_mut().start_api_server();
                self.wait_for_sync(written);
            }
            Kind::RestartApiServer => {
                cluster.control_plane_mut().stop_api_server();
                self.pause();
                cluster.control_plane_mut().start_api_server();
            }
            Kind::RestartApiServerWithoutHistory => {
                self.relay.close();
                self.pause();
                etcd::compact(&cluster.control_plane().namespace);
                cluster.control_plane_mut().stop_api_server();
                cluster.control_plane_mut().start_api_server();
                self.relay.reopen();
            }
            Kind::RestartEtcd => cluster.control_plane_mut().restart_etcd(),
            Kind::CutConnections => self.relay.cut(),
            Kind::Flush => self.flush(cluster),
        }
    }

    /// Flushes the rules as firewall scripts do.
    fn flush(&mut self, cluster: &TestCluster) {
        let node = &cluster.lab.network.node;
        let run = |command: &str| {
            let mut words = command.split(' ');
            node.enter(|| Command::new(words.next().unwrap()).args(words).output()).unwrap().status.success()
        };
        match self.mode {
            Mode::Nftables => {
                assert!(run("nft flush ruleset"));
                for family in ["ip", "ip6"] {
                    for attack in ["delete table FAMILY kube-proxy", "flush chain FAMILY kube-proxy services"]
                    {
                        let command = format!("nft {}", attack.replace("FAMILY", family));
                        assert!(!run(&command), "the kernel let another program do this: {command}");
                        self.refused += 1;
                    }
                }
            }
            Mode::Ipvs => panic!("no soak test runs in this mode"),
            Mode::Iptables => {
                let commands: &[&str] = self.random.one_of(&[
                    &["nft flush ruleset"] as &[&str],
                    &["iptables -t nat -F", "ip6tables -t nat -F"],
                    &["iptables -F", "iptables -t nat -F", "iptables -t nat -X"],
                    &["ip6tables -F", "ip6tables -t nat -F", "ip6tables -t nat -X"],
                ]);
                let began = Instant::now();
                for command in commands {
                    // Deleting chains fails if they are in use again already.
                    run(command);
                }
                within(REPAIR_TIMEOUT, "the repair of the rules", || self.rules_are_back(cluster));
                self.unprotected.push((began, Instant::now()));
            }
        }
    }

    /// A sync writes the nat table in one transaction: if one rule of each kind is there, so are the others.
    fn rules_are_back(&self, cluster: &TestCluster) -> bool {
        Family::BOTH.into_iter().all(|family| {
            let program = of(family, ["iptables-save", "ip6tables-save"]);
            let rules = cluster.lab.network.node.run(&format!("{program} -t nat"));
            let endpoint = SocketAddr::new(Place::PodA.ip(family), TARGET);
            let jumps = ["-A PREROUTING ", "-A OUTPUT ", "-A POSTROUTING "]
                .into_iter()
                .all(|chain| rules.lines().any(|rule| rule.starts_with(chain) && rule.contains("-j KUBE-")));
            let has =
                |words: [&str; 2]| rules.lines().any(|rule| words.iter().all(|word| rule.contains(word)));
            jumps
                && ["web:tcp", "web:udp", "sticky:tcp", "sticky:udp"].into_iter().all(|port| {
                    let port = format!("{}/{port}", self.namespace);
                    has([&format!("{port} cluster IP"), "-j KUBE-SVC-"])
                        && has([&format!("{port} -> {endpoint}"), "-j KUBE-SEP-"])
                        && has([&port, &format!("--to-destination {endpoint}")])
                })
        })
    }

    /// Whether the attempt overlapped a time without rules, which kube-proxy cannot prevent.
    pub fn excuses(&self, failure: &Failure) -> bool {
        self.unprotected.iter().any(|(began, ended)| failure.began < *ended && failure.ended > *began)
    }

    /// The last disturbance before the failed attempt.
    pub fn last_before(&self, failure: &Failure) -> String {
        let last = self.history.iter().rfind(|disturbance| disturbance.began <= failure.began);
        let Some(Disturbance { kind, began, ended }) = last else { return "before any disturbance".into() };
        let [after, took] = [failure.began - *began, *ended - *began].map(|time| time.as_secs_f64());
        format!("{after:.3} s after {kind:?}, which took {took:.3} s")
    }

    /// The differences that `kube-proxy verify` finds.
    pub fn verify(&self, cluster: &TestCluster) -> Option<String> {
        let mut command = Command::new(cluster.kube_proxy());
        command.arg("verify").args(flags(self.mode, &cluster.node, &self.kubeconfig)).arg("--v=0");
        let output = cluster.lab.network.node.enter(|| command.output()).unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let is_clean = output.status.success() && printed.matches("kernel and plan agree").count() == 2;
        (!is_clean)
            .then(|| format!("{}\n{printed}{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

impl fmt::Display for Disturbances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<55} {:>9}", "disturbances", "times")?;
        let kinds: BTreeSet<Kind> = self.history.iter().map(|disturbance| disturbance.kind).collect();
        for kind in kinds {
            let count = self.history.iter().filter(|disturbance| disturbance.kind == kind).count();
            let what = match kind {
                Kind::Kill => "kube-proxy killed with -9 and started again",
                Kind::Terminate => "kube-proxy terminated and started again",
                Kind::KillWhileApiServerIsAway => "kube-proxy killed with -9 while the API server is down",
                Kind::RestartApiServer => "API server killed and started again",
                Kind::RestartApiServerWithoutHistory => "API server restarted after a compaction",
                Kind::RestartEtcd => "etcd killed and started again",
                Kind::CutConnections => "connections to the API server cut",
                Kind::Flush => "rules flushed by another program",
            };
            writeln!(f, "{what:<55} {count:>9}")?;
        }
        writeln!(f, "{:<55} {:>9}", "changes to the table that the kernel refused others", self.refused)?;
        let times = self.unprotected.iter().map(|(began, ended)| *ended - *began);
        let (total, longest) = (times.clone().sum::<Duration>(), times.max().unwrap_or_default());
        let unprotected = format!("{} ms, at most {} ms at once", total.as_millis(), longest.as_millis());
        writeln!(f, "{:<55} {unprotected}", "from a flush until the rules were seen again")
    }
}
