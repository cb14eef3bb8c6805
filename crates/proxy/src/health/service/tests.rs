use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use settings::config::ProxyMode;

use super::*;
use crate::http::listen::listen;
use crate::http::tests::exchange;
use crate::metrics::Metrics;

fn service_health() -> (ServiceHealth, Arc<NodeHealth>) {
    let metrics = Arc::new(Metrics::new(ProxyMode::Nftables));
    let node = Arc::new(NodeHealth::new(Duration::ZERO, [], metrics));
    let (http, recorder) = (Http::start().unwrap(), Recorder::to_log());
    let addresses = NodePortAddresses::new(Family::V4, &["127.0.0.1/32".parse().unwrap()]);
    let health = ServiceHealth::new(Family::V4, &addresses, "node".to_owned(), http, node.clone(), recorder);
    (health, node)
}

fn free_port() -> Port {
    let listener = listen(at(0)).unwrap();
    Port::from_api(listener.local_addr().unwrap().port().into()).unwrap()
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

fn check(name: &str, port: Port, local_endpoints: usize) -> [(NamespacedName, Option<HealthCheck>); 1] {
    [(NamespacedName::new("default", name), Some(HealthCheck { port, local_endpoints }))]
}

fn gone(name: &str) -> [(NamespacedName, Option<HealthCheck>); 1] {
    [(NamespacedName::new("default", name), None)]
}

/// The status, weight and body at a port; `None` if the port is closed.
fn response(port: Port) -> Option<(String, String, String)> {
    TcpStream::connect(at(port.get())).ok()?;
    let (head, body) = exchange(at(port.get()), "GET /any/path");
    let weight = head.lines().find_map(|line| line.strip_prefix("X-Load-Balancing-Endpoint-Weight: "));
    for header in ["Content-Type: application/json", "X-Content-Type-Options: nosniff"] {
        assert!(head.contains(header), "{header} in {head}");
    }
    Some((head.split(' ').nth(1)?.to_owned(), weight?.to_owned(), body))
}

fn code_and_weight(port: Port) -> Option<(String, String)> {
    response(port).map(|(code, weight, _)| (code, weight))
}

fn expected(code: &str, weight: &str) -> Option<(String, String)> {
    Some((code.to_owned(), weight.to_owned()))
}

#[test]
fn a_load_balancer_gets_the_responses_of_upstream() {
    let (mut health, node) = service_health();
    let port = free_port();
    health.apply(check("lb", port, 1));
    assert_eq!(response(port), None, "nothing is visible before the rules are committed");
    health.update_ports();
    let body = "{
\t\"service\": {
\t\t\"namespace\": \"default\",
\t\t\"name\": \"lb\"
\t},
\t\"localEndpoints\": 1,
\t\"serviceProxyHealthy\": true
}";
    assert_eq!(response(port), Some(("200".to_owned(), "1".to_owned(), body.to_owned())));
    health.apply(check("lb", port, 0));
    health.update_ports();
    assert_eq!(code_and_weight(port), expected("503", "0"));
    health.apply(check("lb", port, 3));
    health.update_ports();
    assert_eq!(code_and_weight(port), expected("200", "3"));
    // With a sync period of zero, a sync that is due is overdue.
    node.synced(Family::V4);
    node.queued(Family::V4);
    let (code, weight, body) = response(port).unwrap();
    assert_eq!((code.as_str(), weight.as_str()), ("503", "3"), "the weight does not change");
    assert!(body.ends_with("\"serviceProxyHealthy\": false\n}"), "{body}");
}

#[test]
fn ports_follow_their_services() {
    let (mut health, _) = service_health();
    let (one, two) = (free_port(), free_port());
    health.apply(check("a", one, 1));
    health.update_ports();
    health.apply(check("a", two, 1));
    health.apply(check("b", one, 2));
    health.update_ports();
    assert_eq!(code_and_weight(one), expected("200", "2"), "moved within one update");
    assert_eq!(code_and_weight(two), expected("200", "1"));
    health.apply(gone("b"));
    health.update_ports();
    assert_eq!(response(one), None);
    assert_eq!(code_and_weight(two), expected("200", "1"));
}

#[test]
fn a_port_that_is_in_use_is_retried_and_does_not_affect_others() {
    let (mut health, _) = service_health();
    let (taken, free) = (free_port(), free_port());
    let holder = listen(at(taken.get())).unwrap();
    health.apply(check("a", taken, 1));
    health.apply(check("b", free, 1));
    health.update_ports();
    assert_eq!(code_and_weight(free), expected("200", "1"));
    assert_eq!(health.open_errors.len(), 1);
    drop(holder);
    health.update_ports();
    assert_eq!(code_and_weight(taken), expected("200", "1"), "without a change");
}

#[test]
fn a_service_that_is_deleted_before_its_port_was_opened_is_forgotten() {
    let (mut health, _) = service_health();
    let port = free_port();
    health.apply(check("a", port, 1));
    health.apply(gone("a"));
    health.update_ports();
    assert_eq!(response(port), None);
    assert!(
        health.open_errors.is_empty()
            && health.outdated.is_empty()
            && health.open.is_empty()
            && health.desired.is_empty()
    );
}

#[test]
fn a_family_listens_at_the_addresses_of_its_node_ports() {
    let everywhere = |family| addresses(family, &NodePortAddresses::new(family, &[]));
    assert_eq!(everywhere(Family::V4), [IpAddr::from(Ipv4Addr::UNSPECIFIED)]);
    assert_eq!(everywhere(Family::V6), [IpAddr::from(Ipv6Addr::UNSPECIFIED)]);
    let nowhere = NodePortAddresses::new(Family::V4, &["198.51.100.0/24".parse().unwrap()]);
    assert_eq!(addresses(Family::V4, &nowhere), Vec::<IpAddr>::new());
}

#[test]
fn the_response_is_json_for_any_name_of_a_service() {
    let text = body(&NamespacedName::new("shop", "we\"b\n"), 1, true);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["service"]["name"], "we\"b\n");
}
