//! A proxy without its process: manifests go in, and the tables of a node's namespace follow.

use std::net::IpAddr;

use jiff::Timestamp;
use kernel::nftables::{Change, Outcome, Table};
use model::address::Family;
use model::cluster::{Cluster, Here};
use model::event::{Event, Kind};
use model::local::{FromPod, NodePortAddresses};
use plan::nftables::program::Settings;
use plan::nftables::words::Mark;
use watch::manifest::{Form, Object, read};

use crate::matrix::Backend;
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
    pub masquerade_bit: u32,
    pub detect_local: DetectLocal,
    /// Empty means every address of the node.
    pub node_port_addresses: &'static [&'static str],
}

/// How traffic from pods is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// Not at all.
    No,
    PodCidr,
    Bridge(&'static str),
    InterfacePrefix(&'static str),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: 14,
            detect_local: DetectLocal::PodCidr,
            node_port_addresses: &[],
        }
    }
}

pub const NODE_NAME: &str = "node-1";

const KINDS: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr];

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
            mark: Mark::from_bit(options.masquerade_bit).unwrap(),
            masquerade_all: options.masquerade_all,
            from_pod: match options.detect_local {
                DetectLocal::No => None,
                DetectLocal::PodCidr => Some(FromPod::Source(pod_cidr(family).parse().unwrap())),
                DetectLocal::Bridge(name) => Some(FromPod::Interface(name.into())),
                DetectLocal::InterfacePrefix(prefix) => Some(FromPod::InterfacePrefix(prefix.into())),
            },
            node_ports_everywhere: addresses.match_all(),
        };
        let (table, node_port_ips) = namespace.enter(|| {
            let all = kernel::interfaces::addresses().unwrap();
            // As the proxy does.
            let serving = addresses.among(&all).into_iter().filter(|ip| !ip.is_loopback()).collect();
            (Table::open(settings).unwrap(), serving)
        });
        let mut node = Self { namespace: namespace.clone(), cluster: Cluster::new(here), table };
        let node_port_ips = (!addresses.match_all()).then_some(node_port_ips);
        node.list(manifests);
        let outcome = node.pass(node_port_ips);
        (node, outcome)
    }

    /// Applies manifests and makes a pass.
    pub fn apply(&mut self, manifests: &str) -> Outcome {
        self.fold_in(manifests);
        self.pass(None)
    }

    /// Makes these manifests all there is, and makes a pass.
    pub fn replace(&mut self, manifests: &str) -> Outcome {
        self.list(manifests);
        self.pass(None)
    }

    fn list(&mut self, manifests: &str) {
        for kind in KINDS {
            self.cluster.apply(&Event::Listing(kind));
        }
        self.fold_in(manifests);
        for kind in KINDS {
            self.cluster.apply(&Event::Listed(kind));
        }
    }

    fn fold_in(&mut self, manifests: &str) {
        let form = if manifests.starts_with('{') { Form::Json } else { Form::Yaml };
        let content =
            read(manifests.as_bytes(), form).unwrap_or_else(|problem| panic!("{problem}\n{manifests}"));
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
