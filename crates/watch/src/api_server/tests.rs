use std::sync::mpsc::channel;

use model::event::Kind;
use serde_json::{Value, json};

use super::*;
use crate::recorder::{Notice, Regarding, Severity, recorder};
use crate::stub::{self, Stub};

#[test]
fn services_work_without_permission_to_list_service_cidrs() {
    let stub = Stub::start(|asked, talk| {
        if asked.path.ends_with("servicecidrs") {
            return talk.refuse(403, "Forbidden", "servicecidrs.networking.k8s.io is forbidden");
        }
        talk.begin();
        let end = json!({"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}});
        talk.event("BOOKMARK", &json!({"metadata": end}));
        talk.stay();
    });
    let (sender, events) = channel();
    let (_recorder, poster) = recorder("host");
    let source = ApiServer::new(stub.api(), "n1", poster);
    std::thread::spawn(move || source.follow(&mut |event| drop(sender.send(event))));
    let mut received: Vec<_> = (0..5).map(|_| events.recv_timeout(stub::TIMEOUT).unwrap()).collect();
    received.sort_by_key(|event| format!("{event:?}"));
    let want = [
        Event::Listed(Kind::EndpointSlice),
        Event::Listed(Kind::Service),
        Event::Listing(Kind::EndpointSlice),
        Event::Listing(Kind::Service),
        Event::NodeDeleted,
    ];
    assert_eq!(received, want);
    let asks_again = std::iter::repeat_with(|| stub.asked()).take(6);
    assert_eq!(asks_again.filter(|asked| asked.path.ends_with("servicecidrs")).count(), 3, "it keeps trying");
}

#[test]
fn events_recorded_before_the_start_are_posted_as_a_series() {
    let stub = Stub::start(|asked, talk| match asked.method.as_str() {
        "POST" => talk.object(201, &json!({})),
        "PATCH" => talk.refuse(404, "NotFound", "events \"n1.1\" not found"),
        _ => talk.stay(),
    });
    let (recorder, poster) = recorder("host");
    let notice = Notice {
        regarding: Regarding::Node("n1".into()),
        severity: Severity::Normal,
        reason: "Starting",
        action: "StartKubeProxy",
        note: String::new(),
    };
    recorder.record(notice.clone());
    recorder.record(notice);
    let source = ApiServer::new(stub.api(), "n1", poster);
    std::thread::spawn(move || source.follow(&mut |_| {}));
    recorder.flush(stub::TIMEOUT);
    let writes: Vec<_> =
        std::iter::repeat_with(|| stub.asked()).filter(|asked| asked.method != "GET").take(3).collect();
    let [first, patch, again] = writes.as_slice() else { panic!("three writes") };
    assert_eq!(
        (first.method.as_str(), first.path.as_str()),
        ("POST", "/apis/events.k8s.io/v1/namespaces/default/events")
    );
    assert_eq!(first.headers["content-type"], "application/json");
    let event: Value = serde_json::from_str(&first.body).unwrap();
    let name = event["metadata"]["name"].as_str().unwrap();
    assert_eq!(patch.method, "PATCH");
    assert_eq!(patch.path, format!("/apis/events.k8s.io/v1/namespaces/default/events/{name}"));
    assert_eq!(patch.headers["content-type"], "application/strategic-merge-patch+json");
    assert_eq!(again.method, "POST", "an event that is gone is created again");
    let again: Value = serde_json::from_str(&again.body).unwrap();
    assert_eq!(again["series"]["count"], 2);
}
