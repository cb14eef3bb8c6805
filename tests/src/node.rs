//! A proxy in nftables mode without its process: manifests go in, and the table of a node's namespace follows.

use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::Cluster;
use model::event::Event;
use plan::mark::Mark;
use plan::nftables::program::Settings;

use crate::drive::NftablesSync;
use crate::feed::{cluster, fold_in, list};
use crate::matrix::Backend;
use crate::options::Options;
use testkit::namespace::Namespace;

/// One family's line in a node's namespace.
#[derive(Debug)]
pub struct Node {
    namespace: Namespace,
    pub cluster: Cluster,
    pub table: NftablesSync,
}

impl Node {
    pub fn new(namespace: &Namespace, family: Family, options: &Options) -> Self {
        Self::start(namespace, family, options, "").0
    }

    /// A proxy that finds these manifests when it starts, and what its first sync did.
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
            let serving = addresses.among(&all);
            (NftablesSync::open(settings).unwrap(), serving)
        });
        let mut node = Self { namespace: namespace.clone(), cluster: cluster(family), table };
        node.table.plan.move_to(node_port_ips);
        list(&mut node.cluster, manifests);
        let outcome = node.sync();
        (node, outcome)
    }

    /// Applies manifests and syncs.
    pub fn apply(&mut self, manifests: &str) -> Outcome {
        fold_in(&mut self.cluster, manifests);
        self.sync()
    }

    /// Makes these manifests all there is, and syncs.
    pub fn replace(&mut self, manifests: &str) -> Outcome {
        list(&mut self.cluster, manifests);
        self.sync()
    }

    pub fn hear(&mut self, event: &Event) -> Outcome {
        self.cluster.apply(event);
        self.sync()
    }

    fn sync(&mut self) -> Outcome {
        let changes = self.cluster.take_changes();
        let table = &mut self.table;
        self.namespace.enter(|| table.sync(changes)).unwrap()
    }
}

impl Backend for Node {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }
}
