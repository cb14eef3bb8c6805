use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use model::event::Event;

use super::*;
use crate::stub::{self, Asked, Stub, Talk};
use crate::wire::Wire;

/// Makes a test for each encoding from each function.
macro_rules! in_each_encoding {
    ($($name:ident),+ $(,)?) => {
        mod json {
            $(#[test] fn $name() { super::$name(super::Wire::Json); })+
        }
        mod protobuf {
            $(#[test] fn $name() { super::$name(super::Wire::Protobuf); })+
        }
    };
}

in_each_encoding!(
    requests_are_those_of_upstream,
    a_list_as_a_stream_continues_as_a_watch,
    a_server_without_streams_is_listed_in_pages,
    a_list_whose_pages_have_expired_is_requested_as_a_whole,
    an_expired_watch_starts_over_with_a_list,
    a_list_after_the_first_does_not_go_back_in_time,
    a_watch_that_ends_within_an_event_resumes_after_the_last_complete_one,
    bookmarks_advance_the_position,
    a_truncated_list_is_listed_again,
    an_undecodable_object_is_skipped,
    a_server_may_send_single_bytes,
    retry_after_is_respected,
    a_missing_node_is_emitted_as_deleted,
    bytes_that_are_no_event_lead_to_a_list,
);

/// A short text for an event.
fn text(event: &Event) -> String {
    match event {
        Event::Listing(kind) => format!("listing {kind:?}"),
        Event::Listed(kind) => format!("listed {kind:?}"),
        Event::ServiceApplied(service) => format!("+{}", service.metadata),
        Event::ServiceDeleted(name) | Event::SliceDeleted(name) => format!("-{name}"),
        Event::SliceApplied(slice) => format!("+{}", slice.metadata),
        Event::NodeApplied(node) => format!("+{}", node.metadata.name),
        Event::NodeDeleted => "-node".into(),
        Event::ServiceCidrApplied(cidr) => format!("+{}", cidr.metadata.name),
        Event::ServiceCidrDeleted(name) => format!("-{name}"),
    }
}

/// Follows `resource` in a thread that ends with the test process.
fn follow(stub: &Stub, wire: Wire, resource: Resource) -> Receiver<String> {
    let (sender, receiver) = channel();
    let api = stub.api_with(wire);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut emit = |event: Event| drop(sender.send(text(&event)));
        let emit: Emit<'_> = RefCell::new(&mut emit);
        runtime.block_on(ListWatch::new(&api, resource).follow(&emit));
    });
    receiver
}

fn receive(events: &Receiver<String>, count: usize) -> Vec<String> {
    (0..count).map(|_| events.recv_timeout(stub::TIMEOUT).expect("an event")).collect()
}

fn service(name: &str, version: u32) -> Value {
    json!({
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop", "resourceVersion": version.to_string()},
        "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]},
    })
}

fn bookmark(version: u32) -> Value {
    json!({"kind": "Service", "metadata": {"resourceVersion": version.to_string()}})
}

fn end_of_list(version: u32) -> Value {
    json!({"metadata": {
        "resourceVersion": version.to_string(),
        "annotations": {"k8s.io/initial-events-end": "true"},
    }})
}

fn page(items: &[Value], version: u32, next: &str) -> Value {
    let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
    json!({"kind": "ServiceList", "metadata": metadata, "items": items})
}

fn is_stream(asked: &Asked) -> bool {
    asked.query("sendInitialEvents") == "true"
}

/// The answer of a server that does not support lists as streams.
fn refuse_stream(talk: &mut Talk<'_>) {
    talk.refuse(
        422,
        "Invalid",
        "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden \
         for watch unless the WatchList feature gate is enabled",
    );
}

fn requests_are_those_of_upstream(wire: Wire) {
    for (resource, path, fields, labels) in [
        (Resource::Node("n1".into()), "/api/v1/nodes", "metadata.name=n1", ""),
        (
            Resource::Service,
            "/api/v1/services",
            "spec.clusterIP!=None",
            "!service.kubernetes.io/service-proxy-name",
        ),
        (
            Resource::EndpointSlice,
            "/apis/discovery.k8s.io/v1/endpointslices",
            "",
            "!service.kubernetes.io/headless",
        ),
        (Resource::ServiceCidr, "/apis/networking.k8s.io/v1/servicecidrs", "", ""),
    ] {
        let stub = Stub::start(|asked, talk| match (asked.is_watch(), is_stream(asked)) {
            (true, true) => refuse_stream(talk),
            (false, _) => talk.object(200, &page(&[], 41, "")),
            (true, false) => talk.stay(),
        });
        let _events = follow(&stub, wire, resource);
        let (stream, list, watch) = (stub.asked(), stub.asked(), stub.asked());
        for asked in [&stream, &list, &watch] {
            assert_eq!((asked.method.as_str(), asked.path.as_str()), ("GET", path));
            assert_eq!(
                (asked.query("fieldSelector"), asked.query("labelSelector")),
                (fields, labels),
                "{path}"
            );
            assert_eq!(asked.headers["accept"], format!("{}, */*", wire.content_type()));
        }
        let rest = |asked: &Asked| {
            let selectors = ["fieldSelector", "labelSelector", "timeoutSeconds"];
            let rest = asked.query.iter().filter(|(key, _)| !selectors.contains(&key.as_str()));
            rest.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("&")
        };
        assert_eq!(
            rest(&stream),
            "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true"
        );
        assert_eq!(rest(&list), "limit=500&resourceVersion=0");
        assert_eq!(rest(&watch), "allowWatchBookmarks=true&resourceVersion=41&watch=true");
        for asked in [&stream, &watch] {
            let seconds: u32 = asked.query("timeoutSeconds").parse().unwrap();
            assert!((300..=600).contains(&seconds), "{seconds}");
        }
    }
}

fn a_list_as_a_stream_continues_as_a_watch(wire: Wire) {
    let stub = Stub::start(|_, talk| {
        talk.begin();
        talk.event("ADDED", &service("a", 3));
        talk.event("ADDED", &service("b", 1));
        talk.event("BOOKMARK", &end_of_list(7));
        talk.event("MODIFIED", &service("a", 8));
        talk.event("DELETED", &service("b", 9));
        talk.stay();
    });
    let events = follow(&stub, wire, Resource::Service);
    let want = ["listing Service", "+shop/a", "+shop/b", "listed Service", "+shop/a", "-shop/b"];
    assert_eq!(receive(&events, 6), want);
}

fn a_server_without_streams_is_listed_in_pages(wire: Wire) {
    let stub =
        Stub::start(|asked, talk| match (is_stream(asked), asked.is_watch(), asked.query("continue")) {
            (true, ..) => refuse_stream(talk),
            (false, true, _) => talk.stay(),
            (false, false, "") => talk.object(200, &page(&[service("a", 1)], 5, "two==")),
            (false, false, "two==") => talk.object(200, &page(&[service("b", 2)], 5, "three/+")),
            (false, false, _) => talk.object(200, &page(&[service("c", 3)], 5, "")),
        });
    let events = follow(&stub, wire, Resource::Service);
    let want = ["listing Service", "+shop/a", "+shop/b", "+shop/c", "listed Service"];
    assert_eq!(receive(&events, 5), want);
    let asked: Vec<_> = (0..5).map(|_| stub.asked()).collect();
    let continues: Vec<_> =
        asked[1..4].iter().map(|asked| (asked.query("continue"), asked.query("resourceVersion"))).collect();
    assert_eq!(continues, [("", "0"), ("two==", ""), ("three/+", "")]);
    assert!(asked[1..4].iter().all(|asked| asked.query("limit") == "500"));
    assert_eq!(asked[4].query("resourceVersion"), "5");
}

fn a_list_whose_pages_have_expired_is_requested_as_a_whole(wire: Wire) {
    let stub =
        Stub::start(|asked, talk| match (is_stream(asked), asked.query("continue"), asked.query("limit")) {
            (true, ..) => refuse_stream(talk),
            (false, "", "500") => talk.object(200, &page(&[service("a", 1)], 5, "two")),
            (false, "two", _) => talk.refuse(410, "Expired", "The provided continue parameter is too old"),
            (false, ..) if asked.is_watch() => talk.stay(),
            (false, ..) => talk.object(200, &page(&[service("b", 2)], 6, "")),
        });
    let events = follow(&stub, wire, Resource::Service);
    let want = ["listing Service", "+shop/a", "listing Service", "+shop/b", "listed Service"];
    assert_eq!(receive(&events, 5), want);
}

fn an_expired_watch_starts_over_with_a_list(wire: Wire) {
    let turns = Arc::new(AtomicUsize::new(0));
    let stub = Stub::start(move |_, talk| {
        talk.begin();
        if turns.fetch_add(1, Ordering::SeqCst) == 0 {
            talk.event("ADDED", &service("a", 1));
            talk.event("BOOKMARK", &end_of_list(7));
            talk.event(
                "ERROR",
                &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}),
            );
            talk.end();
        } else {
            talk.event("ADDED", &service("b", 2));
            talk.event("BOOKMARK", &end_of_list(8));
            talk.stay();
        }
    });
    let events = follow(&stub, wire, Resource::Service);
    let want =
        ["listing Service", "+shop/a", "listed Service", "listing Service", "+shop/b", "listed Service"];
    assert_eq!(receive(&events, 6), want);
    stub.asked();
    let again = stub.asked();
    assert!(is_stream(&again));
    assert_eq!(again.query("resourceVersion"), "", "from now, and no older");
}

fn a_list_after_the_first_does_not_go_back_in_time(wire: Wire) {
    let turns = Arc::new(AtomicUsize::new(0));
    let stub = Stub::start(move |asked, talk| match (is_stream(asked), asked.is_watch()) {
        (true, _) => refuse_stream(talk),
        (false, false) => talk.object(200, &page(&[], 5, "")),
        (false, true) if turns.fetch_add(1, Ordering::SeqCst) == 0 => {
            talk.refuse(410, "Gone", "too old resource version");
        }
        (false, true) => talk.stay(),
    });
    let events = follow(&stub, wire, Resource::Service);
    receive(&events, 4);
    let lists: Vec<_> = (0..4).map(|_| stub.asked()).filter(|asked| !asked.is_watch()).collect();
    let versions: Vec<_> = lists.iter().map(|asked| asked.query("resourceVersion")).collect();
    assert_eq!(versions, ["0", ""]);
}

fn a_watch_that_ends_within_an_event_resumes_after_the_last_complete_one(wire: Wire) {
    let stub = Stub::start(|asked, talk| {
        talk.begin();
        match asked.query("resourceVersion") {
            "" => {
                talk.event("BOOKMARK", &end_of_list(7));
                talk.event("ADDED", &service("a", 8));
                talk.half_event("ADDED", &service("b", 9));
            }
            _ => {
                talk.event("ADDED", &service("b", 9));
                talk.stay();
            }
        }
    });
    let events = follow(&stub, wire, Resource::Service);
    assert_eq!(receive(&events, 4), ["listing Service", "listed Service", "+shop/a", "+shop/b"]);
    stub.asked();
    assert_eq!(stub.asked().query("resourceVersion"), "8");
}

fn bookmarks_advance_the_position(wire: Wire) {
    let stub = Stub::start(|asked, talk| {
        talk.begin();
        if asked.query("resourceVersion").is_empty() {
            talk.event("BOOKMARK", &end_of_list(7));
            talk.event("BOOKMARK", &bookmark(12));
            talk.end();
        } else {
            talk.stay();
        }
    });
    let _events = follow(&stub, wire, Resource::Service);
    stub.asked();
    assert_eq!(stub.asked().query("resourceVersion"), "12");
}

fn a_truncated_list_is_listed_again(wire: Wire) {
    let turns = Arc::new(AtomicUsize::new(0));
    let stub = Stub::start(move |_, talk| {
        talk.begin();
        talk.event("ADDED", &service("a", 3));
        if turns.fetch_add(1, Ordering::SeqCst) > 0 {
            talk.event("BOOKMARK", &end_of_list(7));
            talk.stay();
        }
    });
    let events = follow(&stub, wire, Resource::Service);
    let want = ["listing Service", "+shop/a", "listing Service", "+shop/a", "listed Service"];
    assert_eq!(receive(&events, 5), want);
}

fn an_undecodable_object_is_skipped(wire: Wire) {
    let nonsense = json!({"metadata": {"name": "bad", "resourceVersion": "4"}, "spec": {"ports": "eighty"}});
    let in_stream = nonsense.clone();
    let stub = Stub::start(move |_, talk| {
        talk.begin();
        talk.event("ADDED", &service("a", 3));
        talk.event("ADDED", &in_stream);
        talk.event("ADDED", &service("b", 5));
        talk.event("BOOKMARK", &end_of_list(7));
        talk.stay();
    });
    let events = follow(&stub, wire, Resource::Service);
    assert_eq!(receive(&events, 4), ["listing Service", "+shop/a", "+shop/b", "listed Service"]);

    let stub = Stub::start(move |asked, talk| match (is_stream(asked), asked.is_watch()) {
        (true, _) => refuse_stream(talk),
        (false, true) => talk.stay(),
        (false, false) => {
            talk.object(200, &page(&[service("a", 3), nonsense.clone(), service("b", 5)], 7, ""));
        }
    });
    let events = follow(&stub, wire, Resource::Service);
    assert_eq!(receive(&events, 4), ["listing Service", "+shop/a", "+shop/b", "listed Service"]);
}

fn a_server_may_send_single_bytes(wire: Wire) {
    let stub = Stub::start(|_, talk| {
        std::thread::sleep(Duration::from_millis(300));
        talk.begin();
        talk.slow_event("ADDED", &service("é", 3));
        talk.event("BOOKMARK", &end_of_list(7));
        talk.stay();
    });
    let events = follow(&stub, wire, Resource::Service);
    assert_eq!(receive(&events, 3), ["listing Service", "+shop/é", "listed Service"]);
}

fn retry_after_is_respected(wire: Wire) {
    let turns = Arc::new(AtomicUsize::new(0));
    let stub = Stub::start(move |_, talk| {
        if turns.fetch_add(1, Ordering::SeqCst) == 0 {
            talk.answer(429, "Retry-After: 3\r\n", b"");
        } else {
            talk.stay();
        }
    });
    let _events = follow(&stub, wire, Resource::Service);
    stub.asked();
    let refused = std::time::Instant::now();
    stub.asked();
    assert!(refused.elapsed() > Duration::from_millis(2_800));
}

fn a_missing_node_is_emitted_as_deleted(wire: Wire) {
    let stub = Stub::start(|_, talk| {
        talk.begin();
        talk.event("BOOKMARK", &end_of_list(7));
        talk.event("ADDED", &json!({"metadata": {"name": "n1", "resourceVersion": "8"}}));
        talk.stay();
    });
    let events = follow(&stub, wire, Resource::Node("n1".into()));
    assert_eq!(receive(&events, 2), ["-node", "+n1"]);
}

fn bytes_that_are_no_event_lead_to_a_list(wire: Wire) {
    let turns = Arc::new(AtomicUsize::new(0));
    let stub = Stub::start(move |_, talk| {
        talk.begin();
        talk.event("BOOKMARK", &end_of_list(7));
        if turns.fetch_add(1, Ordering::SeqCst) == 0 {
            talk.raw(b"nonsense\n");
        }
        talk.stay();
    });
    let events = follow(&stub, wire, Resource::Service);
    assert_eq!(
        receive(&events, 4),
        ["listing Service", "listed Service", "listing Service", "listed Service"]
    );
    stub.asked();
    assert!(is_stream(&stub.asked()), "from the same place it would come again");
}
