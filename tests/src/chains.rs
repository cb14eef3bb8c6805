//! The iptables mode without its process: each sync brings the chains in a node's namespace to what manifests ask for.

use std::sync::Arc;
use std::time::Duration;

use kernel::iptables::{Programs, Rules, Variant, set_up};
use kernel::outcome::Outcome;
use kernel::sysctl::Sysctls;
use model::address::Family;
use model::cluster::Cluster;
use plan::iptables::program::RuleSettings;
use plan::mark::Mark;
use proxy::backend::{Backend as _, Iptables};
use proxy::metrics::Metrics;
use settings::config::ProxyMode;
use tempfile::TempDir;

use crate::feed::{cluster, replace};
use crate::matrix::ProxyUnderTest;
use crate::options::Options;
use testkit::lab_proxy::link_iptables;
use testkit::namespace::Namespace;

const SYNC_PERIOD: Duration = Duration::from_secs(30);

/// The model and the rules of one family in a node's namespace.
#[derive(Debug)]
pub struct IptablesNode {
    namespace: Namespace,
    pub cluster: Cluster,
    pub backend: Iptables,
    _programs: TempDir,
}

impl IptablesNode {
    pub fn new(namespace: &Namespace, family: Family, options: &Options, variant: Variant) -> Self {
        let programs = iptables_programs(variant);
        let addresses = options.node_port_addresses(family);
        let (backend, node_port_ips) = namespace.enter(|| {
            let exec = Arc::new(Programs::of(programs.path()));
            let rules = Rules::through(exec, family).unwrap();
            let settings = RuleSettings {
                family,
                mark: Mark::from_bit(options.masquerade_bit).unwrap(),
                masquerade_all: options.masquerade_all,
                from_pod: options.from_pod(family),
                localhost_node_ports: true,
                node_port_addresses: addresses.clone(),
                abilities: rules.abilities(),
            };
            set_up(&settings, &Sysctls::default()).unwrap();
            let all = kernel::interfaces::addresses().unwrap();
            let metrics = Arc::new(Metrics::new(ProxyMode::Iptables));
            (Iptables::new(rules, settings, SYNC_PERIOD, metrics), addresses.among(&all))
        });
        let mut node =
            Self { namespace: namespace.clone(), cluster: cluster(family), backend, _programs: programs };
        replace(&mut node.cluster, "");
        node.backend.set_node_addresses(&[], &node_port_ips);
        node.sync();
        node
    }

    /// Replaces all objects by `manifests`, and syncs.
    pub fn replace(&mut self, manifests: &str) -> Outcome {
        replace(&mut self.cluster, manifests);
        self.sync()
    }

    fn sync(&mut self) -> Outcome {
        let changes = self.cluster.take_changes();
        let backend = &mut self.backend;
        self.namespace.enter(|| backend.sync(changes)).unwrap()
    }
}

impl ProxyUnderTest for IptablesNode {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }
}

/// A folder in which `iptables` and its kin are those of `variant`, whatever the machine's default is.
pub fn iptables_programs(variant: Variant) -> TempDir {
    let folder = TempDir::new().unwrap();
    let name = match variant {
        Variant::Legacy => "legacy",
        Variant::Nft => "nft",
    };
    link_iptables(name, folder.path());
    folder
}
