//! The nftables mode without its process: each sync brings the table in a node's namespace to what manifests ask for.

use std::sync::Arc;

use kernel::nftables::KernelTable;
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::Cluster;
use model::event::Event;
use plan::mark::Mark;
use plan::nftables::program::ProgramSettings;
use plan::nftables::sets::Balancer;
use proxy::backend::{Backend as _, Nftables};
use proxy::metrics::Metrics;
use proxy::rate_limit::Retry;
use settings::config::ProxyMode;

use crate::feed::{add, cluster, replace};
use crate::matrix::ProxyUnderTest;
use crate::options::Options;
use testkit::namespace::Namespace;
use testkit::wait::{Deadline, USUAL_TIMEOUT};

/// The model and the table of one family in a node's namespace.
#[derive(Debug)]
pub struct NftablesNode {
    namespace: Namespace,
    pub cluster: Cluster,
    pub backend: Nftables,
}

impl NftablesNode {
    pub fn new(namespace: &Namespace, family: Family, options: &Options) -> Self {
        Self::start(namespace, family, options, "").0
    }

    /// Starts with `manifests` and returns the outcome of the first sync.
    pub fn start(
        namespace: &Namespace,
        family: Family,
        options: &Options,
        manifests: &str,
    ) -> (Self, Outcome) {
        let mut node = Self::open(namespace, family, options);
        replace(&mut node.cluster, manifests);
        let outcome = node.sync();
        (node, outcome)
    }

    /// A node that has received nothing yet, and has no table.
    pub fn open(namespace: &Namespace, family: Family, options: &Options) -> Self {
        let addresses = options.node_port_addresses(family);
        let settings = program_settings(family, options);
        let (backend, node_port_ips) = namespace.enter(|| {
            let all = kernel::interfaces::addresses().unwrap();
            let table = KernelTable::open(family).unwrap();
            let metrics = Arc::new(Metrics::new(ProxyMode::Nftables));
            (Nftables::new(table, settings, metrics), addresses.among(&all))
        });
        let mut node = Self { namespace: namespace.clone(), cluster: cluster(family), backend };
        node.backend.plan.set_node_port_ips(node_port_ips);
        node
    }

    /// Adds `manifests` to objects that have not arrived completely, and loads them early.
    pub fn preload(&mut self, manifests: &str) {
        add(&mut self.cluster, manifests);
        let (cluster, backend) = (&mut self.cluster, &mut self.backend);
        let preloaded = self.namespace.enter(|| backend.preload(&mut || cluster.take_early(usize::MAX)));
        assert!(preloaded, "there is no table");
    }

    /// Adds `manifests` to the objects, and syncs.
    pub fn apply(&mut self, manifests: &str) -> Outcome {
        add(&mut self.cluster, manifests);
        self.sync()
    }

    /// Replaces all objects by `manifests`, and syncs.
    pub fn replace(&mut self, manifests: &str) -> Outcome {
        replace(&mut self.cluster, manifests);
        self.sync()
    }

    pub fn apply_event(&mut self, event: &Event) -> Outcome {
        self.cluster.apply(event);
        self.sync()
    }

    fn sync(&mut self) -> Outcome {
        let mut changes = self.cluster.take_changes();
        let backend = &mut self.backend;
        let mut deadline = Deadline::after(USUAL_TIMEOUT);
        self.namespace.enter(|| {
            loop {
                match backend.sync(std::mem::take(&mut changes)) {
                    // The node of the other family may commit between a read-back and the commit. A process that another test
                    // forks keeps the socket of an earlier node for a moment, and with it the table.
                    Err(error)
                        if matches!(error.retry, Retry::Stale | Retry::Busy) && !deadline.has_passed() => {}
                    outcome => return outcome.unwrap(),
                }
            }
        })
    }
}

pub fn program_settings(family: Family, options: &Options) -> ProgramSettings {
    ProgramSettings {
        family,
        balancer: Balancer::Slots,
        mark: Mark::from_bit(options.masquerade_bit).unwrap(),
        masquerade_all: options.masquerade_all,
        from_pod: options.from_pod(family),
        node_ports_everywhere: options.node_port_addresses(family).match_all(),
        can_hash: true,
    }
}

impl ProxyUnderTest for NftablesNode {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }
}
