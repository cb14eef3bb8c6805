//! What an API server would do to an object before anyone sees it: fill in defaults, refuse nonsense.
//!
//! The proxy trusts what the API server has let through. With a folder of manifests there is none, so this stands in
//! for it, as far as a proxy can tell right from wrong. Messages are worded like the API server's.

use std::collections::HashSet;
use std::net::IpAddr;

use model::address::{Family, parse_cidr, parse_ip};
use model::api;
use model::names::Protocol;

use crate::manifest::Object;

/// Objects that name no namespace are in this one.
pub fn namespace(name: &str) -> &str {
    if name.is_empty() { "default" } else { name }
}

/// Completes the object, or says what is wrong with it.
pub fn admit(object: &mut Object) -> Result<(), String> {
    match object {
        Object::Service(service) => {
            admit_metadata(&mut service.metadata, true)?;
            admit_service(&mut service.spec)
        }
        Object::EndpointSlice(slice) => {
            admit_metadata(&mut slice.metadata, true)?;
            admit_slice(slice)
        }
        Object::Node(node) => {
            admit_metadata(&mut node.metadata, false)?;
            each("spec.podCIDRs", &node.spec.pod_cidrs, is_cidr)
        }
        Object::ServiceCidr(cidr) => {
            admit_metadata(&mut cidr.metadata, false)?;
            each("spec.cidrs", &cidr.spec.cidrs, is_cidr)
        }
    }
}

fn admit_metadata(metadata: &mut api::Metadata, namespaced: bool) -> Result<(), String> {
    metadata.namespace = if namespaced { namespace(&metadata.namespace).into() } else { String::new() };
    if metadata.name.is_empty() {
        return Err("metadata.name: Required value: name is required".into());
    }
    for (field, value) in [("metadata.name", &metadata.name), ("metadata.namespace", &metadata.namespace)] {
        // Not the whole grammar of names, only what would make one name look like another in rules and logs.
        let odd = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        require(!value.contains(odd) && value.len() <= 253, field, value, "not a valid name")?;
    }
    Ok(())
}

fn admit_service(spec: &mut api::ServiceSpec) -> Result<(), String> {
    one_of("spec.type", &spec.r#type, &["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"])?;
    one_of("spec.sessionAffinity", &spec.session_affinity, &["None", "ClientIP"])?;
    one_of("spec.internalTrafficPolicy", &spec.internal_traffic_policy, &["Cluster", "Local"])?;
    one_of("spec.externalTrafficPolicy", &spec.external_traffic_policy, &["Cluster", "Local"])?;
    if spec.r#type.as_deref() == Some("ExternalName") {
        return Ok(());
    }
    complete_cluster_ips(spec);
    if spec.cluster_ip.is_empty() {
        return Err("spec.clusterIP: Required value: there is no API server to allocate one".into());
    }
    let headless = spec.cluster_ip == "None";
    if !headless {
        each("spec.clusterIPs", &spec.cluster_ips, is_ip)?;
        require(is_ip(&spec.cluster_ip).is_ok(), "spec.clusterIP", &spec.cluster_ip, NOT_AN_IP)?;
        require(!spec.ports.is_empty(), "spec.ports", "[]", "at least one port is needed")?;
    }
    each("spec.externalIPs", &spec.external_ips, is_usable_ip)?;
    each("spec.loadBalancerSourceRanges", &spec.load_balancer_source_ranges, |text| is_cidr(text.trim()))?;
    admit_service_ports(&spec.ports)?;
    if let Some(port) = spec.health_check_node_port {
        port_number("spec.healthCheckNodePort", port, 0)?;
    }
    let affinity = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    if let Some(seconds) = affinity.and_then(|config| config.timeout_seconds) {
        let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
        require(
            (1..=86_400).contains(&seconds),
            field,
            seconds,
            "must be greater than 0 and less than or equal to 86400",
        )?;
    }
    Ok(())
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

fn admit_service_ports(ports: &[api::ServicePort]) -> Result<(), String> {
    let mut seen = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        one_of(&format!("{path}.protocol"), &port.protocol, &["TCP", "UDP", "SCTP"])?;
        port_number(&format!("{path}.port"), port.port, 1)?;
        port_number(&format!("{path}.nodePort"), port.node_port.unwrap_or(0), 0)?;
        require(
            ports.len() == 1 || !port.name.is_empty(),
            &format!("{path}.name"),
            "",
            "several ports need a name each",
        )?;
        let first = seen.insert((&port.name, Protocol::from_api(port.protocol.as_deref())));
        require(first, &format!("{path}.name"), &port.name, "another port has this name and protocol")?;
    }
    Ok(())
}

fn admit_slice(slice: &mut api::EndpointSlice) -> Result<(), String> {
    let service = slice.metadata.labels.service_name.as_deref().unwrap_or("");
    if service.is_empty() {
        return Err(
            "metadata.labels[kubernetes.io/service-name]: Required value: names the Service it is for".into(),
        );
    }
    let address_type = Some(slice.address_type.clone());
    one_of("addressType", &address_type, &["IPv4", "IPv6", "FQDN"])?;
    let Some(family) = Family::from_api(&slice.address_type) else { return Ok(()) };
    for (index, port) in slice.ports.iter_mut().enumerate() {
        let path = format!("ports[{index}]");
        one_of(&format!("{path}.protocol"), &port.protocol, &["TCP", "UDP", "SCTP"])?;
        port_number(&format!("{path}.port"), port.port.unwrap_or(0), 1)?;
        port.name.get_or_insert_default();
    }
    for (index, endpoint) in slice.endpoints.iter().enumerate() {
        let path = format!("endpoints[{index}].addresses");
        if endpoint.addresses.is_empty() {
            return Err(format!("{path}: Required value: must contain at least 1 endpoint address"));
        }
        each(&path, &endpoint.addresses, |text| {
            is_usable_ip(text)?;
            let matches = parse_ip(text).map(Family::of) == Some(family);
            if matches { Ok(()) } else { Err("not of the slice's addressType") }
        })?;
    }
    Ok(())
}

const NOT_AN_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

fn is_ip(text: &str) -> Result<(), &'static str> {
    parse_ip(text).map(|_| ()).ok_or(NOT_AN_IP)
}

/// Addresses that mean this very host, or no host in particular, can't be reached through a Service.
fn is_usable_ip(text: &str) -> Result<(), &'static str> {
    let ip = parse_ip(text).ok_or(NOT_AN_IP)?;
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if ip.is_unspecified() {
        Err("may not be unspecified (0.0.0.0 or ::)")
    } else if ip.is_loopback() {
        Err("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    } else if link_local {
        Err("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    } else if ip.is_multicast() {
        Err("may not be in the multicast range (224.0.0.0/4, ff00::/8)")
    } else {
        Ok(())
    }
}

fn is_cidr(text: &str) -> Result<(), &'static str> {
    parse_cidr(text).map(|_| ()).ok_or("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
}

fn each(
    field: &str,
    texts: &[String],
    check: impl Fn(&str) -> Result<(), &'static str>,
) -> Result<(), String> {
    for (index, text) in texts.iter().enumerate() {
        check(text).map_err(|wrong| format!("{field}[{index}]: Invalid value: {text:?}: {wrong}"))?;
    }
    Ok(())
}

fn one_of(field: &str, value: &Option<String>, known: &[&str]) -> Result<(), String> {
    match value.as_deref() {
        None | Some("") if field != "addressType" => Ok(()),
        Some(value) if known.contains(&value) => Ok(()),
        value => {
            let known: Vec<_> = known.iter().map(|known| format!("{known:?}")).collect();
            let value = value.unwrap_or("");
            Err(format!("{field}: Unsupported value: {value:?}: supported values: {}", known.join(", ")))
        }
    }
}

fn port_number(field: &str, number: i64, least: i64) -> Result<(), String> {
    let detail = "must be between 1 and 65535, inclusive";
    require((least..=65_535).contains(&number), field, number, detail)
}

fn require(holds: bool, field: &str, value: impl std::fmt::Debug, detail: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{field}: Invalid value: {value:?}: {detail}")) }
}
