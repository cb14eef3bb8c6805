//! The API fields that the model reads, as they arrive from the API server or from a manifest.
//!
//! Decoding checks JSON types only. The model copies what it needs and drops the object. Go encodes a nil slice or map as
//! `null`, so every field accepts `null` for its default.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use crate::names::NamespacedName;

/// The identity of an object, and the labels and annotations that the model reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Shared, since each family keys its events with it.
    #[serde(deserialize_with = "nullable")]
    pub name: Arc<str>,
    #[serde(deserialize_with = "nullable")]
    pub namespace: Arc<str>,
    #[serde(deserialize_with = "nullable")]
    pub labels: Labels,
    #[serde(deserialize_with = "nullable")]
    pub annotations: Annotations,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
}

impl Metadata {
    pub fn full_name(&self) -> NamespacedName {
        NamespacedName { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

impl fmt::Display for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// The Service that a slice belongs to.
    #[serde(rename = "kubernetes.io/service-name")]
    pub service_name: Option<String>,
    /// Set on Services that another proxy serves.
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub service_proxy_name: Option<String>,
    /// Present on slices of headless Services; its value has no meaning.
    #[serde(rename = "service.kubernetes.io/headless")]
    pub headless: Option<String>,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub zone: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// The time of the change to a pod or Service that made the controller write this slice.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub last_change_trigger_time: Option<String>,
    /// Of a slice: see [`crate::weights`].
    #[serde(rename = "service.sluice.io/weight")]
    pub weight: Option<String>,
    /// Of a Service: see [`crate::hashing`].
    #[serde(rename = "service.sluice.io/hash")]
    pub hash: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: ServiceStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    pub r#type: Option<String>,
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub cluster_ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub ip_families: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ServicePort>,
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    pub external_ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub load_balancer_source_ranges: Vec<String>,
    pub external_traffic_policy: Option<String>,
    pub internal_traffic_policy: Option<String>,
    pub health_check_node_port: Option<i64>,
    pub session_affinity: Option<String>,
    pub session_affinity_config: Option<SessionAffinityConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    pub protocol: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub port: i64,
    pub node_port: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    pub timeout_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    #[serde(deserialize_with = "nullable")]
    pub load_balancer: LoadBalancerStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<LoadBalancerIngress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadBalancerIngress {
    #[serde(deserialize_with = "nullable")]
    pub ip: String,
    pub ip_mode: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub address_type: String,
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<SliceEndpoint>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<EndpointPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SliceEndpoint {
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub conditions: EndpointConditions,
    pub node_name: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub hints: EndpointHints,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointHints {
    #[serde(deserialize_with = "nullable")]
    pub for_zones: Vec<Hint>,
    #[serde(deserialize_with = "nullable")]
    pub for_nodes: Vec<Hint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Hint {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// A port without a name is invalid; an empty name is that of the unnamed port.
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDRs", deserialize_with = "nullable")]
    pub pod_cidrs: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    #[serde(deserialize_with = "nullable")]
    pub key: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(deserialize_with = "nullable")]
    pub r#type: String,
    #[serde(deserialize_with = "nullable")]
    pub address: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceCidrSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    #[serde(deserialize_with = "nullable")]
    pub cidrs: Vec<String>,
}

fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_means_the_same_as_an_absent_field() {
        let slice: EndpointSlice = serde_json::from_str(
            r#"{"metadata": {"name": "a", "labels": null}, "addressType": "IPv4", "endpoints": null,
                "ports": [{"name": "", "port": 80, "appProtocol": null}]}"#,
        )
        .unwrap();
        assert_eq!(slice.endpoints, []);
        assert_eq!(slice.ports, [EndpointPort { name: Some(String::new()), protocol: None, port: Some(80) }]);
    }
}
