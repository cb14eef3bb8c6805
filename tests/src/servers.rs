//! The ipvs mode without its process: each sync brings the virtual servers, the addresses and the table in a node's namespace to what
//! manifests ask for.

use std::net::SocketAddr;
use std::time::Instant;

use kernel::interfaces::source_towards;
use kernel::ipvs::KernelServers;
use kernel::nftables::KernelTable;
use kernel::outcome::Outcome;
use kernel::sysctl::Sysctls;
use model::address::Family;
use model::cluster::Cluster;
use plan::ipvs::desired::ServerSettings;
use plan::ipvs::plan::IpvsPlan;
use proxy::backend::{Backend as _, Ipvs};
use proxy::metrics::Metrics;
use proxy::rate_limit::Retry;
use settings::config::ProxyMode;

use crate::feed::{cluster, replace};
use crate::matrix::ProxyUnderTest;
use crate::node::program_settings;
use crate::options::Options;
use testkit::namespace::Namespace;
use testkit::wait::eventually;

/// The model and the servers of one family in a node's namespace.
#[derive(Debug)]
pub struct IpvsNode {
    namespace: Namespace,
    pub cluster: Cluster,
    pub backend: Ipvs,
}

impl IpvsNode {
    pub fn new(namespace: &Namespace, family: Family, options: &Options) -> Self {
        let program = program_settings(family, options);
        let servers = ServerSettings::new("rr", Vec::new());
        let addresses = options.node_port_addresses(family);
        let mut backend = namespace.enter(|| {
            let mut access = KernelServers::open(family).unwrap();
            proxy::modes::set_up_ipvs(&ipvs_defaults(), &Sysctls::default(), &mut access).unwrap();
            let table = KernelTable::open(family).unwrap();
            Ipvs::new(IpvsPlan::new(program, servers), table, access, &Metrics::new(ProxyMode::Ipvs))
        });
        let all = namespace.enter(|| kernel::interfaces::addresses().unwrap());
        let all: Vec<_> = all.into_iter().filter(|ip| Family::of(*ip) == family).collect();
        backend.set_node_addresses(&all, &addresses.among(&all));
        let mut node = Self { namespace: namespace.clone(), cluster: cluster(family), backend };
        node.replace("");
        node
    }

    /// Replaces all objects by `manifests`, and syncs.
    pub fn replace(&mut self, manifests: &str) -> Outcome {
        replace(&mut self.cluster, manifests);
        self.sync()
    }

    fn sync(&mut self) -> Outcome {
        let mut changes = self.cluster.take_changes();
        let backend = &mut self.backend;
        // The node of the other family may commit between a read-back and the commit.
        self.namespace.enter(|| {
            let outcome = loop {
                match backend.sync(std::mem::take(&mut changes)) {
                    Err(error) if error.retry == Retry::Stale => {}
                    outcome => break outcome.unwrap(),
                }
            };
            backend.on_timer(Instant::now());
            // The kernel adds the routes of new IPv6 addresses a moment later.
            let is_local = |ip| source_towards(SocketAddr::new(ip, 9)).is_ok_and(|source| source == ip);
            eventually("bound addresses are local", || backend.plan.desired().bound_ips().all(is_local));
            outcome
        })
    }
}

impl ProxyUnderTest for IpvsNode {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }
}

fn ipvs_defaults() -> settings::config::IpvsSettings {
    settings::config::IpvsSettings {
        scheduler: String::new(),
        exclude_cidrs: Vec::new(),
        strict_arp: false,
        tcp_timeout: std::time::Duration::ZERO,
        tcp_fin_timeout: std::time::Duration::ZERO,
        udp_timeout: std::time::Duration::ZERO,
    }
}
