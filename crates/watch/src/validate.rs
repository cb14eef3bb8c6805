//! Validates objects of manifests like an API server, with its error messages.
//!
//! The proxy trusts names, ports and addresses that an API server has validated: names become comments of rules, and all
//! traffic to a cluster IP is redirected. The rules are those of Kubernetes v1.36 for new objects, limited to fields that the
//! proxy uses, with two exceptions:
//!
//! * Addresses may have leading zeros and CIDRs host bits, as in objects that older releases stored.
//! * A cluster IP must be one that an API server could have allocated. An API server allocates cluster IPs from the service
//!   CIDR. In a manifest a cluster IP may be any address, and the node's own address or 127.0.0.1 would cut the node off.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::net::IpAddr;

use model::address::{Family, parse_cidr, parse_ip};
use model::api;
use model::names::Protocol;

use crate::manifest::Object;

/// Returns the first error of an object whose defaults have been filled in. `own` are the addresses of this node.
pub fn check(object: &Object, own: &[IpAddr]) -> Result<(), String> {
    match object {
        Object::Service(service) => {
            check_metadata(&service.metadata, &LABEL)?;
            check_spec(&service.spec, own)?;
            check_ingress(service)
        }
        Object::EndpointSlice(slice) => {
            check_metadata(&slice.metadata, &SUBDOMAIN)?;
            check_slice(slice)
        }
        Object::Node(node) => {
            check_metadata(&node.metadata, &SUBDOMAIN)?;
            check_cidrs("spec.podCIDRs", &node.spec.pod_cidrs)
        }
        Object::ServiceCidr(cidr) => {
            check_metadata(&cidr.metadata, &SUBDOMAIN)?;
            check_cidrs("spec.cidrs", &cidr.spec.cidrs)?;
            each("spec.cidrs", &cidr.spec.cidrs, |text| {
                let contains_own =
                    parse_cidr(text).is_some_and(|cidr| own.iter().any(|ip| cidr.contains(ip)));
                if contains_own { Err(OWN_ADDRESS) } else { Ok(()) }
            })
        }
    }
}

/// The grammar of a kind of names.
struct Grammar {
    longest: usize,
    accepts: fn(&str) -> bool,
    detail: &'static str,
}

const LABEL: Grammar = Grammar {
    longest: 63,
    accepts: is_label,
    detail: "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
};

const SUBDOMAIN: Grammar = Grammar {
    longest: 253,
    accepts: |text| text.split('.').all(is_label),
    detail: "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
};

const LABEL_VALUE: Grammar = Grammar {
    longest: 63,
    accepts: |text| text.is_empty() || is_bounded(text, |byte| byte.is_ascii_alphanumeric(), b"-_."),
    detail: "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
};

impl Grammar {
    fn check(&self, text: &str) -> Result<(), String> {
        if text.len() > self.longest {
            Err(format!("must be no more than {} bytes", self.longest))
        } else if !(self.accepts)(text) {
            Err(self.detail.into())
        } else {
            Ok(())
        }
    }

    fn check_field(&self, field: &str, text: &str) -> Result<(), String> {
        self.check(text).or_else(|detail| invalid(field, text, &detail))
    }
}

fn is_label(text: &str) -> bool {
    is_bounded(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"-")
}

/// Whether the text consists of these bytes, and neither begins nor ends with `inner` ones.
fn is_bounded(text: &str, outer: fn(&u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| outer(byte) || inner.contains(byte))
        && bytes.first().is_some_and(outer)
        && bytes.last().is_some_and(outer)
}

fn check_metadata(metadata: &api::Metadata, names: &Grammar) -> Result<(), String> {
    let api::Metadata { name, namespace, labels, .. } = metadata;
    if name.is_empty() {
        return required("metadata.name", "name or generateName is required");
    }
    names.check_field("metadata.name", name)?;
    if !namespace.is_empty() {
        LABEL.check_field("metadata.namespace", namespace)?;
    }
    let api::Labels { service_name, service_proxy_name, headless, zone } = labels;
    let values = [service_name, service_proxy_name, headless, zone];
    values.into_iter().flatten().try_for_each(|value| LABEL_VALUE.check_field("metadata.labels", value))
}

fn check_spec(spec: &api::ServiceSpec, own: &[IpAddr]) -> Result<(), String> {
    one_of("spec.type", &spec.r#type, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"])?;
    one_of("spec.sessionAffinity", &spec.session_affinity, &["ClientIP", "None"])?;
    one_of("spec.internalTrafficPolicy", &spec.internal_traffic_policy, &["Cluster", "Local"])?;
    one_of("spec.externalTrafficPolicy", &spec.external_traffic_policy, &["Cluster", "Local"])?;
    let kind = spec.r#type.as_deref().filter(|kind| !kind.is_empty()).unwrap_or("ClusterIP");
    if kind == "ExternalName" {
        if !spec.cluster_ips.is_empty() {
            return forbidden("spec.clusterIPs", "may not be set for ExternalName services");
        }
    } else {
        check_cluster_ips(spec, kind, own)?;
    }
    check_ports(&spec.ports, kind)?;
    each("spec.externalIPs", &spec.external_ips, check_endpoint_ip)?;
    each("spec.loadBalancerSourceRanges", &spec.load_balancer_source_ranges, |text| {
        parse_cidr(text.trim()).map(|_| ()).ok_or(NOT_A_CIDR)
    })?;
    if let Some(port) = spec.health_check_node_port.filter(|port| *port != 0) {
        check_port("spec.healthCheckNodePort", port)?;
    }
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    match config.and_then(|config| config.timeout_seconds) {
        Some(seconds)
            if spec.session_affinity.as_deref() == Some("ClientIP") && !(1..=86_400).contains(&seconds) =>
        {
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            invalid(field, seconds, "must be greater than 0 and less than or equal to 86400")
        }
        _ => Ok(()),
    }
}

fn check_cluster_ips(spec: &api::ServiceSpec, kind: &str, own: &[IpAddr]) -> Result<(), String> {
    let api::ServiceSpec { cluster_ip, cluster_ips, ip_families, .. } = spec;
    let field = "spec.clusterIPs";
    if cluster_ip.is_empty() {
        return required("spec.clusterIP", "there is no API server to allocate one");
    }
    if cluster_ips.first() != Some(cluster_ip) {
        return invalid(field, cluster_ips, "first value must match `clusterIP`");
    }
    if cluster_ip == "None" {
        if cluster_ips.len() > 1 {
            return invalid(field, cluster_ips, "'None' must be the first and only value");
        }
        return match kind {
            "LoadBalancer" | "NodePort" => {
                let detail = format!("may not be set to 'None' for {kind} services");
                invalid("spec.clusterIPs[0]", cluster_ip, &detail)
            }
            _ => Ok(()),
        };
    }
    if spec.ports.is_empty() {
        return required("spec.ports", "");
    }
    each(field, cluster_ips, |text| check_cluster_ip(text, own))?;
    if cluster_ips.len() > 2 {
        return invalid(field, cluster_ips, "may only hold up to 2 values");
    }
    let families: Vec<String> =
        cluster_ips.iter().filter_map(|text| parse_ip(text)).map(|ip| Family::of(ip).to_string()).collect();
    if matches!(&*families, [first, second] if first == second) {
        return invalid(field, cluster_ips, "may specify no more than one IP for each IP family");
    }
    let mut seen = HashSet::new();
    for (index, family) in ip_families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        one_of(&field, &Some(family.clone()), &["IPv4", "IPv6"])?;
        first_seen(&mut seen, family, &field, family)?;
    }
    for (index, ((ip, family), expected)) in cluster_ips.iter().zip(&families).zip(ip_families).enumerate() {
        if family != expected {
            let detail = format!("expected an {expected} value as indicated by `ipFamilies[{index}]`");
            return invalid(&format!("{field}[{index}]"), ip, &detail);
        }
    }
    Ok(())
}

fn check_ports(ports: &[api::ServicePort], kind: &str) -> Result<(), String> {
    let (mut names, mut numbers, mut node_ports) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = format!("{path}.name");
        if !port.name.is_empty() {
            LABEL.check_field(&name, &port.name)?;
            first_seen(&mut names, &port.name, &name, &port.name)?;
        } else if ports.len() > 1 {
            return required(&name, "");
        }
        check_port(&format!("{path}.port"), port.port)?;
        let protocol = check_protocol(&path, &port.protocol)?;
        first_seen(&mut numbers, (protocol, port.port), &path, format_args!("{}/{protocol}", port.port))?;
        let Some(node_port) = port.node_port.filter(|port| *port != 0) else { continue };
        let path = format!("{path}.nodePort");
        check_port(&path, node_port)?;
        if kind == "ClusterIP" {
            return forbidden(&path, "may not be used when `type` is 'ClusterIP'");
        }
        first_seen(&mut node_ports, (protocol, node_port), &path, node_port)?;
    }
    Ok(())
}

/// For Services of any type: the API server keeps the status when the type changes, and upstream serves it.
fn check_ingress(service: &api::Service) -> Result<(), String> {
    let field = "status.loadBalancer.ingress";
    let ingress = &service.status.load_balancer.ingress;
    for (index, ingress) in ingress.iter().enumerate() {
        if !ingress.ip.is_empty() && parse_ip(&ingress.ip).is_none() {
            return invalid(&format!("{field}[{index}].ip"), &ingress.ip, NOT_AN_IP);
        }
        one_of(&format!("{field}[{index}].ipMode"), &ingress.ip_mode, &["Proxy", "VIP"])?;
    }
    Ok(())
}

/// Like the API server, this accepts a slice without a Service, a port without a number, and any port number. The proxy
/// ignores those that it cannot use.
fn check_slice(slice: &api::EndpointSlice) -> Result<(), String> {
    if slice.address_type.is_empty() {
        return required("addressType", "");
    }
    one_of("addressType", &Some(slice.address_type.clone()), &["FQDN", "IPv4", "IPv6"])?;
    at_most(20_000, "ports", slice.ports.len())?;
    let mut names = HashSet::new();
    for (index, port) in slice.ports.iter().enumerate() {
        let path = format!("ports[{index}]");
        let name = port.name.as_deref().unwrap_or("");
        if !name.is_empty() {
            LABEL.check_field(&format!("{path}.name"), name)?;
        }
        first_seen(&mut names, name, &format!("{path}.name"), name)?;
        check_protocol(&path, &port.protocol)?;
    }
    at_most(1_000, "endpoints", slice.endpoints.len())?;
    for (index, endpoint) in slice.endpoints.iter().enumerate() {
        check_endpoint(&format!("endpoints[{index}]"), endpoint, Family::from_api(&slice.address_type))?;
    }
    Ok(())
}

/// The family is `None` if the addresses are domain names.
fn check_endpoint(path: &str, endpoint: &api::SliceEndpoint, family: Option<Family>) -> Result<(), String> {
    let addresses = format!("{path}.addresses");
    if endpoint.addresses.is_empty() {
        return required(&addresses, "must contain at least 1 address");
    }
    at_most(100, &addresses, endpoint.addresses.len())?;
    each(&addresses, &endpoint.addresses, |text| match family {
        Some(family) => {
            check_endpoint_ip(text)?;
            match family {
                _ if parse_ip(text).map(Family::of) == Some(family) => Ok(()),
                Family::V4 => Err("must be an IPv4 address"),
                Family::V6 => Err("must be an IPv6 address"),
            }
        }
        None if (SUBDOMAIN.accepts)(text.strip_suffix('.').unwrap_or(text)) => Ok(()),
        None => Err(SUBDOMAIN.detail),
    })?;
    if let Some(node) = &endpoint.node_name {
        SUBDOMAIN.check_field(&format!("{path}.nodeName"), node)?;
    }
    let api::EndpointHints { for_zones, for_nodes } = &endpoint.hints;
    for (field, hints, grammar) in
        [("forZones", for_zones, &LABEL_VALUE), ("forNodes", for_nodes, &SUBDOMAIN)]
    {
        let path = format!("{path}.hints.{field}");
        at_most(8, &path, hints.len())?;
        let mut seen = HashSet::new();
        for (index, hint) in hints.iter().enumerate() {
            let path = format!("{path}[{index}].name");
            first_seen(&mut seen, &hint.name, &path, &hint.name)?;
            grammar.check_field(&path, &hint.name)?;
        }
    }
    Ok(())
}

const NOT_AN_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NOT_A_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const UNSPECIFIED: &str = "may not be unspecified (0.0.0.0 or ::)";
const LOOPBACK: &str = "may not be in the loopback range (127.0.0.0/8, ::1/128)";
const LINK_LOCAL: &str = "may not be in the link-local range (169.254.0.0/16, fe80::/10)";
const LINK_LOCAL_MULTICAST: &str = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)";
const MULTICAST: &str = "may not be in the multicast range (224.0.0.0/4, ff00::/8)";
const BROADCAST: &str = "may not be the broadcast address (255.255.255.255)";
const OWN_ADDRESS: &str = "takes an address of this node, which could not be reached any more";

/// For addresses of endpoints, and external IPs.
fn check_endpoint_ip(text: &str) -> Result<(), &'static str> {
    let ip = parse_ip(text).ok_or(NOT_AN_IP)?;
    let (is_link_local, is_link_local_multicast) = match ip {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.octets().starts_with(&[224, 0, 0])),
        IpAddr::V6(ip) => (
            ip.is_unicast_link_local(),
            ip.is_multicast() && ip.segments().first().is_some_and(|s| s & 0xf == 2),
        ),
    };
    let wrong = [
        (ip.is_unspecified(), UNSPECIFIED),
        (ip.is_loopback(), LOOPBACK),
        (is_link_local, LINK_LOCAL),
        (is_link_local_multicast, LINK_LOCAL_MULTICAST),
    ];
    wrong.into_iter().find(|(is_wrong, _)| *is_wrong).map_or(Ok(()), |(_, detail)| Err(detail))
}

fn check_cluster_ip(text: &str, own: &[IpAddr]) -> Result<(), &'static str> {
    check_endpoint_ip(text)?;
    let ip = parse_ip(text).ok_or(NOT_AN_IP)?;
    if ip.is_multicast() {
        Err(MULTICAST)
    } else if ip == IpAddr::from([255; 4]) {
        Err(BROADCAST)
    } else if own.contains(&ip) {
        Err(OWN_ADDRESS)
    } else {
        Ok(())
    }
}

/// CIDRs of a node or a cluster: at most one per family.
fn check_cidrs(field: &str, texts: &[String]) -> Result<(), String> {
    each(field, texts, |text| parse_cidr(text).map(|_| ()).ok_or(NOT_A_CIDR))?;
    let families: Vec<Family> =
        texts.iter().filter_map(|text| parse_cidr(text)).map(Family::of_net).collect();
    match *families {
        [] | [_] | [Family::V4, Family::V6] | [Family::V6, Family::V4] => Ok(()),
        _ => invalid(field, texts, "may specify no more than one CIDR for each IP family"),
    }
}

fn check_protocol(path: &str, protocol: &Option<String>) -> Result<Protocol, String> {
    one_of(&format!("{path}.protocol"), protocol, &["SCTP", "TCP", "UDP"])?;
    Ok(Protocol::from_api(protocol.as_deref()).unwrap_or(Protocol::Tcp))
}

fn check_port(field: &str, number: i64) -> Result<(), String> {
    if (1..=65_535).contains(&number) {
        return Ok(());
    }
    invalid(field, number, "must be between 1 and 65535, inclusive")
}

fn each(
    field: &str,
    texts: &[String],
    check: impl Fn(&str) -> Result<(), &'static str>,
) -> Result<(), String> {
    texts.iter().enumerate().try_for_each(|(index, text)| {
        check(text).or_else(|detail| invalid(&format!("{field}[{index}]"), text, detail))
    })
}

/// An absent or empty value is valid, because there is a default.
fn one_of(field: &str, value: &Option<String>, known: &[&str]) -> Result<(), String> {
    match value.as_deref() {
        None | Some("") => Ok(()),
        Some(value) if known.contains(&value) => Ok(()),
        Some(value) => {
            let known: Vec<_> = known.iter().map(|known| format!("{known:?}")).collect();
            Err(format!("{field}: Unsupported value: {value:?}: supported values: {}", known.join(", ")))
        }
    }
}

fn first_seen<T: Eq + Hash>(
    seen: &mut HashSet<T>,
    key: T,
    field: &str,
    value: impl Debug,
) -> Result<(), String> {
    if seen.insert(key) { Ok(()) } else { Err(format!("{field}: Duplicate value: {value:?}")) }
}

fn at_most(most: usize, field: &str, count: usize) -> Result<(), String> {
    if count <= most {
        return Ok(());
    }
    Err(format!("{field}: Too many: {count}: must have at most {most} items"))
}

fn invalid(field: &str, value: impl Debug, detail: &str) -> Result<(), String> {
    Err(format!("{field}: Invalid value: {value:?}: {detail}"))
}

fn required(field: &str, detail: &str) -> Result<(), String> {
    let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
    Err(format!("{field}: Required value{detail}"))
}

fn forbidden(field: &str, detail: &str) -> Result<(), String> {
    Err(format!("{field}: Forbidden: {detail}"))
}
