//! The nftables mode without its process: each sync brings the table in a node's namespace to what manifests ask for.

use std::net::IpAddr;

use kernel::nftables::{Change, Outcome, Table};
use model::address::Family;
use model::cluster::Cluster;
use model::event::Event;
use plan::mark::Mark;
use plan::nftables::program::Settings;

use crate::feed::{add, cluster, replace};
use crate::matrix::Backend;
use crate::options::Options;
use testkit::namespace::Namespace;

/// The model and the table of one family in a node's namespace.
#[derive(Debug)]
pub struct NftablesNode {
    namespace: Namespace,
    pub cluster: Cluster,
    pub table: Table,
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
        let addresses = options.node_port_addresses(family);
        let settings = Settings {
            family,
            mark: Mark::from_bit(options.masquerade_bit).unwrap(),
            masquerade_all: options.masquerade_all,
            from_pod: options.from_pod(family),
            node_ports_everywhere: addresses.match_all(),
        };
        let (table, node_port_ips) = namespace.enter(|| {
            let all = kernel::interfaces::addresses().unwrap();
            // The proxy leaves out loopback addresses, too.
            let serving = addresses.among(&all).into_iter().filter(|ip| !ip.is_loopback()).collect();
            (Table::open(settings).unwrap(), serving)
        });
        let mut node = Self { namespace: namespace.clone(), cluster: cluster(family), table };
        let node_port_ips = (!addresses.match_all()).then_some(node_port_ips);
        replace(&mut node.cluster, manifests);
        let outcome = node.sync(node_port_ips);
        (node, outcome)
    }

    /// Adds `manifests` to the objects, and syncs.
    pub fn apply(&mut self, manifests: &str) -> Outcome {
        add(&mut self.cluster, manifests);
        self.sync(None)
    }

    /// Replaces all objects by `manifests`, and syncs.
    pub fn replace(&mut self, manifests: &str) -> Outcome {
        replace(&mut self.cluster, manifests);
        self.sync(None)
    }

    pub fn apply_event(&mut self, event: &Event) -> Outcome {
        self.cluster.apply(event);
        self.sync(None)
    }

    fn sync(&mut self, node_port_ips: Option<Vec<IpAddr>>) -> Outcome {
        let changes = self.cluster.take_changes();
        let change =
            Change { routings: changes.routings, service_cidrs: changes.service_cidrs, node_port_ips };
        let table = &mut self.table;
        self.namespace.enter(|| table.sync(change)).unwrap()
    }
}

impl Backend for NftablesNode {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }
}
