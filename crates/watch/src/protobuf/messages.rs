//! The messages that we read and the numbers of their fields, by the API's own descriptions:
//!
//! | messages | file |
//! | --- | --- |
//! | metadata, `Status` | `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto` |
//! | of Services and Nodes | `k8s.io/api/core/v1/generated.proto` |
//! | of EndpointSlices | `k8s.io/api/discovery/v1/generated.proto` |
//! | of ServiceCIDRs | `k8s.io/api/networking/v1/generated.proto` |

use jiff::Timestamp;
use model::api::{
    Annotations, ClientIpConfig, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, Hint,
    Labels, LoadBalancerIngress, LoadBalancerStatus, Metadata, Node, NodeAddress, NodeSpec, NodeStatus,
    Service, ServiceCidr, ServiceCidrSpec, ServicePort, ServiceSpec, ServiceStatus, SessionAffinityConfig,
    SliceEndpoint, Taint,
};
use model::hashing::HASH_ANNOTATION;
use model::weights::WEIGHT_ANNOTATION;

use super::{FromProtobuf, Malformed, Value, fields};
use crate::meta::{AnyObject, Identity, ListMeta, Marks, Status, StatusDetails};

/// `field = number` decodes a field by its type; `via` names a function for those that need more.
macro_rules! messages {
    ($($message:ty { $($field:ident = $number:literal $(via $merge:ident)?),+ $(,)? })+) => {
        $(impl FromProtobuf for $message {
            fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
                for field in fields(value.bytes()?) {
                    match field? {
                        $(($number, value) => messages!(self.$field, value $(, $merge)?)?,)+
                        _ => {}
                    }
                }
                Ok(())
            }
        })+
    };
    ($field:expr, $value:ident) => { $field.merge($value) };
    ($field:expr, $value:ident, $merge:ident) => { $merge(&mut $field, $value) };
}

messages! {
    Metadata {
        name = 1,
        namespace = 3,
        creation_timestamp = 8 via time,
        deletion_timestamp = 9 via time,
        labels = 11,
        annotations = 12,
    }
    AnyObject { metadata = 1 }
    Identity { name = 1, namespace = 3, resource_version = 6, annotations = 12 }
    ListMeta { resource_version = 2, r#continue = 3 }
    Status { message = 3, reason = 4, details = 5, code = 6 }
    StatusDetails { retry_after_seconds = 5 via unless_zero }

    Service { metadata = 1, spec = 2, status = 3 }
    ServiceSpec {
        ports = 1,
        cluster_ip = 3,
        r#type = 4 via unless_zero,
        external_ips = 5,
        session_affinity = 7 via unless_zero,
        load_balancer_source_ranges = 9,
        external_traffic_policy = 11 via unless_zero,
        health_check_node_port = 12 via unless_zero,
        session_affinity_config = 14,
        cluster_ips = 18,
        ip_families = 19,
        internal_traffic_policy = 22,
    }
    ServicePort { name = 1, protocol = 2 via unless_zero, port = 3, node_port = 5 via unless_zero }
    SessionAffinityConfig { client_ip = 1 }
    ClientIpConfig { timeout_seconds = 1 }
    ServiceStatus { load_balancer = 1 }
    LoadBalancerStatus { ingress = 1 }
    LoadBalancerIngress { ip = 1, ip_mode = 3 }

    EndpointSlice { metadata = 1, endpoints = 2, ports = 3, address_type = 4 }
    SliceEndpoint { addresses = 1, conditions = 2, node_name = 6, hints = 8 }
    EndpointConditions { ready = 1, serving = 2, terminating = 3 }
    EndpointHints { for_zones = 1, for_nodes = 2 }
    Hint { name = 1 }
    EndpointPort { name = 1, protocol = 2, port = 3 }

    Node { metadata = 1, spec = 2, status = 3 }
    NodeSpec { taints = 5, pod_cidrs = 7 }
    Taint { key = 1 }
    NodeStatus { addresses = 5 }
    NodeAddress { r#type = 1, address = 2 }

    ServiceCidr { metadata = 1, spec = 2 }
    ServiceCidrSpec { cidrs = 1 }
}

/// A field that is no pointer in Go: the API server encodes its zero, which JSON omits.
fn unless_zero<T: FromProtobuf + PartialEq>(
    field: &mut Option<T>,
    value: Value<'_>,
) -> Result<(), Malformed> {
    let mut taken = T::default();
    taken.merge(value)?;
    *field = (taken != T::default()).then_some(taken);
    Ok(())
}

/// A `Time`, in the format of JSON, which has no fractions of a second. Go's zero is an empty message, and `null` in JSON.
fn time(field: &mut Option<String>, value: Value<'_>) -> Result<(), Malformed> {
    *field = None;
    for part in fields(value.bytes()?) {
        if let (1, seconds) = part? {
            let time = Timestamp::from_second(seconds.integer()?);
            *field = Some(time.map_err(|_| Malformed("a time is out of range"))?.to_string());
        }
    }
    Ok(())
}

impl FromProtobuf for Labels {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        let (key, value) = value.entry()?;
        let field = match key {
            "kubernetes.io/service-name" => &mut self.service_name,
            "service.kubernetes.io/service-proxy-name" => &mut self.service_proxy_name,
            "service.kubernetes.io/headless" => &mut self.headless,
            "topology.kubernetes.io/zone" => &mut self.zone,
            _ => return Ok(()),
        };
        *field = Some(value.to_owned());
        Ok(())
    }
}

impl FromProtobuf for Annotations {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        let (key, value) = value.entry()?;
        let field = match key {
            "endpoints.kubernetes.io/last-change-trigger-time" => &mut self.last_change_trigger_time,
            WEIGHT_ANNOTATION => &mut self.weight,
            HASH_ANNOTATION => &mut self.hash,
            _ => return Ok(()),
        };
        *field = Some(value.to_owned());
        Ok(())
    }
}

impl FromProtobuf for Marks {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        if let ("k8s.io/initial-events-end", mark) = value.entry()? {
            self.initial_events_end = Some(mark.to_owned());
        }
        Ok(())
    }
}
