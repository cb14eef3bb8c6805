use std::collections::BTreeMap;

use watch::client::Observer as _;

use super::*;
use crate::http::tests::ask;

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
        census: Arc::new(Census::new(Families::new())),
        node_name: "node-1".to_owned(),
    }
}

fn status() -> Arc<dyn Site> {
    Arc::new(Status::new(facts()))
}

const TEXT_HEADER: &str = "Content-Type: text/plain; charset=utf-8";
const NOSNIFF: &str = "X-Content-Type-Options: nosniff";

#[test]
fn every_page_has_the_status_headers_and_body_of_the_reference() {
    let not_found = (404, &[TEXT_HEADER, NOSNIFF, "Content-Length: 19"][..], "404 page not found\n");
    let html = &["Content-Type: text/html; charset=utf-8"][..];
    let bare = "Content-Type: text/plain\r\n";
    let site = status();
    for (request, (code, headers, body)) in [
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
        let (head, told) = ask(site.clone(), request);
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{request}: {head}");
        assert_eq!(told, body, "{request}");
        for header in headers {
            assert!(format!("{head}\r\n").contains(header), "{request}: {header} in {head}");
        }
    }
    for path in ["/debug/flags", "/debug/flags/", "/debug/flags/x"] {
        let (head, body) = ask(site.clone(), &format!("GET {path}"));
        assert!(head.contains(html[0]) && body.len() == 168, "{path}: {head} {body}");
    }
}

#[test]
fn metrics_are_shown_as_prometheus_wants_them() {
    let site = status();
    let (head, body) = ask(site.clone(), "GET /metrics");
    let media_type = "Content-Type: text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
    assert!(head.contains(media_type), "{head}");
    assert!(head.contains("\r\nProcess-Start-Time-Unix: 1"), "{head}");
    assert!(body.contains("\nkubernetes_build_info{"), "{body}");
    assert!(body.contains("\nprocess_resident_memory_bytes "));
    let (head, zipped) = ask(site.clone(), "GET /metrics\nAccept-Encoding: deflate, gzip");
    assert!(head.contains("Content-Encoding: gzip"), "{head}");
    assert!(zipped.len() * 2 < body.len());
    let (head, _) = ask(site.clone(), "GET /metrics\nAccept-Encoding: gzip;q=0");
    assert!(!head.contains("Content-Encoding"), "{head}");
    ask(site.clone(), "GET /healthz");
    let (head, body) = ask(site, "GET /metrics/slis");
    assert!(head.contains(media_type), "{head}");
    assert!(
        body.contains("kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 1\n")
    );
}

#[test]
fn the_configuration_is_shown_as_it_is() {
    let (head, body) = ask(status(), "GET /configz");
    assert!(head.contains("Content-Type: application/json\r\n") && head.contains(NOSNIFF), "{head}");
    let json = KubeProxyConfiguration::with_defaults().to_json().unwrap();
    assert_eq!(body, format!("{{\"kubeproxy.config.k8s.io\":{json}}}"));
}

#[test]
fn pages_are_there_only_while_their_gates_are_open() {
    let closed = [("ComponentFlagz", false), ("ComponentStatusz", false)];
    let closed = closed.map(|(name, on)| (name.to_owned(), on)).into_iter().collect();
    let shut = Facts { gates: Gates::resolve(&closed).unwrap(), profiling: false, ..facts() };
    let shut: Arc<dyn Site> = Arc::new(Status::new(shut));
    for path in ["/flagz", "/statusz", "/debug/pprof", "/debug/pprof/", "/debug/flags/v", "/debug/flags"] {
        let request = format!("GET {path}");
        assert!(!ask(status(), &request).0.starts_with("HTTP/1.1 404"), "{path}");
        assert!(ask(shut.clone(), &request).0.starts_with("HTTP/1.1 404"), "{path}");
    }
    let (_, statusz) = ask(status(), "GET /statusz");
    assert!(statusz.contains(" /configz /flagz /healthz /metrics /proxyMode\n"), "{statusz}");
    assert!(!statusz.contains("watch"), "{statusz}");
    let followed = facts();
    followed.metrics.message("services");
    let (_, statusz) = ask(Arc::new(Status::new(followed)), "GET /statusz");
    assert!(statusz.contains(" services ") && statusz.ends_with(" s ago\n"), "{statusz}");
}

#[test]
fn the_verbosity_changes_while_running() {
    let facts = facts();
    let logs = facts.logs.clone();
    ask(Arc::new(Status::new(facts)), "PUT /debug/flags/v\n\n7");
    assert_eq!(logs.verbosity(), 7);
}

#[test]
fn connections_are_told_of_where_the_kernel_counts_them() {
    let (head, body) = ask(status(), "GET /debug/sluice/connections");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Type: application/json\r\n"),
        "{head}"
    );
    assert!(body.starts_with(r#"{"node":"node-1","mode":"nftables","countedAt":{"#), "{body}");
    assert!(body.ends_with(r#""servicePorts":[]}"#), "{body}");
    let site = Arc::new(Status::new(Facts { mode: ProxyMode::Iptables, ..facts() }));
    let (head, body) = ask(site, "GET /debug/sluice/connections");
    assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
    assert_eq!(body, "new connections are counted in nftables mode only, and this is iptables mode\n");
}

#[test]
fn questions_about_packets_are_answered_or_refused_with_the_reason() {
    for (question, want) in [
        ("", "protocol: tcp, udp or sctp\n"),
        ("?protocol=tcp&to=10.96.0.10", "to: no address with a port\n"),
        ("?protocol=tcp&to=10.96.0.10:80", "this proxy does not serve IPv4\n"),
        ("?protocol=udp&to=[fd00::1]:53&from=fd00::2", "this proxy does not serve IPv6\n"),
    ] {
        let (head, body) = ask(status(), &format!("GET /debug/sluice/explain{question}"));
        assert!(head.starts_with("HTTP/1.1 400 "), "{question}: {head}");
        assert_eq!(body, want, "{question}");
    }
}

#[test]
fn who_asks_through_a_proxy_on_this_node_is_refused_what_is_for_this_node() {
    for header in ["X-Forwarded-For: 192.0.2.1", "Via: 1.1 node-1", "Host: rebound.example.com:10249"] {
        let (head, body) = ask(status(), &format!("GET /debug/sluice/connections\n{header}"));
        assert!(head.starts_with("HTTP/1.1 403 "), "{header}: {head}");
        assert!(body.starts_with("only answered to who asks from this node"), "{header}: {body}");
        let (head, _) = ask(status(), &format!("GET /metrics\n{header}"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{header}: {head}");
    }
}
