//! What an API server would do to an object before anyone sees it: fill in defaults, refuse what is not valid.
//!
//! With a folder of manifests there is no API server, so this stands in for it, as far as a proxy uses an object.

use std::net::IpAddr;

use model::address::{Family, parse_ip};
use model::api;

use crate::manifest::Object;
use crate::validate;

/// Objects that name no namespace are in this one.
pub fn namespace(name: &str) -> &str {
    if name.is_empty() { "default" } else { name }
}

/// Completes the object, or says what is wrong with it. `own` are the addresses of this node.
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
        Object::Node(node) => node.metadata.namespace.clear(),
        Object::ServiceCidr(cidr) => cidr.metadata.namespace.clear(),
    }
    validate::check(object, own)
}

fn complete_namespace(metadata: &mut api::Metadata) {
    metadata.namespace = namespace(&metadata.namespace).into();
}

/// Either way of writing cluster IPs gives both, and the families follow from the addresses.
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
