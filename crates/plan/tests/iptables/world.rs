//! A cluster, a plan and a fake kernel, and syncs from one to the other.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::address::Family;
use model::cluster::{Cluster, Here};
use model::event::Event;
use model::local::{FromPod, NodePortAddresses};
use plan::iptables::chains::Table;
use plan::iptables::plan::{Manner, Plan, RuleCounts, Scope};
use plan::iptables::program::{Counters, Settings};
use plan::nftables::words::Mark;
use serde::Deserialize;

use crate::fake::{Kernel, Refused};
use crate::objects;
use crate::trace::Tracer;

pub const SYNC_PERIOD: Duration = Duration::from_secs(30);

/// What an example may differ in; the defaults are those of all examples.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Options {
    pub family: String,
    pub masquerade_all: bool,
    pub detect_local: DetectLocal,
    pub localhost_node_ports: bool,
    pub node_port_addresses: Vec<String>,
    pub nfacct: bool,
    pub tcp_be_liberal: bool,
    pub random_fully: bool,
    #[serde(rename = "allowServiceExternalIPs")]
    pub allow_service_external_ips: bool,
    /// The example that comes before this one.
    pub after: Option<String>,
    pub delete: Vec<String>,
    /// The example whose text is expected.
    pub same_as: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocal {
    pub cluster_cidrs: Vec<String>,
    pub bridge_interface: Option<String>,
    pub interface_name_prefix: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        let cluster_cidrs = ["10.244.0.0/16", "fd00:10:244::/48"].map(String::from).into();
        Self {
            family: "IPv4".into(),
            masquerade_all: false,
            detect_local: DetectLocal { cluster_cidrs, ..DetectLocal::default() },
            localhost_node_ports: true,
            node_port_addresses: Vec::new(),
            nfacct: true,
            tcp_be_liberal: false,
            random_fully: true,
            allow_service_external_ips: true,
            after: None,
            delete: Vec::new(),
            same_as: None,
        }
    }
}

impl Options {
    pub fn v6() -> Self {
        Self { family: "IPv6".into(), ..Self::default() }
    }

    pub fn family(&self) -> Family {
        Family::from_api(&self.family).unwrap()
    }

    pub fn settings(&self) -> Settings {
        let family = self.family();
        let detect = &self.detect_local;
        let interface = detect.bridge_interface.clone().map(FromPod::Interface);
        let prefix = detect.interface_name_prefix.clone().map(FromPod::InterfacePrefix);
        Settings {
            family,
            mark: Mark::from_bit(14).unwrap(),
            masquerade_all: self.masquerade_all,
            from_pod: interface
                .or(prefix)
                .or_else(|| FromPod::by_source(&cidrs(&detect.cluster_cidrs), family)),
            localhost_node_ports: self.localhost_node_ports,
            node_port_addresses: NodePortAddresses::new(family, &cidrs(&self.node_port_addresses)),
            random_fully: self.random_fully,
            tcp_liberal: self.tcp_be_liberal,
            counters: Counters { invalid_dropped: self.nfacct, localhost_node_ports: self.nfacct },
        }
    }
}

fn cidrs(texts: &[String]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The addresses of node-1.
pub fn interfaces() -> Vec<IpAddr> {
    ["127.0.0.1", "::1", "192.168.0.2", "fd00:192:168::2", "192.168.1.2"].map(|ip| ip.parse().unwrap()).into()
}

pub struct World {
    pub options: Options,
    pub cluster: Cluster,
    pub plan: Plan,
    pub kernel: Kernel,
    pub now: Instant,
    /// Whether the kernel's chains can be listed.
    pub can_save: bool,
    pub interfaces: Vec<IpAddr>,
    /// Endpoints that are counted but not there: large clusters are slow to test.
    pub imagined: usize,
}

/// What one sync did.
#[derive(Debug)]
pub struct Synced {
    pub scope: Scope,
    pub texts: Vec<String>,
    pub counts: RuleCounts,
}

impl World {
    pub fn new(options: Options) -> Self {
        Self::with_manner(options, Manner::LEGACY)
    }

    pub fn with_manner(options: Options, manner: Manner) -> Self {
        let family = options.family();
        let here = Here {
            family,
            node_name: "node-1".into(),
            node_ip: match family {
                Family::V4 => "192.168.0.2".parse().unwrap(),
                Family::V6 => "fd00:192:168::2".parse().unwrap(),
            },
            serve_external_ips: options.allow_service_external_ips,
            started: "2026-01-01T00:00:00Z".parse().unwrap(),
        };
        let mut plan = Plan::new(options.settings(), manner, SYNC_PERIOD);
        plan.move_to(&interfaces());
        Self {
            plan,
            options,
            cluster: Cluster::new(here),
            kernel: Kernel::empty(),
            now: Instant::now(),
            can_save: true,
            interfaces: interfaces(),
            imagined: 0,
        }
    }

    pub fn apply(&mut self, event: &Event) {
        self.cluster.apply(event);
    }

    /// Applies what the lines say.
    pub fn hear(&mut self, lines: &str) -> &mut Self {
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            self.apply(&objects::said(line));
        }
        self
    }

    pub fn move_to(&mut self, interfaces: &[IpAddr]) {
        self.interfaces = interfaces.to_vec();
        self.plan.move_to(interfaces);
    }

    fn endpoints(&self) -> usize {
        self.cluster.counts().endpoints + self.imagined
    }

    pub fn wait(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self
    }

    pub fn sync(&mut self) -> Synced {
        let (synced, refused) = self.try_sync(|_, _| true);
        assert_eq!(refused, None, "{}", synced.texts.join("\n"));
        synced
    }

    /// A sync in which each run, by its number, may be made to fail. Checks the kernel after each run.
    pub fn try_sync(&mut self, goes_well: impl Fn(usize, &str) -> bool) -> (Synced, Option<Refused>) {
        for (name, routing) in self.cluster.take_changes().routings {
            self.plan.replace(name, routing);
        }
        let endpoints = self.endpoints();
        let attempt = match self.plan.scope(self.now) {
            Scope::Full => {
                self.kernel.ensure_jumps();
                let found = self.kernel.nat_chains();
                self.plan.full(self.now, endpoints, self.can_save.then_some(&found))
            }
            Scope::Partial => self.plan.partial(self.now, endpoints),
        };
        let texts: Vec<String> = attempt.restores().iter().map(ToString::to_string).collect();
        let synced = Synced { scope: attempt.scope(), counts: attempt.counts(), texts };
        let mut states = vec![self.kernel.clone()];
        for (number, text) in synced.texts.iter().enumerate() {
            let result = if goes_well(number, text) {
                self.kernel.restore(text)
            } else {
                Err(Refused(0, "by the test".into()))
            };
            if let Err(refused) = result {
                drop(attempt);
                return (synced, Some(refused));
            }
            states.push(self.kernel.clone());
        }
        attempt.settle();
        never_half_written(&states);
        (synced, None)
    }

    /// What may become of the packet, in words: see [`Tracer::fates`].
    pub fn fates(&self, packet: &str) -> String {
        let fates = Tracer::new(&self.kernel, self.interfaces.clone()).fates(packet);
        fates.into_iter().collect::<Vec<String>>().join(", ")
    }

    /// What the kernel would hold if all had been written at once.
    pub fn ideal(&self) -> Kernel {
        let mut plan = Plan::new(self.options.settings(), Manner::LEGACY, SYNC_PERIOD);
        plan.move_to(&self.interfaces);
        for (name, routing) in self.cluster.routings() {
            plan.replace(name.clone(), Some(routing.clone()));
        }
        let mut kernel = Kernel::empty();
        kernel.ensure_jumps();
        let found = kernel.nat_chains();
        let attempt = plan.full(self.now, self.endpoints(), Some(&found));
        let text = attempt.restores()[0].to_string();
        attempt.settle();
        kernel.restore(&text).unwrap();
        kernel
    }
}

/// Between two runs, every chain that a packet can come to is as it was or as it will be.
fn never_half_written(states: &[Kernel]) {
    let (first, last) = (&states[0], &states[states.len() - 1]);
    for state in states {
        for table in [Table::Filter, Table::Nat] {
            for chain in state.reachable(table) {
                let rules = state.table(table).get(chain);
                let was = first.table(table).get(chain);
                let will_be = last.table(table).get(chain);
                assert!(rules == was || rules == will_be, "{chain} is half written: {rules:#?}");
            }
        }
    }
}
