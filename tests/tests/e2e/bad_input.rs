//! What must not be in a cluster, and what is only too much. The proxy shrugs, and serves everybody else.

use std::net::IpAddr;

use model::address::Family;
use serde_json::{Value, json};
use testkit::lab::{Place, Who};
use tests::cluster::etcd;
use tests::cluster::objects::{endpoint, service, slice, with};
use tests::cluster::proxy::Mode;
use tests::cluster::stage::{Stage, cluster_ip};

use crate::{in_each_mode, stage};

in_each_mode!(
    what_must_not_be_in_a_slice_hurts_nobody_else,
    what_it_admits_but_nobody_can_use_hurts_nobody_else,
    a_service_with_thousands_of_endpoints_hurts_nobody_else,
);

/// The bad ones come first and the others after them, so that whoever stumbled would not get there.
fn others_are_served(stage: &Stage, name: &str) {
    let other = stage.serve(name, &[Place::PodB]);
    stage.serves(&other, &[Place::PodB]);
}

/// What the API server does not admit is written into its database behind its back: it tells us of it all the same.
fn what_must_not_be_in_a_slice_hurts_nobody_else(mode: Mode) {
    let stage = stage();
    let mut proxy = stage.proxy(mode);
    others_are_served(&stage, "before");
    let web = stage.serve("web", &[Place::PodA]);
    let ports = |number: i64| json!({"ports": [{"name": "tcp", "protocol": "TCP", "port": number}]});
    let one = |address: &str| json!([{"addresses": [address], "conditions": {"ready": true}}]);
    let wrong: Vec<(&str, Family, Value)> = vec![
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
    for (name, family, fields) in &wrong {
        let good = slice("bad", *family, &[endpoint(Place::PodA.ip(*family))]);
        let identity = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": stage.space(), "uid": name},
        });
        let bad = with(with(good, identity), fields.clone());
        if stage.api().try_create(&stage.slices(), &bad).is_err() {
            etcd::put(&stage.plane().namespace, &stage.slice_key(name), &bad);
        }
    }
    stage.api().create(&stage.services(), &service("bad"));
    others_are_served(&stage, "after");
    stage.serves(&web, &[Place::PodA]);
    assert!(proxy.is_running());
    // The API server could choke on what it has to remove.
    for (name, ..) in &wrong {
        etcd::delete(&stage.plane().namespace, &stage.slice_key(name));
    }
}

fn what_it_admits_but_nobody_can_use_hurts_nobody_else(mode: Mode) {
    let stage = stage();
    let mut proxy = stage.proxy(mode);
    let named = |name: &str, fields: Value| {
        let good = slice("odd", Family::V4, &[endpoint(Place::PodA.ip(Family::V4))]);
        with(with(good, json!({"metadata": {"name": name}})), fields)
    };
    for odd in [
        named("names", json!({"addressType": "FQDN", "endpoints": [{"addresses": ["web.example"]}]})),
        named("any-port", json!({"ports": [{"name": "tcp", "protocol": "TCP", "port": null}]})),
        named("no-port", json!({"ports": []})),
        named("nobody", json!({"endpoints": []})),
        named("nobodys", json!({"metadata": {"labels": {"kubernetes.io/service-name": ""}}})),
        named("unknown", json!({"endpoints": [{"addresses": ["10.244.0.5"], "conditions": {}}]})),
    ] {
        stage.api().create(&stage.slices(), &odd);
    }
    let odd = stage.api().create(&stage.services(), &service("odd"));
    let headless = json!({"spec": {"clusterIP": "None", "clusterIPs": null}});
    stage.api().create(&stage.services(), &with(service("headless"), headless));
    let outside = json!({"metadata": {"name": "outside"}, "spec": {"type": "ExternalName", "externalName": "web.example"}});
    stage.api().create(&stage.services(), &outside);
    others_are_served(&stage, "other");
    // The one slice of it that says what can be used. Conditions that nobody knows count as good ones.
    stage.reaches(Who::Pod, cluster_ip(&odd, Family::V4), &[Place::PodA]);
    assert!(proxy.is_running());
}

fn a_service_with_thousands_of_endpoints_hurts_nobody_else(mode: Mode) {
    const SLICES: u8 = 5;
    let stage = stage();
    let mut proxy = stage.proxy(mode);
    let huge = stage.api().create(&stage.services(), &service("huge"));
    for number in 0..SLICES {
        // Nobody is there, and nobody asks. As many as the API allows in a slice.
        let nobody =
            |low: u16| IpAddr::from([10, 245, number * 4 + low.to_be_bytes()[0], low.to_be_bytes()[1]]);
        let endpoints: Vec<_> = (0..1000).map(|low| endpoint(nobody(low))).collect();
        let name = json!({"metadata": {"name": format!("huge-{number}")}});
        let slice = with(slice("huge", Family::V4, &endpoints), name);
        stage.api().create(&stage.slices(), &slice);
    }
    others_are_served(&stage, "other");
    for number in 0..SLICES {
        stage.api().delete(&format!("{}/huge-{number}", stage.slices()));
    }
    stage.api().create(&stage.slices(), &slice("huge", Family::V4, &[endpoint(Place::PodA.ip(Family::V4))]));
    stage.reaches(Who::Pod, cluster_ip(&huge, Family::V4), &[Place::PodA]);
    assert!(proxy.is_running());
}
