//! Invalid, useless and huge objects: the proxy keeps serving all others.

use std::net::IpAddr;

use model::address::Family;
use serde_json::{Value, json};
use testkit::lab::{ClientPlace, Place};
use tests::cluster::etcd;
use tests::cluster::objects::{endpoint, service, slice, with};
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

use crate::{cluster, in_each_mode};

in_each_mode!(
    invalid_slices_do_not_affect_other_services,
    valid_but_useless_objects_do_not_affect_other_services,
    a_service_with_thousands_of_endpoints_does_not_affect_others,
);

/// Creates a Service after the bad objects: a proxy that stopped at those would not serve it.
fn another_service_is_served(cluster: &TestCluster, name: &str) {
    let other = cluster.create_service(name, &[Place::PodB]);
    cluster.wait_until_served(&other, &[Place::PodB]);
}

/// Objects that the API server refuses are written directly to etcd: it serves them all the same.
fn invalid_slices_do_not_affect_other_services(mode: Mode) {
    let cluster = cluster();
    let mut proxy = cluster.proxy(mode);
    another_service_is_served(&cluster, "before");
    let web = cluster.create_service("web", &[Place::PodA]);
    let ports = |number: i64| json!({"ports": [{"name": "tcp", "protocol": "TCP", "port": number}]});
    let one = |address: &str| json!([{"addresses": [address], "conditions": {"ready": true}}]);
    let invalid: Vec<(&str, Family, Value)> = vec![
        ("loopback", Family::V4, json!({"endpoints": one("127.0.0.1")})),
        ("loopback-6", Family::V6, json!({"endpoints": one("::1")})),
        ("other-family", Family::V4, json!({"endpoints": one("fd00:10:244::5")})),
        ("other-family-6", Family::V6, json!({"endpoints": one("10.244.0.5")})),
        ("no-address", Family::V4, json!({"endpoints": one("not an address")})),
        ("no-addresses", Family::V4, json!({"endpoints": [{"addresses": []}]})),
        ("port-too-large", Family::V4, ports(70_000)),
        ("port-zero", Family::V4, ports(0)),
        ("port-negative", Family::V4, ports(-1)),
        ("no-protocol", Family::V4, json!({"ports": [{"name": "tcp", "protocol": "IPX", "port": 8080}]})),
        ("no-type", Family::V4, json!({"addressType": "Carrier-Pigeon"})),
    ];
    for (name, family, fields) in &invalid {
        let good = slice("bad", *family, &[endpoint(Place::PodA.ip(*family))]);
        let identity = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": cluster.namespace(), "uid": name},
        });
        let bad = with(with(good, identity), fields.clone());
        if cluster.api().try_create(&cluster.slices(), &bad).is_err() {
            etcd::put(&cluster.control_plane().namespace, &cluster.slice_key(name), &bad);
        }
    }
    cluster.api().create(&cluster.services(), &service("bad"));
    another_service_is_served(&cluster, "after");
    cluster.wait_until_served(&web, &[Place::PodA]);
    assert!(proxy.is_running());
    // The API server might fail to delete them.
    for (name, ..) in &invalid {
        etcd::delete(&cluster.control_plane().namespace, &cluster.slice_key(name));
    }
}

fn valid_but_useless_objects_do_not_affect_other_services(mode: Mode) {
    let cluster = cluster();
    let mut proxy = cluster.proxy(mode);
    let named = |name: &str, fields: Value| {
        let good = slice("odd", Family::V4, &[endpoint(Place::PodA.ip(Family::V4))]);
        with(with(good, json!({"metadata": {"name": name}})), fields)
    };
    for odd in [
        named("names", json!({"addressType": "FQDN", "endpoints": [{"addresses": ["web.example"]}]})),
        named("any-port", json!({"ports": [{"name": "tcp", "protocol": "TCP", "port": null}]})),
        named("no-port", json!({"ports": []})),
        named("no-endpoints", json!({"endpoints": []})),
        named("no-service", json!({"metadata": {"labels": {"kubernetes.io/service-name": ""}}})),
        named("unknown", json!({"endpoints": [{"addresses": ["10.244.0.5"], "conditions": {}}]})),
    ] {
        cluster.api().create(&cluster.slices(), &odd);
    }
    let odd = cluster.api().create(&cluster.services(), &service("odd"));
    let headless = json!({"spec": {"clusterIP": "None", "clusterIPs": null}});
    cluster.api().create(&cluster.services(), &with(service("headless"), headless));
    let outside = json!({"metadata": {"name": "outside"}, "spec": {"type": "ExternalName", "externalName": "web.example"}});
    cluster.api().create(&cluster.services(), &outside);
    another_service_is_served(&cluster, "other");
    // Only one slice of the Service is usable. Its unset conditions count as ready.
    cluster.wait_until_reached(ClientPlace::Pod, cluster_ip(&odd, Family::V4), &[Place::PodA]);
    assert!(proxy.is_running());
}

fn a_service_with_thousands_of_endpoints_does_not_affect_others(mode: Mode) {
    const SLICES: u8 = 5;
    let cluster = cluster();
    let mut proxy = cluster.proxy(mode);
    let huge = cluster.api().create(&cluster.services(), &service("huge"));
    for number in 0..SLICES {
        // Addresses without a pod, 1,000 per slice, which is the API's limit.
        let address =
            |low: u16| IpAddr::from([10, 245, number * 4 + low.to_be_bytes()[0], low.to_be_bytes()[1]]);
        let endpoints: Vec<_> = (0..1000).map(|low| endpoint(address(low))).collect();
        let name = json!({"metadata": {"name": format!("huge-{number}")}});
        let slice = with(slice("huge", Family::V4, &endpoints), name);
        cluster.api().create(&cluster.slices(), &slice);
    }
    another_service_is_served(&cluster, "other");
    for number in 0..SLICES {
        cluster.api().delete(&format!("{}/huge-{number}", cluster.slices()));
    }
    cluster
        .api()
        .create(&cluster.slices(), &slice("huge", Family::V4, &[endpoint(Place::PodA.ip(Family::V4))]));
    cluster.wait_until_reached(ClientPlace::Pod, cluster_ip(&huge, Family::V4), &[Place::PodA]);
    assert!(proxy.is_running());
}
