//! Many services, all with the same endpoints, which all answer.

use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{Place, TARGET, Who};
use testkit::talk::Answer;
use tests::cluster::objects::{endpoint, service, slice, with};
use tests::cluster::stage::{Stage, cluster_ip};
use tests::matrix::within;

pub const PLACES: [Place; 5] = [Place::PodA, Place::PodB, Place::Remote(5), Place::Remote(6), Place::Host];

pub fn name(number: usize) -> String {
    format!("service-{number}")
}

/// Services of one family, each with five endpoints and with a port of TCP and one of UDP.
pub fn populate(stage: &Stage, count: usize) {
    create(stage, count, &PLACES, &json!({}));
}

/// The same without UDP, and with these endpoints.
pub fn populate_with_tcp(stage: &Stage, count: usize, places: &[Place]) {
    create(
        stage,
        count,
        places,
        &json!({"spec": {"ports": [{"name": "tcp", "protocol": "TCP", "port": 80, "targetPort": TARGET}]}}),
    );
}

fn create(stage: &Stage, count: usize, places: &[Place], otherwise: &Value) {
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}});
    let objects = (0..count).flat_map(|number| {
        let name = name(number);
        let service = with(with(service(&name), single.clone()), otherwise.clone());
        [(stage.services(), service), (stage.slices(), at(&name, places))]
    });
    stage.api().create_all(objects);
}

pub fn at(service: &str, places: &[Place]) -> Value {
    let endpoints: Vec<_> = places.iter().map(|place| endpoint(place.ip(Family::V4))).collect();
    slice(service, Family::V4, &endpoints)
}

/// Waits until the proxy serves this one.
pub fn wait_for(stage: &Stage, number: usize) {
    wait_for_within(Duration::from_secs(120), stage, number);
}

pub fn wait_for_within(patience: Duration, stage: &Stage, number: usize) {
    let service = stage.api().get(&stage.service(&name(number)));
    let to = cluster_ip(&service, Family::V4);
    within(patience, "the service is served", || {
        matches!(stage.ask(Who::Pod, Protocol::Tcp, to), Answer::From { .. })
    });
}
