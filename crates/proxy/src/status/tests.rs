use std::collections::BTreeMap;

use watch::client::Observer as _;

use super::*;
use crate::http::tests::request;

fn facts() -> Facts {
    let gates = Gates::resolve(&BTreeMap::new()).unwrap();
    let metrics = Arc::new(Metrics::new(ProxyMode::Nftables));
    metrics.describe(&Build::reported_as("v1.36.3"), &gates);
    Facts {
        mode: ProxyMode::Nftables,
        config: KubeProxyConfiguration::with_defaults(),
        flags: vec![("v", "2".to_owned()), ("config", String::new())],
        version: "v1.36.3".to_owned(),
        gates,
        profiling: true,
        logs: Logs::unused(),
        metrics,
        families: Families::new(),
        connection_counter: Arc::new(ConnectionCounter::new(Families::new())),
        node_name: "node-1".to_owned(),
    }
}

fn status() -> Arc<dyn Site> {
    Arc::new(Status::new(facts()))
}

const TEXT_HEADER: &str = "Content-Type: text/plain; charset=utf-8";
const NOSNIFF: &str = "X-Content-Type-Options: nosniff";

#[test]
fn every_page_has_the_status_headers_and_body_of_upstream() {
    let not_found = (404, &[TEXT_HEADER, NOSNIFF, "Content-Length: 19"][..], "404 page not found\n");
    let html = &["Content-Type: text/html; charset=utf-8"][..];
    let bare = "Content-Type: text/plain\r\n";
    let site = status();
    for (text, (code, headers, body)) in [
        ("GET /healthz", (200, &[TEXT_HEADER, NOSNIFF][..], "ok")),
        ("GET /healthz?verbose", (200, &[TEXT_HEADER, NOSNIFF], "[+]ping ok\nhealthz check passed\n")),
        ("GET /healthz/ping", (200, &[TEXT_HEADER], "ok")),
        ("POST /proxyMode", (200, &[TEXT_HEADER, NOSNIFF], "nftables")),
        ("GET /proxyMode/", not_found),
        ("GET /configz/", not_found),
        ("GET /nope", not_found),
        ("GET /", not_found),
        ("DELETE /metrics/slis", (200, &[TEXT_HEADER], "metrics reset\n")),
        (
            "PUT /debug/flags/v\n\n4",
            (200, &[bare, NOSNIFF], "successfully set klog.logging.verbosity to 4\n"),
        ),
        (
            "PUT /debug/flags/v\n\nabc",
            (400, &[bare, NOSNIFF], "strconv.ParseUint: parsing \"abc\": invalid syntax\n"),
        ),
        (
            "PUT /debug/flags/v\n\n99999999999",
            (400, &[bare, NOSNIFF], "strconv.ParseUint: parsing \"99999999999\": value out of range\n"),
        ),
        ("GET /debug/flags/v", (406, &[bare, NOSNIFF], "unsupported http method\n")),
        ("GET /debug/pprof", (302, &["Location: /debug/pprof/"], "<a href=\"/debug/pprof/\">Found</a>.\n\n")),
        ("GET /debug/pprof/heap", (404, &[TEXT_HEADER, NOSNIFF, "X-Go-Pprof: 1"], "Unknown profile\n")),
    ] {
        let (head, received) = request(site.clone(), text);
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{text}: {head}");
        assert_eq!(received, body, "{text}");
        for header in headers {
            assert!(format!("{head}\r\n").contains(header), "{text}: {header} in {head}");
        }
    }
    for path in ["/debug/flags", "/debug/flags/", "/debug/flags/x"] {
        let (head, body) = request(site.clone(), &format!("GET {path}"));
        assert!(head.contains(html[0]) && body.len() == 168, "{path}: {head} {body}");
    }
}

#[test]
fn metrics_have_the_format_of_prometheus() {
    let site = status();
    let (head, body) = request(site.clone(), "GET /metrics");
    let media_type = "Content-Type: text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
    assert!(head.contains(media_type), "{head}");
    assert!(head.contains("\r\nProcess-Start-Time-Unix: 1"), "{head}");
    assert!(body.contains("\nkubernetes_build_info{"), "{body}");
    assert!(body.contains("\nprocess_resident_memory_bytes "));
    let (head, compressed) = request(site.clone(), "GET /metrics\nAccept-Encoding: deflate, gzip");
    assert!(head.contains("Content-Encoding: gzip"), "{head}");
    assert!(compressed.len() * 2 < body.len());
    let (head, _) = request(site.clone(), "GET /metrics\nAccept-Encoding: gzip;q=0");
    assert!(!head.contains("Content-Encoding"), "{head}");
    request(site.clone(), "GET /healthz");
    let (head, body) = request(site, "GET /metrics/slis");
    assert!(head.contains(media_type), "{head}");
    assert!(
        body.contains("kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 1\n")
    );
}

#[test]
fn configz_shows_the_configuration() {
    let (head, body) = request(status(), "GET /configz");
    assert!(head.contains("Content-Type: application/json\r\n") && head.contains(NOSNIFF), "{head}");
    let json = KubeProxyConfiguration::with_defaults().to_json().unwrap();
    assert_eq!(body, format!("{{\"kubeproxy.config.k8s.io\":{json}}}"));
}

#[test]
fn pages_exist_only_if_their_gates_are_enabled() {
    let disabled = [("ComponentFlagz", false), ("ComponentStatusz", false)];
    let disabled = disabled.map(|(name, on)| (name.to_owned(), on)).into_iter().collect();
    let without = Facts { gates: Gates::resolve(&disabled).unwrap(), profiling: false, ..facts() };
    let without: Arc<dyn Site> = Arc::new(Status::new(without));
    for path in ["/flagz", "/statusz", "/debug/pprof", "/debug/pprof/", "/debug/flags/v", "/debug/flags"] {
        let text = format!("GET {path}");
        assert!(!request(status(), &text).0.starts_with("HTTP/1.1 404"), "{path}");
        assert!(request(without.clone(), &text).0.starts_with("HTTP/1.1 404"), "{path}");
    }
    let (_, statusz) = request(status(), "GET /statusz");
    assert!(statusz.contains(" /configz /flagz /healthz /metrics /proxyMode\n"), "{statusz}");
    assert!(!statusz.contains("watch"), "{statusz}");
    let watching = facts();
    watching.metrics.message("services");
    let (_, statusz) = request(Arc::new(Status::new(watching)), "GET /statusz");
    assert!(statusz.contains(" services ") && statusz.ends_with(" s ago\n"), "{statusz}");
}

#[test]
fn the_verbosity_changes_while_running() {
    let facts = facts();
    let logs = facts.logs.clone();
    request(Arc::new(Status::new(facts)), "PUT /debug/flags/v\n\n7");
    assert_eq!(logs.verbosity(), 7);
}

#[test]
fn connections_are_served_in_the_mode_that_counts_them() {
    let (head, body) = request(status(), "GET /debug/sluice/connections");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Type: application/json\r\n"),
        "{head}"
    );
    assert!(body.starts_with(r#"{"node":"node-1","mode":"nftables","countedAt":{"#), "{body}");
    assert!(body.ends_with(r#""servicePorts":[]}"#), "{body}");
    let site = Arc::new(Status::new(Facts { mode: ProxyMode::Iptables, ..facts() }));
    let (head, body) = request(site, "GET /debug/sluice/connections");
    assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
    assert_eq!(body, "new connections are counted in nftables and ipvs mode, and this is iptables mode\n");
}

#[test]
fn invalid_packet_queries_are_refused_with_the_reason() {
    for (query, want) in [
        ("", "protocol: tcp, udp or sctp\n"),
        ("?protocol=tcp&to=10.96.0.10", "to: not an address with a port\n"),
        ("?protocol=tcp&to=10.96.0.10:80", "this proxy does not serve IPv4\n"),
        ("?protocol=udp&to=[fd00::1]:53&from=fd00::2", "this proxy does not serve IPv6\n"),
    ] {
        let (head, body) = request(status(), &format!("GET /debug/sluice/explain{query}"));
        assert!(head.starts_with("HTTP/1.1 400 "), "{query}: {head}");
        assert_eq!(body, want, "{query}");
    }
}

#[test]
fn a_request_through_a_proxy_on_this_node_is_refused_by_the_debug_api() {
    for header in ["X-Forwarded-For: 192.0.2.1", "Via: 1.1 node-1", "Host: rebound.example.com:10249"] {
        let (head, body) = request(status(), &format!("GET /debug/sluice/connections\n{header}"));
        assert!(head.starts_with("HTTP/1.1 403 "), "{header}: {head}");
        assert!(body.starts_with("only served to clients on this node"), "{header}: {body}");
        let (head, _) = request(status(), &format!("GET /metrics\n{header}"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{header}: {head}");
    }
}
