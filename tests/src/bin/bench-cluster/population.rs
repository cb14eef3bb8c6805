//! Many Services with the same endpoints.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{ClientPlace, Place, TARGET};
use testkit::probe::Answer;
use testkit::wait::within;
use tests::cluster::etcd;
use tests::cluster::objects::{endpoint, service, slice, slice_name, with};
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

pub const PLACES: [Place; 5] = [Place::PodA, Place::PodB, Place::Remote(5), Place::Remote(6), Place::Host];

pub fn name(number: usize) -> String {
    format!("service-{number}")
}

/// The places of `count` endpoints. A pod answers at each of the first five.
pub fn places(count: usize) -> Vec<Place> {
    let more = (7..).map(Place::Remote);
    PLACES.into_iter().chain(more).take(count).collect()
}

/// Creates IPv4 Services with five endpoints, a TCP port and a UDP port each.
pub fn populate(cluster: &TestCluster, count: usize) {
    create_services(cluster, (0..count).map(name), &PLACES, &json!({}));
}

/// Creates IPv4 Services with a TCP port and endpoints at `places`.
pub fn populate_with_tcp(cluster: &TestCluster, count: usize, places: &[Place]) {
    create_services(cluster, (0..count).map(name), places, &tcp_only());
}

/// The fields of a Service with a TCP port only.
pub fn tcp_only() -> Value {
    json!({"spec": {"ports": [{"name": "tcp", "protocol": "TCP", "port": 80, "targetPort": TARGET}]}})
}

/// Creates IPv4 Services with these names, and with `fields` instead of the usual ones: the first one through the API server, the
/// others as copies of it in etcd. The API server counts all assigned addresses, twice, whenever it assigns one, which takes too long
/// with tens of thousands of Services.
pub fn create_services(
    cluster: &TestCluster,
    mut names: impl Iterator<Item = String>,
    places: &[Place],
    fields: &Value,
) {
    let Some(first) = names.next() else { return };
    let (api, ip) = (cluster.api(), next_cluster_ip());
    let fields = with(fields.clone(), json!({"spec": {"clusterIP": ip}}));
    api.create(&cluster.services(), &with(with(service(&first), single_stack()), fields));
    api.create(&cluster.slices(), &slice_at(&first, places));
    let templates = [
        cluster.service(&first),
        cluster.slice(&first, Family::V4),
        format!("/apis/networking.k8s.io/v1/ipaddresses/{ip}"),
    ];
    let templates = templates.map(|path| stored(api.get(&path)));
    let copies = names.flat_map(|name| copies(cluster.namespace(), &name, &templates));
    etcd::put_all(&cluster.control_plane().namespace, copies);
}

/// The copies of a Service, its slice and its address, each with its key in etcd.
fn copies(namespace: &str, name: &str, [service, slice, address]: &[Value; 3]) -> [(String, Value); 3] {
    let ip = next_cluster_ip();
    let uid = |kind: u32| json!({"uid": format!("{kind:08x}-0000-4000-8000-{:012x}", u32::from(ip))});
    let slice_name = slice_name(name, Family::V4);
    let service = with(
        with(service.clone(), json!({"metadata": with(json!({"name": name}), uid(1))})),
        json!({"spec": {"clusterIP": ip, "clusterIPs": [ip]}}),
    );
    let labels = json!({"name": slice_name, "labels": {"kubernetes.io/service-name": name}});
    let slice = with(slice.clone(), json!({"metadata": with(labels, uid(2))}));
    let address = with(
        with(address.clone(), json!({"metadata": with(json!({"name": ip.to_string()}), uid(3))})),
        json!({"spec": {"parentRef": {"name": name}}}),
    );
    [
        (format!("/registry/services/specs/{namespace}/{name}"), service),
        (format!("/registry/endpointslices/{namespace}/{slice_name}"), slice),
        (format!("/registry/ipaddresses/{ip}"), address),
    ]
}

/// An object as the API server stores it: the version is that of the key.
fn stored(mut object: Value) -> Value {
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    object
}

/// An address that no Service of this run has.
fn next_cluster_ip() -> Ipv4Addr {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let first = u32::from(Ipv4Addr::new(10, 96, 1, 0));
    (first + GIVEN.fetch_add(1, Ordering::Relaxed)).into()
}

pub fn single_stack() -> Value {
    json!({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}})
}

/// The slice of a Service with endpoints at `places`.
pub fn slice_at(service: &str, places: &[Place]) -> Value {
    let endpoints: Vec<_> = places.iter().map(|place| endpoint(place.ip(Family::V4))).collect();
    slice(service, Family::V4, &endpoints)
}

/// Waits until the proxy serves the Service with this number.
pub fn wait_for(cluster: &TestCluster, number: usize) {
    wait_for_within(Duration::from_secs(120), cluster, number);
}

pub fn wait_for_within(timeout: Duration, cluster: &TestCluster, number: usize) {
    let service = cluster.api().get(&cluster.service(&name(number)));
    let to = cluster_ip(&service, Family::V4);
    within(timeout, "the service is served", || {
        matches!(cluster.probe(ClientPlace::Pod, Protocol::Tcp, to), Answer::From { .. })
    });
}
