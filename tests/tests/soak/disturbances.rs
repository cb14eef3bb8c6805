//! What happens to kube-proxy, its rules and its API server, one thing after the other, while clients and churn go on.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use model::address::Family;
use testkit::lab::{Place, TARGET};
use testkit::network::of;
use tests::cluster::control_plane::ADDRESS;
use tests::cluster::etcd;
use tests::cluster::proxy::{Mode, Proxy, flags};
use tests::cluster::relay::Relay;
use tests::cluster::stage::Stage;
use tests::matrix::within;

use crate::clients::Failure;
use crate::random::Random;

/// Where kube-proxy finds the API server, by way of a relay that can be cut.
pub const RELAY_PORT: u16 = 7443;
/// Longer than kube-proxy waits at most between two attempts to reach an API server.
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

/// Whether kube-proxy itself is among what is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kills {
    Included,
    Excluded,
}

#[derive(Debug)]
pub struct Disturbances {
    mode: Mode,
    space: String,
    /// Between kube-proxy and the API server.
    relay: Relay,
    kubeconfig: PathBuf,
    proxy: Option<Proxy>,
    random: Random,
    history: Vec<Disturbance>,
    /// From before a flush until the rules are back. None in nftables mode.
    unprotected: Vec<(Instant, Instant)>,
    /// Attempts of other programs on the table that the kernel refused.
    refused: usize,
}

impl Disturbances {
    pub fn new(stage: &Stage, mode: Mode, seed: u64) -> Self {
        let at = SocketAddr::new(ADDRESS.parse().unwrap(), RELAY_PORT);
        let relay = Relay::start(&stage.plane().namespace, at, stage.plane().address());
        Self {
            mode,
            space: stage.space().to_owned(),
            relay,
            kubeconfig: stage.kubeconfig(at, &stage.certified_proxy()),
            proxy: None,
            // Not the numbers that the churn gets.
            random: Random::new(!seed),
            history: Vec::new(),
            unprotected: Vec::new(),
            refused: 0,
        }
    }

    /// Starts kube-proxy, and returns when it has synced both families.
    pub fn start_proxy(&mut self, stage: &Stage) {
        let written = self.spawn_proxy(stage);
        self.wait_for_sync(written);
    }

    /// Returns how long its log was before.
    fn spawn_proxy(&mut self, stage: &Stage) -> usize {
        let written = std::fs::metadata(stage.log()).map_or(0, |log| usize::try_from(log.len()).unwrap());
        self.proxy = Some(stage.proxy_as(self.mode, &self.kubeconfig, &[]));
        written
    }

    fn wait_for_sync(&mut self, written: usize) {
        let proxy = self.proxy.as_mut().unwrap();
        within(SYNC_TIMEOUT, "the first sync", || {
            assert!(proxy.is_running(), "kube-proxy has ended:\n{}", proxy.log());
            let log = proxy.log();
            let syncs = log[written..].lines().filter(|line| line.contains("SyncProxyRules complete"));
            ["IPv4", "IPv6"].iter().all(|family| syncs.clone().any(|line| line.contains(family)))
        });
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    /// Goes on until then. With kills, everything happens once at least.
    pub fn run(&mut self, stage: &mut Stage, until: Instant, kills: Kills) {
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
        let mut owed = kills == Kills::Included;
        while owed || Instant::now() < until {
            self.random.shuffle(&mut kinds);
            for kind in &kinds {
                if !owed && Instant::now() >= until {
                    return;
                }
                assert!(
                    self.proxy.as_mut().unwrap().is_running(),
                    "kube-proxy has ended by itself before {kind:?}"
                );
                let began = Instant::now();
                self.disturb(stage, *kind);
                self.history.push(Disturbance { kind: *kind, began, ended: Instant::now() });
                self.rest();
            }
            owed = false;
        }
    }

    fn rest(&mut self) {
        std::thread::sleep(Duration::from_millis(self.random.below(2_000) as u64));
    }

    fn disturb(&mut self, stage: &mut Stage, kind: Kind) {
        match kind {
            Kind::Kill => {
                // Dropping it kills it, wherever it is.
                self.proxy = None;
                self.rest();
                self.start_proxy(stage);
            }
            Kind::Terminate => {
                let proxy = self.proxy.as_mut().unwrap();
                proxy.terminate();
                proxy.wait();
                self.start_proxy(stage);
            }
            Kind::KillWhileApiServerIsAway => {
                stage.plane_mut().stop_api_server();
                self.proxy = None;
                let written = self.spawn_proxy(stage);
                self.rest();
                stage.plane_mut().start_api_server();
                self.wait_for_sync(written);
            }
            Kind::RestartApiServer => {
                stage.plane_mut().stop_api_server();
                self.rest();
                stage.plane_mut().start_api_server();
            }
            Kind::RestartApiServerWithoutHistory => {
                self.relay.close();
                self.rest();
                etcd::compact(&stage.plane().namespace);
                stage.plane_mut().stop_api_server();
                stage.plane_mut().start_api_server();
                self.relay.reopen();
            }
            Kind::RestartEtcd => stage.plane_mut().restart_etcd(),
            Kind::CutConnections => self.relay.cut(),
            Kind::Flush => self.flush(stage),
        }
    }

    /// As scripts of firewalls do.
    fn flush(&mut self, stage: &Stage) {
        let node = &stage.lab.network.node;
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
            Mode::Iptables => {
                let commands: &[&str] = self.random.one_of(&[
                    &["nft flush ruleset"] as &[&str],
                    &["iptables -t nat -F", "ip6tables -t nat -F"],
                    &["iptables -F", "iptables -t nat -F", "iptables -t nat -X"],
                    &["ip6tables -F", "ip6tables -t nat -F", "ip6tables -t nat -X"],
                ]);
                let began = Instant::now();
                for command in commands {
                    // Where chains are in use again already, they can't be deleted.
                    run(command);
                }
                within(REPAIR_TIMEOUT, "the repair of the rules", || self.rules_are_back(stage));
                self.unprotected.push((began, Instant::now()));
            }
        }
    }

    /// A sync writes the nat table in one transaction, so that a part of each kind of rule tells of the rest.
    fn rules_are_back(&self, stage: &Stage) -> bool {
        Family::BOTH.into_iter().all(|family| {
            let program = of(family, ["iptables-save", "ip6tables-save"]);
            let rules = stage.lab.network.node.run(&format!("{program} -t nat"));
            let endpoint = SocketAddr::new(Place::PodA.ip(family), TARGET);
            let jumps = ["-A PREROUTING ", "-A OUTPUT ", "-A POSTROUTING "]
                .into_iter()
                .all(|chain| rules.lines().any(|rule| rule.starts_with(chain) && rule.contains("-j KUBE-")));
            let has =
                |words: [&str; 2]| rules.lines().any(|rule| words.iter().all(|word| rule.contains(word)));
            jumps
                && ["web:tcp", "web:udp", "sticky:tcp", "sticky:udp"].into_iter().all(|port| {
                    let port = format!("{}/{port}", self.space);
                    has([&format!("{port} cluster IP"), "-j KUBE-SVC-"])
                        && has([&format!("{port} -> {endpoint}"), "-j KUBE-SEP-"])
                        && has([&port, &format!("--to-destination {endpoint}")])
                })
        })
    }

    /// Whether it fell into a time without rules that kube-proxy could not prevent.
    pub fn excuses(&self, failure: &Failure) -> bool {
        self.unprotected.iter().any(|(began, ended)| failure.began < *ended && failure.ended > *began)
    }

    /// What happened last when a connection that failed was begun.
    pub fn before(&self, failure: &Failure) -> String {
        let last = self.history.iter().rfind(|disturbance| disturbance.began <= failure.began);
        let Some(Disturbance { kind, began, ended }) = last else { return "before any disturbance".into() };
        let [after, took] = [failure.began - *began, *ended - *began].map(|time| time.as_secs_f64());
        format!("{after:.3} s after {kind:?}, which took {took:.3} s")
    }

    /// What `kube-proxy verify` finds wrong.
    pub fn verify(&self, stage: &Stage) -> Option<String> {
        let mut command = Command::new(stage.kube_proxy());
        command.arg("verify").args(flags(self.mode, &stage.node, &self.kubeconfig)).arg("--v=0");
        let output = stage.lab.network.node.enter(|| command.output()).unwrap();
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
                Kind::KillWhileApiServerIsAway => "the same with -9 while there is no API server",
                Kind::RestartApiServer => "API server killed and started again",
                Kind::RestartApiServerWithoutHistory => "the same, and it has forgotten its history",
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
