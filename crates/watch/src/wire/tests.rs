//! The bodies in `tests/fixtures` were recorded from kube-apiserver v1.36.3, each in both encodings.

use std::path::Path;

use model::api::{
    EndpointConditions, EndpointHints, EndpointPort, Hint, Service, ServicePort, SliceEndpoint,
};
use model::event::Event;
use proptest::prelude::*;

use super::*;
use crate::fuzz::{Decoded, list, watch};
use crate::items::Items;
use crate::meta::Status;
use crate::resource::Resource;

type DecodeBody = fn(Wire, Resource, &mut dyn Iterator<Item = &[u8]>) -> Decoded;

fn resources() -> [Resource; 4] {
    [Resource::Node("n1".into()), Resource::Service, Resource::EndpointSlice, Resource::ServiceCidr]
}

fn recorded(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

/// Every recorded list and watch.
fn bodies() -> impl Iterator<Item = (Resource, DecodeBody, String)> {
    resources().into_iter().flat_map(|resource| {
        [(list as DecodeBody, "list"), (watch, "watch")].map(|(decode, kind)| {
            let name = format!("{}.{kind}", resource.name());
            (resource.clone(), decode, name)
        })
    })
}

fn decode_whole(wire: Wire, resource: Resource, decode: DecodeBody, body: &[u8]) -> Decoded {
    decode(wire, resource, &mut std::iter::once(body))
}

fn service(events: &[Event], name: &str) -> Service {
    let found = events.iter().find_map(|event| {
        let Event::ServiceApplied(service) = event else { return None };
        (&*service.metadata.name == name).then_some(service)
    });
    (**found.unwrap()).clone()
}

#[test]
fn both_encodings_of_a_body_give_the_same_events() {
    for (resource, decode, name) in bodies() {
        let [json, protobuf] = [(Wire::Json, "json"), (Wire::Protobuf, "pb")].map(|(wire, extension)| {
            decode_whole(wire, resource.clone(), decode, &recorded(&format!("{name}.{extension}")))
        });
        for (events, position, failure) in [&json, &protobuf] {
            assert_eq!(
                (events.is_empty(), position.is_some(), failure.as_str()),
                (false, true, ""),
                "{name}"
            );
        }
        assert_eq!(json.0, protobuf.0, "{name}");
    }
}

#[test]
fn a_service_has_the_fields_that_it_was_created_with() {
    let body = recorded("services.list.pb");
    let (events, position, failure) = decode_whole(Wire::Protobuf, Resource::Service, list, &body);
    assert_eq!((position.is_some(), failure.as_str()), (true, ""));
    let web = service(&events, "web");
    assert_eq!(web.metadata.to_string(), "shop/web");
    assert_eq!(web.metadata.labels.zone.as_deref(), Some("z"));
    assert!(web.metadata.creation_timestamp.unwrap().starts_with("2026-"));
    assert_eq!(web.metadata.deletion_timestamp, None);
    assert_eq!(web.spec.r#type.as_deref(), Some("LoadBalancer"));
    assert_eq!(web.spec.ip_families, ["IPv4", "IPv6"]);
    assert_eq!(web.spec.cluster_ips.len(), 2);
    assert_eq!(web.spec.cluster_ip, web.spec.cluster_ips[0]);
    assert_eq!(web.spec.external_ips, ["203.0.113.9"]);
    assert_eq!(web.spec.load_balancer_source_ranges, ["192.0.2.0/24"]);
    assert_eq!(web.spec.external_traffic_policy.as_deref(), Some("Local"));
    assert_eq!(web.spec.internal_traffic_policy.as_deref(), Some("Cluster"));
    assert!(web.spec.health_check_node_port.is_some());
    assert_eq!(web.spec.session_affinity.as_deref(), Some("ClientIP"));
    let affinity = web.spec.session_affinity_config.unwrap().client_ip.unwrap();
    assert_eq!(affinity.timeout_seconds, Some(600));
    let dns =
        ServicePort { name: "dns".into(), protocol: Some("UDP".into()), port: 53, node_port: Some(30_053) };
    assert_eq!(web.spec.ports[1], dns);
    let ingress = &web.status.load_balancer.ingress;
    assert_eq!((ingress[0].ip.as_str(), ingress[0].ip_mode.as_deref()), ("198.51.100.2", Some("VIP")));
    assert_eq!((ingress[1].ip.as_str(), ingress[1].ip_mode.as_deref()), ("", None));

    let plain = service(&events, "plain");
    assert_eq!(plain.spec.external_traffic_policy, None, "empty, which JSON omits");
    assert_eq!(plain.spec.health_check_node_port, None, "zero, which JSON omits");
    assert_eq!(plain.spec.ports[0].node_port, None, "zero, which JSON omits");
}

#[test]
fn an_endpoint_slice_has_the_fields_that_it_was_created_with() {
    let body = recorded("endpointslices.watch.pb");
    let (events, ..) = decode_whole(Wire::Protobuf, Resource::EndpointSlice, watch, &body);
    let found = events.iter().find_map(|event| {
        let Event::SliceApplied(slice) = event else { return None };
        (&*slice.metadata.name == "web-1").then_some(slice)
    });
    let slice = found.unwrap();
    assert_eq!(slice.metadata.labels.service_name.as_deref(), Some("web"));
    let trigger_time = slice.metadata.annotations.last_change_trigger_time.as_deref();
    assert_eq!(trigger_time, Some("2026-11-15T18:00:00Z"));
    assert_eq!(slice.address_type, "IPv4");
    assert_eq!(slice.endpoints.len(), 3);
    let hint = |name: &str| vec![Hint { name: name.into() }];
    let endpoint = SliceEndpoint {
        addresses: vec!["10.0.1.1".into()],
        conditions: EndpointConditions { ready: Some(true), serving: Some(true), terminating: Some(false) },
        node_name: Some("n1".into()),
        hints: EndpointHints { for_zones: hint("z"), for_nodes: hint("n1") },
    };
    assert_eq!(slice.endpoints[0], endpoint);
    assert_eq!(slice.endpoints[1].conditions.ready, Some(false));
    assert_eq!(slice.endpoints[1].conditions.serving, None);
    let unnamed = EndpointPort { name: Some(String::new()), protocol: Some("TCP".into()), port: None };
    assert_eq!(slice.ports[1], unnamed);
}

#[test]
fn a_watch_that_has_expired_fails_with_the_text_of_the_server() {
    for (wire, name) in [(Wire::Json, "gone.json"), (Wire::Protobuf, "gone.pb")] {
        let (_, position, failure) = decode_whole(wire, Resource::Service, watch, &recorded(name));
        assert_eq!((position, failure.as_str()), (None, "too old resource version: 1 (233)"));
    }
}

#[test]
fn an_error_has_code_reason_and_message() {
    let body = recorded("not-found.pb");
    let status: Status = Wire::Protobuf.object(&body).unwrap().decode().unwrap();
    assert_eq!((status.code, status.reason.as_str()), (404, "NotFound"));
    assert_eq!(status.message, "services \"none\" not found");
    assert_eq!(status.details.unwrap().retry_after_seconds, None);
}

#[test]
fn a_page_leads_to_the_next_one() {
    let mut items = Items::new(Wire::Protobuf);
    let mut found = 0;
    items.push(&recorded("page.pb"), &mut |_| found += 1).unwrap();
    let meta = items.finish().unwrap();
    assert_eq!(found, 1);
    assert!(!meta.r#continue.is_empty());
}

/// Of a body that ends early, the complete objects are used. A list then fails, a watch may go on.
#[test]
fn a_truncated_body_gives_the_events_before_its_end() {
    for (resource, decode, name) in bodies() {
        let body = recorded(&format!("{name}.pb"));
        let (all, ..) = decode_whole(Wire::Protobuf, resource.clone(), decode, &body);
        for length in 0..body.len() {
            let (events, position, failure) =
                decode_whole(Wire::Protobuf, resource.clone(), decode, &body[..length]);
            assert!(all.starts_with(&events), "{name}");
            // The fields that follow the items are empty.
            let is_complete = name.ends_with("list") && length >= body.len() - 4;
            assert!(is_complete || position.is_none(), "{name}: {length} of {}", body.len());
            assert_eq!(failure.is_empty(), is_complete && position.is_some() || name.ends_with("watch"));
        }
    }
}

#[test]
fn lengths_that_cannot_be_true_are_rejected() {
    let envelope = b"k8s\0\x12";
    for (rest, failure) in [
        // Of the list, with a first item that is longer.
        (&b"\x02\x12\x05"[..], "malformed protobuf: a field ends behind its list"),
        // Of an item: 2^40 bytes in a list of 2^41, and 2^64 - 1 in a list of as many.
        (b"\x80\x80\x80\x80\x80\x40\x12\x80\x80\x80\x80\x80\x20", "an object without end"),
        (
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "an object without end",
        ),
        // With more bits than a number may have.
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "malformed protobuf: a number has more than 64 bits"),
        (
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "malformed protobuf: a number has more than 64 bits",
        ),
        // A group, which the API does not use.
        (b"\x05\x0b\x0c", "malformed protobuf: an unknown wire type"),
    ] {
        let body = [envelope, rest].concat();
        let (events, position, error) = decode_whole(Wire::Protobuf, Resource::Service, list, &body);
        assert_eq!((events.len(), position), (1, None));
        assert_eq!(error, format!("unable to decode the server's answer: {failure}"));
    }
}

#[test]
fn the_content_type_says_what_an_answer_is() {
    for (content_type, wire) in [
        (None, Wire::Json),
        (Some("application/json"), Wire::Json),
        (Some("application/vnd.kubernetes.protobuf"), Wire::Protobuf),
        (Some("application/vnd.kubernetes.protobuf;stream=watch"), Wire::Protobuf),
    ] {
        let headers = content_type.map(|value| (CONTENT_TYPE, value.parse().unwrap()));
        assert_eq!(Wire::of(&headers.into_iter().collect()), wire, "{content_type:?}");
    }
}

proptest! {
    #[test]
    fn any_split_of_a_body_gives_the_same_events(
        body in 0_usize..8,
        wire in prop_oneof![Just((Wire::Json, "json")), Just((Wire::Protobuf, "pb"))],
        mut splits in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let (wire, extension) = wire;
        let (resource, decode, name) = bodies().nth(body).unwrap();
        let body = recorded(&format!("{name}.{extension}"));
        splits.sort_by_key(|index| index.index(body.len()));
        let mut rest = &body[..];
        let mut chunks = Vec::new();
        for split in splits {
            let at = split.index(body.len()) - (body.len() - rest.len());
            let (chunk, after) = rest.split_at(at);
            chunks.push(chunk);
            rest = after;
        }
        chunks.push(rest);
        let whole = decode_whole(wire, resource.clone(), decode, &body);
        prop_assert_eq!(decode(wire, resource, &mut chunks.into_iter()), whole);
    }

    #[test]
    fn any_change_of_a_byte_is_decoded_or_rejected(
        body in 0_usize..8,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (resource, decode, name) = bodies().nth(body).unwrap();
        let mut body = recorded(&format!("{name}.pb"));
        let at = at.index(body.len());
        body[at] = byte;
        decode_whole(Wire::Protobuf, resource, decode, &body);
    }
}
