//! A proxy without its process: manifests go in, and the tables of a node's namespace follow.

use jiff::Timestamp;
use kernel::nftables::{Change, Outcome, Table};
use model::address::Family;
use model::cluster::{Cluster, Here};
use model::event::{Event, Kind};
use model::local::{FromPod, NodePortAddresses};
use plan::nftables::program::Settings;
use plan::nftables::words::Mark;
use watch::manifest::{Form, Object, read};

use crate::namespace::Namespace;
use crate::network::{node_ip, pod_cidr};

/// One family's line in a node's namespace.
#[derive(Debug)]
pub struct Node {
    namespace: Namespace,
    pub cluster: Cluster,
    pub table: Table,
}

/// The choices a configuration offers.
#[derive(Clone, Debug)]
pub struct Options {
    pub masquerade_all: bool,
    /// Whether traffic from pods is told by their addresses; if not, it is not told at all.
    pub detect_local: bool,
    /// Empty means every address of the node.
    pub node_port_addresses: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { masquerade_all: false, detect_local: true, node_port_addresses: Vec::new() }
    }
}

pub const NODE_NAME: &str = "node-1";

impl Node {
    pub fn new(namespace: &Namespace, family: Family, options: &Options) -> Self {
        let here = Here {
            family,
            node_name: NODE_NAME.into(),
            node_ip: node_ip(family),
            serve_external_ips: true,
            started: Timestamp::UNIX_EPOCH,
        };
        let cidrs: Vec<_> = options.node_port_addresses.iter().map(|cidr| cidr.parse().unwrap()).collect();
        let addresses = NodePortAddresses::new(family, &cidrs);
        let settings = Settings {
            family,
            mark: Mark::from_bit(14).unwrap(),
            masquerade_all: options.masquerade_all,
            from_pod: options.detect_local.then(|| FromPod::Source(pod_cidr(family).parse().unwrap())),
            node_ports_everywhere: addresses.match_all(),
        };
        let mut cluster = Cluster::new(here);
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr] {
            cluster.apply(&Event::Listed(kind));
        }
        let (table, node_port_ips) = namespace.enter(|| {
            let table = Table::open(settings).unwrap();
            (table, addresses.among(&kernel::interfaces::addresses().unwrap()))
        });
        let mut node = Self { namespace: namespace.clone(), cluster, table };
        let node_port_ips = (!addresses.match_all()).then_some(node_port_ips);
        node.sync(Change { node_port_ips, ..Change::default() });
        node
    }

    /// Applies manifests and makes a pass.
    pub fn apply(&mut self, manifests: &str) -> Outcome {
        let content =
            read(manifests.as_bytes(), Form::Yaml).unwrap_or_else(|problem| panic!("{problem}\n{manifests}"));
        assert!(content.refused.is_empty(), "{:?}", content.refused);
        for object in content.objects {
            let notes = self.cluster.apply(&match object {
                Object::Service(service) => Event::ServiceApplied(service),
                Object::EndpointSlice(slice) => Event::SliceApplied(slice),
                Object::Node(node) => Event::NodeApplied(node),
                Object::ServiceCidr(cidr) => Event::ServiceCidrApplied(cidr),
            });
            assert_eq!(notes, []);
        }
        self.pass()
    }

    pub fn hear(&mut self, event: &Event) -> Outcome {
        self.cluster.apply(event);
        self.pass()
    }

    fn pass(&mut self) -> Outcome {
        let changes = self.cluster.take_changes();
        self.sync(Change {
            routings: changes.routings,
            service_cidrs: changes.service_cidrs,
            node_port_ips: None,
        })
    }

    fn sync(&mut self, change: Change) -> Outcome {
        let table = &mut self.table;
        self.namespace.enter(|| table.sync(change)).unwrap()
    }
}
