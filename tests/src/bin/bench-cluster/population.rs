//! Many Services with the same endpoints.

use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{ClientPlace, Place, TARGET};
use testkit::probe::Answer;
use testkit::wait::within;
use tests::cluster::objects::{endpoint, service, slice, with};
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

/// Creates IPv4 Services with these names, and with `fields` instead of the usual ones.
pub fn create_services(
    cluster: &TestCluster,
    names: impl Iterator<Item = String>,
    places: &[Place],
    fields: &Value,
) {
    let objects = names.flat_map(|name| {
        let service = with(with(service(&name), single_stack()), fields.clone());
        [(cluster.services(), service), (cluster.slices(), slice_at(&name, places))]
    });
    cluster.api().create_all(objects);
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
