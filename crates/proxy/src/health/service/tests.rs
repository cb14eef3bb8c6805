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

/// The status, weight and body at a port; nothing if nobody answers.
fn told(port: Port) -> Option<(String, String, String)> {
    TcpStream::connect(at(port.get())).ok()?;
    let (head, body) = exchange(at(port.get()), "GET /any/path");
    let weight = head.lines().find_map(|line| line.strip_prefix("X-Load-Balancing-Endpoint-Weight: "));
    for header in ["Content-Type: application/json", "X-Content-Type-Options: nosniff"] {
        assert!(head.contains(header), "{header} in {head}");
    }
    Some((head.split(' ').nth(1)?.to_owned(), weight?.to_owned(), body))
}

fn code_and_weight(port: Port) -> Option<(String, String)> {
    told(port).map(|(code, weight, _)| (code, weight))
}

fn says(code: &str, weight: &str) -> Option<(String, String)> {
    Some((code.to_owned(), weight.to_owned()))
}

#[test]
fn a_load_balancer_is_told_in_the_words_of_the_reference() {
    let (mut health, node) = service_health();
    let port = free_port();
    health.hear(check("lb", port, 1));
    assert_eq!(told(port), None, "nothing shows before rules are in place");
    health.settle();
    let body = "{
\t\"service\": {
\t\t\"namespace\": \"default\",
\t\t\"name\": \"lb\"
\t},
\t\"localEndpoints\": 1,
\t\"serviceProxyHealthy\": true
}";
    assert_eq!(told(port), Some(("200".to_owned(), "1".to_owned(), body.to_owned())));
    health.hear(check("lb", port, 0));
    health.settle();
    assert_eq!(code_and_weight(port), says("503", "0"));
    health.hear(check("lb", port, 3));
    health.settle();
    assert_eq!(code_and_weight(port), says("200", "3"));
    // With a sync period of zero, whatever is due is overdue.
    node.synced(Family::V4);
    node.queued(Family::V4);
    let (code, weight, body) = told(port).unwrap();
    assert_eq!((code.as_str(), weight.as_str()), ("503", "3"), "the weight does not change");
    assert!(body.ends_with("\"serviceProxyHealthy\": false\n}"), "{body}");
}

#[test]
fn ports_follow_their_services() {
    let (mut health, _) = service_health();
    let (one, two) = (free_port(), free_port());
    health.hear(check("a", one, 1));
    health.settle();
    health.hear(check("a", two, 1));
    health.hear(check("b", one, 2));
    health.settle();
    assert_eq!(code_and_weight(one), says("200", "2"), "taken over within one pass");
    assert_eq!(code_and_weight(two), says("200", "1"));
    health.hear(gone("b"));
    health.settle();
    assert_eq!(told(one), None);
    assert_eq!(code_and_weight(two), says("200", "1"));
}

#[test]
fn a_port_that_is_taken_is_tried_again_and_troubles_nobody_else() {
    let (mut health, _) = service_health();
    let (taken, free) = (free_port(), free_port());
    let holder = listen(at(taken.get())).unwrap();
    health.hear(check("a", taken, 1));
    health.hear(check("b", free, 1));
    health.settle();
    assert_eq!(code_and_weight(free), says("200", "1"));
    assert_eq!(health.told.len(), 1);
    drop(holder);
    health.settle();
    assert_eq!(code_and_weight(taken), says("200", "1"), "with nothing new heard");
}

#[test]
fn what_is_gone_before_it_could_be_opened_is_forgotten() {
    let (mut health, _) = service_health();
    let port = free_port();
    health.hear(check("a", port, 1));
    health.hear(gone("a"));
    health.settle();
    assert_eq!(told(port), None);
    assert!(
        health.told.is_empty()
            && health.unsettled.is_empty()
            && health.open.is_empty()
            && health.wanted.is_empty()
    );
}

#[test]
fn a_family_listens_wherever_its_node_ports_answer() {
    let everywhere = |family| addresses(family, &NodePortAddresses::new(family, &[]));
    assert_eq!(everywhere(Family::V4), [IpAddr::from(Ipv4Addr::UNSPECIFIED)]);
    assert_eq!(everywhere(Family::V6), [IpAddr::from(Ipv6Addr::UNSPECIFIED)]);
    let nowhere = NodePortAddresses::new(Family::V4, &["198.51.100.0/24".parse().unwrap()]);
    assert_eq!(addresses(Family::V4, &nowhere), Vec::<IpAddr>::new());
}

#[test]
fn whatever_a_service_is_called_the_answer_is_json() {
    let text = body(&NamespacedName::new("shop", "we\"b\n"), 1, true);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["service"]["name"], "we\"b\n");
}
