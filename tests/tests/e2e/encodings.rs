//! The encodings of the API server: protobuf, which all other tests use, and JSON.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use model::event::Event;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use testkit::lab::Place;
use tests::cluster::objects::{node, with};
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::TestCluster;
use watch::api_server::ApiServer;
use watch::client::{Api, Settings, Unobserved};
use watch::recorder::recorder;

use crate::{cluster, cluster_without_node, in_each_mode};

in_each_mode!(a_proxy_that_requests_json_serves_services);

fn a_proxy_that_requests_json_serves_services(mode: Mode) {
    let cluster = cluster();
    let before = cluster.create_service("before", &[Place::PodA]);
    let _proxy = cluster.proxy_with(mode, &["--kube-api-content-type=application/json"]);
    cluster.wait_until_served(&before, &[Place::PodA]);
    let after = cluster.create_service("after", &[Place::PodB]);
    cluster.wait_until_served(&after, &[Place::PodB]);
    cluster.move_endpoints("before", &[Place::PodB]);
    cluster.wait_until_served(&before, &[Place::PodB]);
}

/// The API server encodes random objects in both ways.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn any_object_is_the_same_as_protobuf_and_as_json() {
    const OBJECTS: usize = 60;
    let cluster = cluster_without_node();
    let mut runner = TestRunner::default();
    let mut any = |strategy: BoxedStrategy<Value>| strategy.new_tree(&mut runner).unwrap().current();
    cluster.api().create("/api/v1/nodes", &with(node(&cluster.node), any(node_fields())));
    for number in 0..OBJECTS {
        let name = json!({"metadata": {"name": format!("s{number}")}});
        let service = cluster.api().create(&cluster.services(), &with(any(service()), name.clone()));
        if service["spec"]["type"] == "LoadBalancer" {
            let path = format!("{}/status", cluster.service(&format!("s{number}")));
            cluster.api().patch(&path, &any(service_status()));
        }
        cluster.api().create(&cluster.slices(), &with(any(slice()), name));
    }
    let [json, protobuf] = ["application/json", "application/vnd.kubernetes.protobuf"]
        .map(|content_type| objects(&cluster, content_type));
    assert_eq!(json.len(), 2 * OBJECTS + 2, "a Node and a ServiceCIDR besides");
    assert_eq!(json.len(), protobuf.len());
    for (json, protobuf) in json.iter().zip(&protobuf) {
        assert_eq!(json, protobuf);
    }
}

/// What a proxy applies of the cluster's objects, in an order of its own.
fn objects(cluster: &TestCluster, content_type: &str) -> Vec<Event> {
    let settings = Settings {
        kubeconfig: Some(cluster.kubeconfig(cluster.control_plane().address(), &cluster.proxy_user())),
        content_type: content_type.into(),
        qps: -1.0,
        user_agent: "e2e".into(),
        ..Settings::default()
    };
    let (sender, events) = channel();
    let (node, namespace) = (cluster.node.clone(), cluster.control_plane().namespace.clone());
    let follow = move || {
        namespace.move_in();
        let (_recorder, poster) = recorder("e2e");
        let source = ApiServer::new(Api::open(&settings, Arc::new(Unobserved)).unwrap(), &node, poster);
        // It follows for ever: end it with its receiver.
        source.follow(&mut |event| sender.send(event).unwrap_or_else(|_| resume_unwind(Box::new(()))))
    };
    let source = thread::spawn(follow);
    let (mut applied, mut lists, mut has_node) = (Vec::new(), 0, false);
    while lists < 3 || !has_node {
        let event = events.recv().unwrap();
        let is_ours = match &event {
            Event::ServiceApplied(service) => &*service.metadata.namespace == cluster.namespace(),
            Event::SliceApplied(slice) => &*slice.metadata.namespace == cluster.namespace(),
            Event::ServiceCidrApplied(_) => true,
            Event::NodeApplied(_) => !std::mem::replace(&mut has_node, true),
            Event::Listed(_) => {
                lists += 1;
                false
            }
            _ => false,
        };
        if is_ours {
            applied.push(event);
        }
    }
    drop(events);
    // The next event ends it.
    cluster
        .api()
        .patch(&cluster.node_path(), &json!({"metadata": {"annotations": {"read-as": content_type}}}));
    assert!(source.join().is_err());
    applied.sort_by_key(|event| match event {
        Event::ServiceApplied(service) => (0, service.metadata.name.to_string()),
        Event::SliceApplied(slice) => (1, slice.metadata.name.to_string()),
        _ => (2, format!("{event:?}")),
    });
    applied
}

/// A field that may be absent.
fn maybe(field: &'static str, value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    prop_oneof![Just(json!({})), value.prop_map(move |value| json!({field: value}))].boxed()
}

fn one_of(values: &'static [&'static str]) -> impl Strategy<Value = Value> {
    proptest::sample::select(values).prop_map(Value::from)
}

fn list(of: impl Strategy<Value = Value> + 'static, length: std::ops::Range<usize>) -> BoxedStrategy<Value> {
    proptest::collection::vec(of, length).prop_map(Value::from).boxed()
}

/// An object with all of these fields.
fn all(parts: Vec<BoxedStrategy<Value>>) -> BoxedStrategy<Value> {
    parts.prop_map(|parts| parts.into_iter().fold(json!({}), with)).boxed()
}

fn metadata() -> BoxedStrategy<Value> {
    let labels = all(vec![
        maybe("kubernetes.io/service-name", one_of(&["", "web"])),
        maybe("topology.kubernetes.io/zone", one_of(&["", "z1"])),
        maybe("app", one_of(&["a"])),
    ]);
    let annotations = all(vec![
        maybe("endpoints.kubernetes.io/last-change-trigger-time", "\\PC{0,20}".prop_map(Value::from)),
        maybe("service.sluice.io/weight", one_of(&["", "7", "10.0.0.1=0"])),
        maybe("service.sluice.io/hash", one_of(&["ClientIP", "ClientIPAndPort", "?"])),
        maybe("note", ".{0,200}".prop_map(Value::from)),
    ]);
    let metadata = all(vec![maybe("labels", labels), maybe("annotations", annotations)]);
    metadata.prop_map(|metadata| json!({"metadata": metadata})).boxed()
}

fn service() -> BoxedStrategy<Value> {
    const POLICIES: &[&str] = &["Cluster", "Local"];
    let port = all(vec![
        maybe("protocol", one_of(&["TCP", "UDP", "SCTP"])),
        maybe("appProtocol", one_of(&["http"])),
    ]);
    // Names and numbers are unique within a Service.
    let ports = proptest::collection::vec((port, 1_u16..6_000), 1..5).prop_map(|ports| {
        let ports = ports.into_iter().enumerate();
        let number = |at: usize, (port, number): (Value, u16)| {
            with(port, json!({"name": format!("p{at}"), "port": usize::from(number) * 10 + at}))
        };
        json!({"ports": ports.map(|(at, port)| number(at, port)).collect::<Vec<_>>()})
    });
    let kind = prop_oneof![
        maybe("type", one_of(&["ClusterIP"])),
        all(vec![
            Just(json!({"type": "NodePort"})).boxed(),
            maybe("externalTrafficPolicy", one_of(POLICIES)),
        ]),
        all(vec![
            Just(json!({"type": "LoadBalancer"})).boxed(),
            maybe("externalTrafficPolicy", one_of(POLICIES)),
            maybe("loadBalancerSourceRanges", list(one_of(&["192.0.2.0/24", "2001:db8::/32"]), 0..3)),
            maybe("allocateLoadBalancerNodePorts", any::<bool>().prop_map(Value::from)),
        ]),
    ];
    let timeout = (1_u32..=86_400).prop_map(|seconds| json!({"clientIP": {"timeoutSeconds": seconds}}));
    let affinity = prop_oneof![
        maybe("sessionAffinity", one_of(&["None", "ClientIP"])),
        timeout.prop_map(|config| json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config})),
    ];
    let spec = all(vec![
        ports.boxed(),
        kind.boxed(),
        affinity.boxed(),
        maybe("internalTrafficPolicy", one_of(POLICIES)),
        maybe("ipFamilyPolicy", one_of(&["SingleStack", "PreferDualStack", "RequireDualStack"])),
        maybe("externalIPs", list(one_of(&["203.0.113.9", "2001:db8::9"]), 0..3)),
        maybe("trafficDistribution", one_of(&["PreferClose"])),
    ]);
    (metadata(), spec).prop_map(|(metadata, spec)| with(metadata, json!({"spec": spec}))).boxed()
}

fn service_status() -> BoxedStrategy<Value> {
    let ingress = prop_oneof![
        all(vec![Just(json!({"ip": "198.51.100.2"})).boxed(), maybe("ipMode", one_of(&["VIP", "Proxy"])),]),
        Just(json!({"hostname": "lb.example"})),
    ];
    let ingress = list(ingress, 0..3);
    ingress.prop_map(|ingress| json!({"status": {"loadBalancer": {"ingress": ingress}}})).boxed()
}

fn slice() -> BoxedStrategy<Value> {
    let flag = || any::<bool>().prop_map(Value::from);
    let conditions =
        all(vec![maybe("ready", flag()), maybe("serving", flag()), maybe("terminating", flag())]);
    let hint = || list(one_of(&["a", "b"]).prop_map(|name| json!({"name": name})), 0..2);
    let endpoint = all(vec![
        maybe("conditions", conditions),
        maybe("nodeName", one_of(&["n1", "n2"])),
        maybe("zone", one_of(&["z1"])),
        maybe("hostname", one_of(&["h1"])),
        maybe("hints", all(vec![maybe("forZones", hint()), maybe("forNodes", hint())])),
        maybe("targetRef", Just(json!({"kind": "Pod", "name": "p", "namespace": "n"}))),
    ]);
    let endpoints = |address: fn(u8) -> String| {
        let endpoint = (endpoint.clone(), 1_u8..);
        let endpoint =
            endpoint.prop_map(move |(endpoint, low)| with(endpoint, json!({"addresses": [address(low)]})));
        list(endpoint, 0..6)
    };
    let family = prop_oneof![
        endpoints(|low| format!("10.0.1.{low}"))
            .prop_map(|endpoints| json!({"addressType": "IPv4", "endpoints": endpoints})),
        endpoints(|low| format!("fd00::{low:x}"))
            .prop_map(|endpoints| json!({"addressType": "IPv6", "endpoints": endpoints})),
    ];
    let port = all(vec![
        maybe("protocol", one_of(&["TCP", "UDP", "SCTP"])),
        maybe("port", (1_u16..).prop_map(Value::from)),
        maybe("appProtocol", one_of(&["http"])),
    ]);
    // Names are unique within a slice, and one may be empty.
    let ports = proptest::collection::vec(port, 0..4).prop_map(|ports| {
        let named = ports.into_iter().zip(["", "a", "b", "c"]);
        named.map(|(port, name)| with(port, json!({"name": name}))).collect::<Vec<_>>().into()
    });
    (metadata(), family, maybe("ports", ports))
        .prop_map(|(metadata, family, ports)| with(with(metadata, family), ports))
        .boxed()
}

fn node_fields() -> BoxedStrategy<Value> {
    let taint = one_of(&["ToBeDeletedByClusterAutoscaler", "other"])
        .prop_map(|key| json!({"key": key, "effect": "NoSchedule"}));
    let spec = maybe("spec", maybe("taints", list(taint, 0..2)));
    (metadata(), spec).prop_map(|(metadata, spec)| with(metadata, spec)).boxed()
}
