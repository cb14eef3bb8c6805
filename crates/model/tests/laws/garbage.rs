//! Objects that no API server would accept.

use model::api;
use model::event::{Event, Kind};
use model::names::NamespacedName;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

pub fn event() -> impl Strategy<Value = Event> {
    let kind = || select(&[Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr]);
    prop_oneof![
        4 => service().prop_map(|service| Event::ServiceApplied(Box::new(service))),
        6 => slice().prop_map(|slice| Event::SliceApplied(Box::new(slice))),
        1 => (metadata(), vec(text(), 0..4)).prop_map(|(metadata, cidrs)| {
            Event::ServiceCidrApplied(Box::new(api::ServiceCidr { metadata, spec: api::ServiceCidrSpec { cidrs } }))
        }),
        1 => metadata().prop_map(|metadata| {
            Event::NodeApplied(Box::new(api::Node { metadata, ..Default::default() }))
        }),
        1 => kind().prop_map(Event::Listing),
        1 => kind().prop_map(Event::Listed),
        1 => (name(), name()).prop_map(|(namespace, name)| Event::ServiceDeleted(NamespacedName::new(&namespace, &name))),
        1 => (name(), name()).prop_map(|(namespace, name)| Event::SliceDeleted(NamespacedName::new(&namespace, &name))),
        1 => name().prop_map(Event::ServiceCidrDeleted),
    ]
}

fn service() -> impl Strategy<Value = api::Service> {
    let ports = (name(), of(text()), number(), of(number()))
        .prop_map(|(name, protocol, port, node_port)| api::ServicePort { name, protocol, port, node_port });
    let ingress = (text(), of(text())).prop_map(|(ip, ip_mode)| api::LoadBalancerIngress { ip, ip_mode });
    let affinity = of(of(of(number())));
    let spec = (
        (of(text()), text(), vec(text(), 0..3), vec(text(), 0..3)),
        (vec(ports, 0..4), vec(text(), 0..3), vec(text(), 0..3)),
        (of(text()), of(text()), of(number()), of(text()), affinity),
    );
    (metadata(), spec, vec(ingress, 0..3)).prop_map(|(metadata, (ips, lists, policies), ingress)| {
        api::Service {
            metadata,
            spec: api::ServiceSpec {
                r#type: ips.0,
                cluster_ip: ips.1,
                cluster_ips: ips.2,
                ip_families: ips.3,
                ports: lists.0,
                external_ips: lists.1,
                load_balancer_source_ranges: lists.2,
                external_traffic_policy: policies.0,
                internal_traffic_policy: policies.1,
                health_check_node_port: policies.2,
                session_affinity: policies.3,
                session_affinity_config: policies.4.map(|client_ip| api::SessionAffinityConfig {
                    client_ip: client_ip.map(|timeout_seconds| api::ClientIpConfig { timeout_seconds }),
                }),
            },
            status: api::ServiceStatus { load_balancer: api::LoadBalancerStatus { ingress } },
        }
    })
}

fn slice() -> impl Strategy<Value = api::EndpointSlice> {
    let hints = || vec(text().prop_map(|name| api::Hint { name }), 0..3);
    let conditions = (of(any::<bool>()), of(any::<bool>()), of(any::<bool>()))
        .prop_map(|(ready, serving, terminating)| api::EndpointConditions { ready, serving, terminating });
    let endpoint = (vec(text(), 0..3), conditions, of(text()), hints(), hints()).prop_map(
        |(addresses, conditions, node_name, for_zones, for_nodes)| api::SliceEndpoint {
            addresses,
            conditions,
            node_name,
            hints: api::EndpointHints { for_zones, for_nodes },
        },
    );
    let port = (of(name()), of(text()), of(number())).prop_map(|(name, protocol, port)| api::EndpointPort {
        name,
        protocol,
        port,
    });
    (metadata(), text(), vec(endpoint, 0..5), vec(port, 0..4)).prop_map(
        |(metadata, address_type, endpoints, ports)| api::EndpointSlice {
            metadata,
            address_type,
            endpoints,
            ports,
        },
    )
}

fn metadata() -> impl Strategy<Value = api::Metadata> {
    (name(), name(), of(name()), of(text()), of(text())).prop_map(
        |(name, namespace, service_name, zone, time)| {
            let mut metadata =
                api::Metadata { name: name.into(), namespace: namespace.into(), ..Default::default() };
            metadata.labels.service_name = service_name;
            metadata.labels.zone = zone;
            metadata.annotations.last_change_trigger_time = time;
            metadata
        },
    )
}

/// Few enough to collide, sometimes arbitrary.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![9 => select(&["", "a", "b"]).prop_map(Into::into), 1 => any::<String>()]
}

/// Values that are valid in some field, similar ones, and arbitrary ones.
fn text() -> impl Strategy<Value = String> {
    const VALID: [&str; 31] = [
        "IPv4",
        "IPv6",
        "FQDN",
        "TCP",
        "UDP",
        "SCTP",
        "Local",
        "Cluster",
        "LoadBalancer",
        "NodePort",
        "ClusterIP",
        "ExternalName",
        "ClientIP",
        "None",
        "VIP",
        "n1",
        "z1",
        "10.0.0.1",
        "10.0.0.2",
        "0.0.0.0",
        "255.255.255.255",
        "fd00::1",
        "::",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        "::ffff:1.2.3.4",
        "::1.2.3.4",
        "10.0.0.0/8",
        "::/0",
        "::ffff:0:0/96",
        "2026-11-15T10:00:01Z",
        "-009999-01-02T01:59:59Z",
    ];
    prop_oneof![
        8 => select(&VALID).prop_map(Into::into),
        3 => "[0-9a-f.:/%\\[\\] +-]{0,24}",
        1 => "[0-9]{1,3}(\\.[0-9]{1,4}){3}(/[0-9]{1,3})?",
        1 => any::<String>(),
    ]
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![3 => select(&[80, 53, 30080, 1, 65535]), 2 => select(&[-1, 0, 65536, i64::MIN, i64::MAX]), 1 => any::<i64>()]
}
