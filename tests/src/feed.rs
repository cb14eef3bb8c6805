//! Feeds manifests to the model of one family.

use jiff::Timestamp;
use model::address::Family;
use model::cluster::{Cluster, Here};
use model::event::{Event, Kind};
use model::hashing::MAX_HASHED;
use watch::manifest::{Form, Object, read};

use testkit::lab::NODE_NAME;
use testkit::network::node_ip;

const KINDS: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr];

/// An empty model of the node of [`testkit::network`].
pub fn cluster(family: Family) -> Cluster {
    Cluster::new(Here {
        family,
        node_name: NODE_NAME.into(),
        node_ip: node_ip(family),
        serve_external_ips: true,
        max_hashed: MAX_HASHED,
        started: Timestamp::UNIX_EPOCH,
    })
}

/// Replaces all objects by `manifests`.
pub fn replace(cluster: &mut Cluster, manifests: &str) {
    for kind in KINDS {
        cluster.apply(&Event::Listing(kind));
    }
    add(cluster, manifests);
    for kind in KINDS {
        cluster.apply(&Event::Listed(kind));
    }
}

/// Adds `manifests` to the objects.
pub fn add(cluster: &mut Cluster, manifests: &str) {
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
