//! What the proxy asks of the API server, by the API server's own account.

use testkit::lab::Place;
use tests::cluster::proxy::Mode;
use tests::cluster::stage::Stage;
use tests::matrix::eventually;

use crate::{in_each_mode, stage};

in_each_mode!(it_watches_four_things_says_that_it_started_and_asks_for_nothing_else);

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// Lines 5 and 18 of the checklist. The user has no role but `system:node-proxier`.
fn it_watches_four_things_says_that_it_started_and_asks_for_nothing_else(mode: Mode) {
    let stage = stage();
    let _proxy = stage.proxy(mode);
    let web = stage.serve("web", &[Place::PodA]);
    stage.serves(&web, &[Place::PodA]);
    eventually("an event", || stage.audit().iter().any(|entry| entry.path() == EVENTS));
    let audit = stage.audit();
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
    let node = format!("metadata.name={}", stage.node);
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
    the_event_says_that_it_started(&stage);
}

fn the_event_says_that_it_started(stage: &Stage) {
    let path = format!("{EVENTS}?fieldSelector=regarding.name={}", stage.node);
    let events = stage.api().get(&path);
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
