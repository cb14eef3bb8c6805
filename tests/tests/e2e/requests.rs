//! The requests of the proxy, by the API server's audit log.

use testkit::lab::Place;
use testkit::wait::eventually;
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::TestCluster;

use crate::{cluster, in_each_mode};

in_each_mode!(the_proxy_watches_four_resources_emits_one_event_and_requests_nothing_else);

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// Lines 5 and 18 of the checklist. The user has no role but `system:node-proxier`.
fn the_proxy_watches_four_resources_emits_one_event_and_requests_nothing_else(mode: Mode) {
    let cluster = cluster();
    let _proxy = cluster.proxy(mode);
    let web = cluster.create_service("web", &[Place::PodA]);
    cluster.wait_until_served(&web, &[Place::PodA]);
    eventually("the proxy emits an event", || cluster.audit().iter().any(|entry| entry.path() == EVENTS));
    let audit = cluster.audit();
    for entry in &audit {
        assert_eq!(entry.user.username, "system:kube-proxy", "{entry:?}");
        assert!(!matches!(entry.code(), Some(401 | 403)), "{entry:?}");
    }
    let mut watches: Vec<_> = (audit.iter())
        .filter(|entry| entry.verb == "watch" && entry.stage == "ResponseStarted")
        .map(|entry| {
            (entry.path().to_owned(), entry.parameter("fieldSelector"), entry.parameter("labelSelector"))
        })
        .collect();
    watches.sort();
    let watch = |path: &str, fields: Option<&str>, labels: Option<&str>| {
        (path.to_owned(), fields.map(str::to_owned), labels.map(str::to_owned))
    };
    let node = format!("metadata.name={}", cluster.node);
    assert_eq!(
        watches,
        [
            watch("/api/v1/nodes", Some(&node), None),
            watch(
                "/api/v1/services",
                Some("spec.clusterIP!=None"),
                Some("!service.kubernetes.io/service-proxy-name")
            ),
            watch("/apis/discovery.k8s.io/v1/endpointslices", None, Some("!service.kubernetes.io/headless")),
            watch("/apis/networking.k8s.io/v1/servicecidrs", None, None),
        ]
    );
    let others: Vec<_> = (audit.iter())
        .filter(|entry| entry.verb != "watch")
        .map(|entry| (entry.verb.as_str(), entry.path(), entry.code()))
        .collect();
    assert_eq!(others, [("create", EVENTS, Some(201))]);
    assert_starting_event(&cluster);
}

fn assert_starting_event(cluster: &TestCluster) {
    let path = format!("{EVENTS}?fieldSelector=regarding.name={}", cluster.node);
    let events = cluster.api().get(&path);
    let event = &events["items"][0];
    for (field, value) in [
        ("reason", "Starting"),
        ("type", "Normal"),
        ("action", "StartKubeProxy"),
        ("reportingController", "kube-proxy"),
    ] {
        assert_eq!(event[field], value, "{event}");
    }
    assert_eq!(event["regarding"]["kind"], "Node", "{event}");
}
