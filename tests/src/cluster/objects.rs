//! API objects as JSON. All Services are dual-stack and serve TCP and UDP.

use std::net::IpAddr;

use model::address::Family;
use serde_json::{Value, json};

use testkit::lab::{Place, TARGET};
use testkit::network::node_ip;

/// A Service of type ClusterIP without a selector.
pub fn service(name: &str) -> Value {
    let port = |name, protocol| json!({"name": name, "protocol": protocol, "port": 80, "targetPort": TARGET});
    json!({
        "metadata": {"name": name},
        "spec": {"ipFamilyPolicy": "RequireDualStack", "ports": [port("tcp", "TCP"), port("udp", "UDP")]},
    })
}

/// The slice of a Service in one family.
pub fn slice(service: &str, family: Family, endpoints: &[Value]) -> Value {
    let port = |name, protocol| json!({"name": name, "protocol": protocol, "port": TARGET});
    json!({
        "metadata": {
            "name": slice_name(service, family),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": family.to_string(),
        "ports": [port("tcp", "TCP"), port("udp", "UDP")],
        "endpoints": endpoints,
    })
}

pub fn slice_name(service: &str, family: Family) -> String {
    format!("{service}-{}", family.to_string().to_lowercase())
}

pub fn endpoint(ip: IpAddr) -> Value {
    json!({"addresses": [ip], "conditions": {"ready": true}})
}

/// A Node as its kubelet registers it.
pub fn node(name: &str) -> Value {
    let addresses = Family::BOTH.map(|family| json!({"type": "InternalIP", "address": node_ip(family)}));
    json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00:10:244::/64"]},
        "status": {"addresses": addresses},
    })
}

/// A Pod that is bound to `node`, with the label `app`.
pub fn pod(name: &str, app: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "web", "image": "web"}]},
    })
}

/// The status that kubelet reports for a Pod that is running and ready.
pub fn ready(place: Place) -> Value {
    let ips = Family::BOTH.map(|family| place.ip(family));
    json!({"status": {
        "phase": "Running",
        "podIP": ips[0],
        "podIPs": ips.map(|ip| json!({"ip": ip})),
        "conditions": [{"type": "Ready", "status": "True"}],
    }})
}

/// Merges `fields` into the object, recursively.
pub fn with(mut object: Value, fields: Value) -> Value {
    merge(&mut object, fields);
    object
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
