//! Weights and hashing, as the API server delivers their annotations.

use std::collections::BTreeSet;

use model::address::Family;
use model::hashing::HASH_ANNOTATION;
use model::names::Protocol;
use model::weights::WEIGHT_ANNOTATION;
use serde_json::json;
use testkit::lab::{ClientPlace, Place};
use testkit::probe::Answer;
use testkit::wait::eventually;
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::cluster_ip;

use crate::{cluster, in_each_mode};

in_each_mode!(
    an_endpoint_of_weight_zero_gets_no_connections_until_it_has_a_weight_again,
    hashing_is_done_or_refused
);

fn an_endpoint_of_weight_zero_gets_no_connections_until_it_has_a_weight_again(mode: Mode) {
    let cluster = cluster();
    let _proxy = cluster.proxy(mode);
    let web = cluster.create_service("web", &[Place::PodA, Place::PodB]);
    cluster.wait_until_served(&web, &[Place::PodA, Place::PodB]);
    let weigh = |weight: Option<u16>| {
        for family in Family::BOTH {
            let text = weight.map(|weight| format!("{}={weight}", Place::PodA.ip(family)));
            let annotations = json!({"metadata": {"annotations": {WEIGHT_ANNOTATION: text}}});
            cluster.api().patch(&cluster.slice("web", family), &annotations);
        }
    };
    weigh(Some(0));
    cluster.wait_until_served(&web, &[Place::PodB]);
    weigh(Some(200));
    cluster.wait_until_served(&web, &[Place::PodA, Place::PodB]);
    weigh(Some(0));
    cluster.wait_until_served(&web, &[Place::PodB]);
    weigh(None);
    cluster.wait_until_served(&web, &[Place::PodA, Place::PodB]);
}

fn hashing_is_done_or_refused(mode: Mode) {
    let cluster = cluster();
    let _proxy = cluster.proxy(mode);
    let places = [Place::PodA, Place::PodB, Place::Remote(5)];
    let web = cluster.create_service("web", &places);
    cluster.wait_until_served(&web, &places);
    let hashed = json!({"metadata": {"annotations": {HASH_ANNOTATION: "ClientIP"}}});
    cluster.api().patch(&cluster.service("web"), &hashed);
    if mode == Mode::Iptables {
        let events = format!("/apis/events.k8s.io/v1/namespaces/{}/events", cluster.namespace());
        eventually("an event of the Service", || {
            let found = cluster.api().get(&events);
            let mut events = found["items"].as_array().unwrap().iter();
            events
                .any(|event| event["reason"] == "HashingNotSupported" && event["regarding"]["name"] == "web")
        });
        return cluster.wait_until_served(&web, &places);
    }
    for family in Family::BOTH {
        eventually("a client always gets the same endpoint", || {
            let ask = |_| cluster.probe(ClientPlace::Pod, Protocol::Tcp, cluster_ip(&web, family));
            let answers: BTreeSet<Answer> = (0..30).map(ask).collect();
            answers.len() == 1 && matches!(answers.first(), Some(Answer::From { .. }))
        });
    }
}
