//! A proxy in nftables mode without its process: manifests go in, and the table of a node's namespace follows.

use std::net::IpAddr;

use kernel::nftables::{Change, Outcome, Table};
use model::address::Family;
use model::cluster::Cluster;
use model::event::Event;
use plan::mark::Mark;
use plan::nftables::program::Settings;

use crate::feed::{cluster, fold_in, list};
use crate::matrix::Backend;
use crate::options::Options;
use testkit::namespace::Namespace;

/// One family's line in a node's namespace.
#[derive(Debug)]
pub struct Node {
    namespace: Namespace,
    pub cluster: Cluster,
    pub table: Table,
}

impl Node {
    pub fn new(namespace: &Namespace, family: Family, options: &Options) -> Self {
        Self::start(namespace, family, options, "").0
    }

    /// A proxy that finds these manifests when it starts, and what its first pass did.
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
            // As the proxy does.
            let serving = addresses.among(&all).into_iter().filter(|ip| !ip.is_loopback()).collect();
            (Table::open(settings).unwrap(), serving)
        });
        let mut node = Self { namespace: namespace.clone(), cluster: cluster(family), table };
        let node_port_ips = (!addresses.match_all()).then_some(node_port_ips);
        list(&mut node.cluster, manifests);
        let outcome = node.pass(node_port_ips);
        (node, outcome)
    }

    /// Applies manifests and makes a pass.
    pub fn apply(&mut self, manifests: &str) -> Outcome {
        fold_in(&mut self.cluster, manifests);
        self.pass(None)
    }

    /// Makes these manifests all there is, and makes a pass.
    pub fn replace(&mut self, manifests: &str) -> Outcome {
        list(&mut self.cluster, manifests);
        self.pass(None)
    }

    pub fn hear(&mut self, event: &Event) -> Outcome {
        self.cluster.apply(event);
        self.pass(None)
    }

    fn pass(&mut self, node_port_ips: Option<Vec<IpAddr>>) -> Outcome {
        let changes = self.cluster.take_changes();
        let change =
            Change { routings: changes.routings, service_cidrs: changes.service_cidrs, node_port_ips };
        let table = &mut self.table;
        self.namespace.enter(|| table.sync(change)).unwrap()
    }
}

impl Backend for Node {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }
}
