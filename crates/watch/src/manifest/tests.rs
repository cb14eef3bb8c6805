use std::net::Ipv4Addr;

use super::*;

const WEB: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports:
  - port: 80
";

const SLICE: &str = "\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports:
- port: 8080
endpoints:
- addresses: [10.244.0.5]
";

/// The addresses of this node.
const OWN: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11)), IpAddr::V4(Ipv4Addr::LOCALHOST)];

fn yaml(text: &str) -> Content {
    read(text.as_bytes(), Form::Yaml, &OWN).unwrap()
}

fn keys(content: &Content) -> Vec<String> {
    content.objects.iter().map(|object| object.key().to_string()).collect()
}

fn refusals(content: &Content) -> Vec<String> {
    content.refused.iter().map(|(_, problem)| problem.to_string()).collect()
}

/// The only error of a valid object in which one line was replaced.
fn refusal(text: &str, line: &str, by: &str) -> String {
    assert!(text.contains(line), "{line:?} is not in the text");
    let content = yaml(&text.replace(line, by));
    assert_eq!(keys(&content), [""; 0], "{by}");
    assert_eq!(content.refused.len(), 1, "{by}: {content:?}");
    refusals(&content).remove(0)
}

#[test]
fn each_document_of_a_file_is_an_object() {
    let content = yaml(&format!("# a comment\n---\n{WEB}---\n\n--- # nothing here\n{SLICE}...\n"));
    assert_eq!(keys(&content), ["Service shop/web", "EndpointSlice default/web-1"]);
    assert_eq!(refusals(&content), [""; 0]);
}

#[test]
fn defaults_are_those_of_the_api_server() {
    let content = yaml(&format!(
        "{SLICE}---\n{}",
        WEB.replace("clusterIP: 10.96.0.10", "clusterIPs: [10.96.0.10, 'fd00::10']")
    ));
    let [Object::EndpointSlice(slice), Object::Service(service)] = &content.objects[..] else {
        panic!("{content:?}")
    };
    assert_eq!(&*slice.metadata.namespace, "default");
    assert_eq!(slice.ports[0].name.as_deref(), Some(""), "the unnamed port of the Service");
    assert_eq!(service.spec.cluster_ip, "10.96.0.10");
    assert_eq!(service.spec.ip_families, ["IPv4", "IPv6"]);
}

#[test]
fn lists_are_split_whether_their_items_have_a_kind_or_not() {
    let items = "
- metadata: {name: a}
  spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
- metadata: {name: b}
  spec: {clusterIP: 10.96.0.2, ports: [{port: 0}]}
";
    let content = yaml(&format!("apiVersion: v1\nkind: ServiceList\nitems:{items}"));
    assert_eq!(keys(&content), ["Service default/a"]);
    let port = "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive";
    assert_eq!(refusals(&content), [format!("line 1: items[1]: Service \"b\": {port}")]);

    let json = r#"{"apiVersion": "v1", "items": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "c"},
        "spec": {"clusterIP": "10.96.0.3", "ports": [{"port": 80}]}}], "kind": "List"}
        {"apiVersion": "v1", "kind": "List", "items": null}"#;
    let content = read(json.as_bytes(), Form::Json, &OWN).unwrap();
    assert_eq!(keys(&content), ["Service default/c"]);
}

#[test]
fn a_syntax_error_names_the_line() {
    for (text, form, want) in [
        ("kind: [a", Form::Yaml, "line 1"),
        ("a: 1\n---\nb: 2\n c: 3\n", Form::Yaml, "line 4"),
        ("kind: a\nkind: b\n", Form::Yaml, "line 2 column 1: duplicate mapping key: kind"),
        ("{\"kind\": \"a\"}\n{\"kind\": }", Form::Json, "line 2"),
        ("{", Form::Json, "line 1"),
    ] {
        let problem = read(text.as_bytes(), form, &OWN).unwrap_err().to_string();
        assert!(problem.starts_with(want), "{text:?}: {problem}");
    }
    let problem = read(b"a: b\nc: \xff\n", Form::Yaml, &OWN).unwrap_err();
    assert_eq!(problem.to_string(), "line 2: not valid UTF-8");
}

#[test]
fn a_type_error_names_its_line_even_after_other_documents() {
    let content = yaml(&format!("{SLICE}---\n{}", WEB.replace("port: 80", "port: eighty")));
    assert_eq!(keys(&content), ["EndpointSlice default/web-1"], "one bad object leaves the other alone");
    let refused = refusals(&content).remove(0);
    assert!(refused.starts_with("line 18 column 11: Service \"shop/web\": "), "{refused}");
    let key = content.refused[0].0.as_ref().unwrap();
    assert_eq!(key.to_string(), "Service shop/web", "so that its last good version can stay");
}

#[test]
fn other_kinds_are_noted_and_ignored() {
    let content =
        yaml(&format!("apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\n---\n{WEB}"));
    assert_eq!(keys(&content), ["Service shop/web"]);
    assert_eq!(
        content.foreign[0].to_string(),
        "line 1: Deployment (apps/v1) \"web\" is of no use to a proxy"
    );
    let old = yaml(&SLICE.replace("k8s.io/v1", "k8s.io/v1beta1"));
    assert_eq!(old.foreign.len(), 1, "another version is another kind");
}

#[test]
fn an_empty_file_has_no_objects() {
    for text in ["", "\n\n", "# only a comment\n", "---\n---\n", "\u{feff}", "null"] {
        assert_eq!(yaml(text), Content::default(), "{text:?}");
    }
    assert_eq!(read(b"", Form::Json, &OWN).unwrap(), Content::default());
}

#[test]
fn objects_without_a_name_or_kind_are_rejected() {
    assert_eq!(
        refusal(WEB, "name: web, ", ""),
        "line 1: Service: metadata.name: Required value: name or generateName is required"
    );
    assert_eq!(refusal(WEB, "kind: Service\n", ""), "line 1: Object 'Kind' is missing");
    assert_eq!(
        refusal(WEB, "apiVersion: v1\n", ""),
        "line 1: Service \"shop/web\": Object 'apiVersion' is missing"
    );
    assert!(refusal("- a\n- b\n", "- b\n", "- c\n").contains("Object 'Kind' is missing"));
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const NOT_AN_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NOT_A_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const PORT: &str = "must be between 1 and 65535, inclusive";

/// Replaces a line of an object, and compares the error.
fn refused(text: &str, title: &str, cases: &[(&str, &str, String)]) {
    for (line, by, want) in cases {
        assert_eq!(refusal(text, line, by), format!("line 1: {title}: {want}"), "{by}");
    }
}

#[test]
fn ports_of_a_service_are_those_that_an_api_server_accepts() {
    let port = |text: &str| format!("spec.ports[{text}");
    let long = "a".repeat(64);
    let long_name = format!("{{port: 80, name: {long}}}");
    refused(
        WEB,
        "Service \"shop/web\"",
        &[
            ("port: 80", "port: -1", port(&format!("0].port: Invalid value: -1: {PORT}"))),
            ("port: 80", "port: 65536", port(&format!("0].port: Invalid value: 65536: {PORT}"))),
            (
                "port: 80",
                "{port: 80, protocol: ICMP}",
                port(
                    "0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                ),
            ),
            ("- port: 80", "- port: 80\n  - {port: 81, name: b}", port("0].name: Required value")),
            (
                "- port: 80",
                "- {port: 80, name: a}\n  - {port: 81, name: a, protocol: UDP}",
                port("1].name: Duplicate value: \"a\""),
            ),
            (
                "- port: 80",
                "- {port: 80, name: a}\n  - {port: 80, name: b, protocol: TCP}",
                port("1]: Duplicate value: 80/TCP"),
            ),
            ("  - port: 80", "    []", "spec.ports: Required value".into()),
            (
                "port: 80",
                "{port: 80, name: \"a\\nCOMMIT\"}",
                port(&format!("0].name: Invalid value: \"a\\nCOMMIT\": {LABEL}")),
            ),
            (
                "port: 80",
                "{port: 80, name: 'a b'}",
                port(&format!("0].name: Invalid value: \"a b\": {LABEL}")),
            ),
            ("port: 80", "{port: 80, name: a-}", port(&format!("0].name: Invalid value: \"a-\": {LABEL}"))),
            (
                "port: 80",
                "{port: 80, name: HTTP}",
                port(&format!("0].name: Invalid value: \"HTTP\": {LABEL}")),
            ),
            (
                "port: 80",
                &long_name,
                port(&format!("0].name: Invalid value: {long:?}: must be no more than 63 bytes")),
            ),
            (
                "port: 80",
                "{port: 80, nodePort: 30080}",
                port("0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"),
            ),
            (
                "spec:\n",
                "spec:\n  healthCheckNodePort: 70000\n",
                format!("spec.healthCheckNodePort: Invalid value: 70000: {PORT}"),
            ),
        ],
    );
    refused(
        &WEB.replace("spec:", "spec:\n  type: NodePort"),
        "Service \"shop/web\"",
        &[
            (
                "port: 80",
                "{port: 80, nodePort: -5}",
                port(&format!("0].nodePort: Invalid value: -5: {PORT}")),
            ),
            (
                "- port: 80",
                "- {port: 80, name: a, nodePort: 30080}\n  - {port: 81, name: b, nodePort: 30080}",
                port("1].nodePort: Duplicate value: 30080"),
            ),
        ],
    );
    let content = yaml(
        &WEB.replace("- port: 80", "- {port: 53, name: dns, protocol: UDP}\n  - {port: 53, name: 1-tcp}"),
    );
    assert_eq!(refusals(&content), [""; 0]);
}

#[test]
fn names_are_those_that_an_api_server_accepts() {
    refused(
        WEB,
        "Service \"shop/web\"",
        &[("metadata: {name: web, namespace: shop}", "metadata: {name: web, namespace: shop, labels: {service.kubernetes.io/service-proxy-name: 'a b'}}", "metadata.labels: Invalid value: \"a b\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character".into())],
    );
    for (name, namespace, title, want) in [
        ("'a.b'", "shop", "shop/a.b", format!("metadata.name: Invalid value: \"a.b\": {LABEL}")),
        ("'a\"b'", "shop", "shop/a\\\"b", format!("metadata.name: Invalid value: \"a\\\"b\": {LABEL}")),
        ("\"a\\nb\"", "shop", "shop/a\\nb", format!("metadata.name: Invalid value: \"a\\nb\": {LABEL}")),
        ("web", "'a/b'", "a/b/web", format!("metadata.namespace: Invalid value: \"a/b\": {LABEL}")),
    ] {
        let by = format!("metadata: {{name: {name}, namespace: {namespace}}}");
        refused(
            WEB,
            &format!("Service \"{title}\""),
            &[("metadata: {name: web, namespace: shop}", &by, want)],
        );
    }
    assert_eq!(
        refusals(&yaml(&WEB.replace("name: web", "name: 1-web"))),
        [""; 0],
        "names may begin with a digit"
    );
    for (kind, name, want) in [
        (
            "{apiVersion: v1, kind: Node",
            "a_b",
            format!("line 1: Node \"a_b\": metadata.name: Invalid value: \"a_b\": {SUBDOMAIN}"),
        ),
        (
            "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR",
            "A",
            format!("line 1: ServiceCIDR \"A\": metadata.name: Invalid value: \"A\": {SUBDOMAIN}"),
        ),
    ] {
        assert_eq!(refusals(&yaml(&format!("{kind}, metadata: {{name: {name}}}}}"))), [want]);
    }
}

#[test]
fn addresses_of_a_service_are_those_that_an_api_server_accepts() {
    let ip = |at: &str, text: &str, detail: &str| format!("spec.{at}: Invalid value: \"{text}\": {detail}");
    refused(
        WEB,
        "Service \"shop/web\"",
        &[
            ("10.96.0.10", "ten", ip("clusterIPs[0]", "ten", NOT_AN_IP)),
            ("clusterIP: 10.96.0.10", "type: ClusterIP", "spec.clusterIP: Required value: there is no API server to allocate one".into()),
            ("spec:", "spec:\n  clusterIPs: [10.96.0.11]", "spec.clusterIPs: Invalid value: [\"10.96.0.11\"]: first value must match `clusterIP`".into()),
            ("spec:", "spec:\n  clusterIPs: [10.96.0.10, 10.96.0.11]", "spec.clusterIPs: Invalid value: [\"10.96.0.10\", \"10.96.0.11\"]: may specify no more than one IP for each IP family".into()),
            ("spec:", "spec:\n  ipFamilies: [IPv6]", ip("clusterIPs[0]", "10.96.0.10", "expected an IPv6 value as indicated by `ipFamilies[0]`")),
            ("spec:", "spec:\n  ipFamilies: [ipv4]", "spec.ipFamilies[0]: Unsupported value: \"ipv4\": supported values: \"IPv4\", \"IPv6\"".into()),
            ("spec:", "spec:\n  ipFamilies: [IPv4, IPv4]", "spec.ipFamilies[1]: Duplicate value: \"IPv4\"".into()),
            ("clusterIP: 10.96.0.10", "clusterIP: None\n  type: NodePort", ip("clusterIPs[0]", "None", "may not be set to 'None' for NodePort services")),
            ("clusterIP: 10.96.0.10", "clusterIPs: [None, 10.96.0.10]", "spec.clusterIPs: Invalid value: [\"None\", \"10.96.0.10\"]: 'None' must be the first and only value".into()),
            ("spec:", "spec:\n  type: ExternalName", "spec.clusterIPs: Forbidden: may not be set for ExternalName services".into()),
            ("spec:", "spec:\n  externalIPs: [127.0.0.1]", ip("externalIPs[0]", "127.0.0.1", "may not be in the loopback range (127.0.0.0/8, ::1/128)")),
            ("spec:", "spec:\n  externalIPs: [\"1.2.3.4\\n\"]", ip("externalIPs[0]", "1.2.3.4\\n", NOT_AN_IP)),
            ("spec:", "spec:\n  loadBalancerSourceRanges: [10.0.0.0]", ip("loadBalancerSourceRanges[0]", "10.0.0.0", NOT_A_CIDR)),
            ("spec:", "spec:\n  externalTrafficPolicy: Near", "spec.externalTrafficPolicy: Unsupported value: \"Near\": supported values: \"Cluster\", \"Local\"".into()),
            ("spec:", "spec:\n  sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}", "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than or equal to 86400".into()),
            ("spec:", "status: {loadBalancer: {ingress: [{ip: x}]}}\nspec:\n  type: LoadBalancer", format!("status.loadBalancer.ingress[0].ip: Invalid value: \"x\": {NOT_AN_IP}")),
        ],
    );
    let left_over = "status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}\nspec:";
    assert_eq!(refusals(&yaml(&WEB.replace("spec:", left_over))), [""; 0], "it may have had another type");
}

#[test]
fn a_cluster_ip_must_not_be_an_address_of_the_node() {
    let own = "takes an address of this node, which could not be reached any more";
    for (ip, want) in [
        ("127.0.0.1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        ("::1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        ("0.0.0.0", "may not be unspecified (0.0.0.0 or ::)"),
        ("169.254.20.10", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        ("fe80::1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        ("224.0.0.1", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
        ("239.1.1.1", "may not be in the multicast range (224.0.0.0/4, ff00::/8)"),
        ("ff05::2", "may not be in the multicast range (224.0.0.0/4, ff00::/8)"),
        ("255.255.255.255", "may not be the broadcast address (255.255.255.255)"),
        ("192.0.2.11", own),
        ("192.0.02.11", own),
        ("::ffff:192.0.2.11", own),
    ] {
        let want = format!("spec.clusterIPs[0]: Invalid value: \"{ip}\": {want}");
        refused(WEB, "Service \"shop/web\"", &[("10.96.0.10", &format!("'{ip}'"), want)]);
    }
    for cidr in ["127.0.0.0/8", "192.0.2.0/24", "0.0.0.0/0"] {
        let text = format!(
            "{{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {{name: c}}, spec: {{cidrs: [{cidr}]}}}}"
        );
        let want = format!("line 1: ServiceCIDR \"c\": spec.cidrs[0]: Invalid value: \"{cidr}\": {own}");
        assert_eq!(refusals(&yaml(&text)), [want]);
    }
}

#[test]
fn slices_are_those_that_an_api_server_accepts() {
    let address =
        |text: &str, detail: &str| format!("endpoints[0].addresses[0]: Invalid value: \"{text}\": {detail}");
    let hints = |text: &str| format!("[10.244.0.5]\n  hints: {text}");
    let addresses = format!("[{}]", ["10.244.0.5"; 101].join(", "));
    refused(
        SLICE,
        "EndpointSlice \"web-1\"",
        &[
            ("10.244.0.5", "127.0.0.9", address("127.0.0.9", "may not be in the loopback range (127.0.0.0/8, ::1/128)")),
            ("10.244.0.5", "169.254.1.1", address("169.254.1.1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)")),
            ("10.244.0.5", "224.0.0.1", address("224.0.0.1", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")),
            ("10.244.0.5", "0.0.0.0", address("0.0.0.0", "may not be unspecified (0.0.0.0 or ::)")),
            ("10.244.0.5", "'fd00::5'", address("fd00::5", "must be an IPv4 address")),
            ("10.244.0.5", "pod", address("pod", NOT_AN_IP)),
            ("[10.244.0.5]", "[]", "endpoints[0].addresses: Required value: must contain at least 1 address".into()),
            ("[10.244.0.5]", &addresses, "endpoints[0].addresses: Too many: 101: must have at most 100 items".into()),
            ("[10.244.0.5]", "[10.244.0.5]\n  nodeName: \"n\\n\"", format!("endpoints[0].nodeName: Invalid value: \"n\\n\": {SUBDOMAIN}")),
            ("[10.244.0.5]", &hints("{forZones: [{name: a}, {name: a}]}"), "endpoints[0].hints.forZones[1].name: Duplicate value: \"a\"".into()),
            ("[10.244.0.5]", &hints("{forNodes: [{name: A}]}"), format!("endpoints[0].hints.forNodes[0].name: Invalid value: \"A\": {SUBDOMAIN}")),
            ("port: 8080", "{name: \"a\\nb\", port: 1}", format!("ports[0].name: Invalid value: \"a\\nb\": {LABEL}")),
            ("- port: 8080", "- {name: a, port: 1}\n- {name: a, port: 2, protocol: UDP}", "ports[1].name: Duplicate value: \"a\"".into()),
            ("port: 8080", "{port: 1, protocol: x}", "ports[0].protocol: Unsupported value: \"x\": supported values: \"SCTP\", \"TCP\", \"UDP\"".into()),
            ("addressType: IPv4\n", "", "addressType: Required value".into()),
            ("IPv4", "ipv4", "addressType: Unsupported value: \"ipv4\": supported values: \"FQDN\", \"IPv4\", \"IPv6\"".into()),
            ("name: web}", "name: 'a b'}", "metadata.labels: Invalid value: \"a b\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character".into()),
        ],
    );
    let endpoints = "- addresses: [10.244.0.5]\n".repeat(1_001);
    let many = SLICE.replace("- addresses: [10.244.0.5]\n", &endpoints);
    assert_eq!(
        refusals(&yaml(&many)),
        ["line 1: EndpointSlice \"web-1\": endpoints: Too many: 1001: must have at most 1000 items"]
    );
}

#[test]
fn what_an_api_server_accepts_is_accepted_even_if_the_proxy_ignores_it() {
    for (line, by) in [
        ("- port: 8080", "- name: http"),
        ("- port: 8080", "- {name: http, port: null}"),
        ("- port: 8080", "- {name: http, port: 0}"),
        ("  labels: {kubernetes.io/service-name: web}\n", ""),
        ("addressType: IPv4", "addressType: IPv4\nmore: 1"),
        ("10.244.0.5", "010.244.000.005"),
        ("10.244.0.5", "239.1.1.1"),
    ] {
        assert!(SLICE.contains(line), "{line}");
        let content = yaml(&SLICE.replace(line, by));
        assert_eq!(refusals(&content), [""; 0], "{by}");
        assert_eq!(keys(&content), ["EndpointSlice default/web-1"], "{by}");
    }
    let names = SLICE.replace("IPv4", "FQDN").replace("10.244.0.5", "www.example.com");
    assert_eq!(refusals(&yaml(&names)), [""; 0]);
}

proptest::proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        let _ = read(&bytes, Form::Yaml, &OWN);
        let _ = read(&bytes, Form::Json, &OWN);
    }

    #[test]
    fn damaged_files_do_not_panic(
        at in 0..WEB.len() + SLICE.len(), junk in "[-\\[{:&*!|>'\"%@`a0\n\t ]{0,4}", cut in 0..5usize,
    ) {
        let mut bytes = format!("{WEB}---\n{SLICE}").into_bytes();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at.min(end)..end, junk.bytes());
        let _ = read(&bytes, Form::Yaml, &OWN);
    }
}
