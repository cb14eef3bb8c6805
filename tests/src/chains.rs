//! A proxy in iptables mode without its process: manifests go in, and the chains of a node's namespace follow.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kernel::iptables::{Access, Change, Outcome, Programs, Rules, Variant, set_up};
use kernel::sysctl::Sysctls;
use model::address::Family;
use model::cluster::Cluster;
use plan::iptables::program::Settings;
use plan::mark::Mark;
use tempfile::TempDir;

use crate::feed::{cluster, list};
use crate::matrix::Backend;
use crate::options::Options;
use testkit::namespace::Namespace;

/// One family's line in a node's namespace.
#[derive(Debug)]
pub struct Chains {
    namespace: Namespace,
    pub cluster: Cluster,
    pub rules: Rules,
    _programs: TempDir,
}

impl Chains {
    pub fn new(namespace: &Namespace, family: Family, options: &Options, variant: Variant) -> Self {
        let programs = programs(variant);
        let addresses = options.node_port_addresses(family);
        let (rules, node_port_ips) = namespace.enter(|| {
            let exec = Arc::new(Programs::of(programs.path()));
            let access = Access::through(exec, family).unwrap();
            let settings = Settings {
                family,
                mark: Mark::from_bit(options.masquerade_bit).unwrap(),
                masquerade_all: options.masquerade_all,
                from_pod: options.from_pod(family),
                localhost_node_ports: true,
                node_port_addresses: addresses.clone(),
                abilities: access.abilities(),
            };
            set_up(&settings, &Sysctls::default()).unwrap();
            let all = kernel::interfaces::addresses().unwrap();
            (Rules::new(access, settings, Duration::from_secs(30)), addresses.among(&all))
        });
        let mut chains =
            Self { namespace: namespace.clone(), cluster: cluster(family), rules, _programs: programs };
        list(&mut chains.cluster, "");
        chains.pass(Change { node_port_ips: Some(node_port_ips), ..Change::default() });
        chains
    }

    /// Makes these manifests all there is, and makes a pass.
    pub fn replace(&mut self, manifests: &str) -> Outcome {
        list(&mut self.cluster, manifests);
        self.pass(Change::default())
    }

    fn pass(&mut self, change: Change) -> Outcome {
        let routings = self.cluster.take_changes().routings;
        let endpoints = self.cluster.counts().endpoints;
        let rules = &mut self.rules;
        self.namespace.enter(|| rules.sync(Change { routings, endpoints, ..change })).unwrap()
    }
}

impl Backend for Chains {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }
}

/// A folder in which `iptables` and its kin are those of one variant, whatever the machine's own choice is.
pub fn programs(variant: Variant) -> TempDir {
    let suffix = match variant {
        Variant::Legacy => "legacy",
        Variant::Nft => "nft",
    };
    let folder = TempDir::new().unwrap();
    for family in ["iptables", "ip6tables"] {
        for tool in ["", "-save", "-restore"] {
            let program = Path::new("/usr/sbin").join(format!("{family}-{suffix}{tool}"));
            symlink(program, folder.path().join(format!("{family}{tool}"))).unwrap();
        }
    }
    folder
}
