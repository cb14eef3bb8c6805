//! Manifests as the model of one family hears them.

use jiff::Timestamp;
use model::address::Family;
use model::cluster::{Cluster, Here};
use model::event::{Event, Kind};
use watch::manifest::{Form, Object, read};

use testkit::network::node_ip;

pub const NODE_NAME: &str = "node-1";

const KINDS: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr];

/// A model that knows nothing yet, on the node of the test network.
pub fn cluster(family: Family) -> Cluster {
    Cluster::new(Here {
        family,
        node_name: NODE_NAME.into(),
        node_ip: node_ip(family),
        serve_external_ips: true,
        started: Timestamp::UNIX_EPOCH,
    })
}

/// Makes these manifests all there is.
pub fn list(cluster: &mut Cluster, manifests: &str) {
    for kind in KINDS {
        cluster.apply(&Event::Listing(kind));
    }
    fold_in(cluster, manifests);
    for kind in KINDS {
        cluster.apply(&Event::Listed(kind));
    }
}

/// Adds these manifests to what there is.
pub fn fold_in(cluster: &mut Cluster, manifests: &str) {
    let form = if manifests.starts_with('{') { Form::Json } else { Form::Yaml };
    let content =
        read(manifests.as_bytes(), form, &[]).unwrap_or_else(|problem| panic!("{problem}\n{manifests}"));
    assert!(content.refused.is_empty(), "{:?}", content.refused);
    for object in content.objects {
        let notes = cluster.apply(&match object {
            Object::Service(service) => Event::ServiceApplied(service),
            Object::EndpointSlice(slice) => Event::SliceApplied(slice),
            Object::Node(node) => Event::NodeApplied(node),
            Object::ServiceCidr(cidr) => Event::ServiceCidrApplied(cidr),
        });
        assert_eq!(notes, []);
    }
}
