//! Admits objects of manifests: fills in defaults and rejects invalid objects, as an API server would.
//!
//! Limited to the fields that the proxy uses.

use std::net::IpAddr;
use std::sync::Arc;

use model::address::{Family, parse_ip};
use model::api;

use crate::manifest::Object;
use crate::validate;

/// The namespace of objects, `default` for those that name none.
pub fn namespace(name: &str) -> &str {
    if name.is_empty() { "default" } else { name }
}

/// Fills in defaults, or returns why the object is invalid. `own` are the addresses of this node.
pub fn admit(object: &mut Object, own: &[IpAddr]) -> Result<(), String> {
    match object {
        Object::Service(service) => {
            complete_namespace(&mut service.metadata);
            complete_cluster_ips(&mut service.spec);
        }
        Object::EndpointSlice(slice) => {
            complete_namespace(&mut slice.metadata);
            for port in &mut slice.ports {
                port.name.get_or_insert_default();
            }
        }
        Object::Node(node) => node.metadata.namespace = Arc::default(),
        Object::ServiceCidr(cidr) => cidr.metadata.namespace = Arc::default(),
    }
    validate::check(object, own)
}

fn complete_namespace(metadata: &mut api::Metadata) {
    metadata.namespace = namespace(&metadata.namespace).into();
}

/// Fills in `clusterIP` from `clusterIPs` or vice versa, and the families from the addresses.
fn complete_cluster_ips(spec: &mut api::ServiceSpec) {
    if spec.cluster_ip.is_empty() {
        spec.cluster_ip = spec.cluster_ips.first().cloned().unwrap_or_default();
    }
    if spec.cluster_ips.is_empty() && !spec.cluster_ip.is_empty() {
        spec.cluster_ips.push(spec.cluster_ip.clone());
    }
    if spec.ip_families.is_empty() {
        let families = spec.cluster_ips.iter().filter_map(|text| parse_ip(text));
        spec.ip_families = families.map(|ip| Family::of(ip).to_string()).collect();
    }
}
