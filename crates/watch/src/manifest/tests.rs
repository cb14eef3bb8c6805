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

fn yaml(text: &str) -> Content {
    read(text.as_bytes(), Form::Yaml).unwrap()
}

fn keys(content: &Content) -> Vec<String> {
    content.objects.iter().map(|object| object.key().to_string()).collect()
}

fn refusals(content: &Content) -> Vec<String> {
    content.refused.iter().map(|(_, problem)| problem.to_string()).collect()
}

/// The one refusal of an otherwise good object with one line replaced.
fn refusal(text: &str, line: &str, by: &str) -> String {
    assert!(text.contains(line), "{line:?} is not in the text");
    let content = yaml(&text.replace(line, by));
    assert_eq!(keys(&content), [""; 0], "{by}");
    assert_eq!(content.refused.len(), 1, "{by}: {content:?}");
    refusals(&content).remove(0)
}

#[test]
fn documents_of_one_file_are_objects_of_their_own() {
    let content = yaml(&format!("# a comment\n---\n{WEB}---\n\n--- # nothing here\n{SLICE}...\n"));
    assert_eq!(keys(&content), ["Service shop/web", "EndpointSlice default/web-1"]);
    assert_eq!(refusals(&content), [""; 0]);
}

#[test]
fn what_the_api_server_would_fill_in_is_filled_in() {
    let content = yaml(&format!(
        "{SLICE}---\n{}",
        WEB.replace("clusterIP: 10.96.0.10", "clusterIPs: [10.96.0.10, 'fd00::10']")
    ));
    let [Object::EndpointSlice(slice), Object::Service(service)] = &content.objects[..] else {
        panic!("{content:?}")
    };
    assert_eq!(slice.metadata.namespace, "default");
    assert_eq!(slice.ports[0].name.as_deref(), Some(""), "the unnamed port of the Service");
    assert_eq!(service.spec.cluster_ip, "10.96.0.10");
    assert_eq!(service.spec.ip_families, ["IPv4", "IPv6"]);
}

#[test]
fn lists_are_taken_apart_whether_their_items_name_their_kind_or_not() {
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
    let content = read(json.as_bytes(), Form::Json).unwrap();
    assert_eq!(keys(&content), ["Service default/c"]);
}

#[test]
fn text_that_cannot_be_read_names_the_line() {
    for (text, form, want) in [
        ("kind: [a", Form::Yaml, "line 1"),
        ("a: 1\n---\nb: 2\n c: 3\n", Form::Yaml, "line 4"),
        ("kind: a\nkind: b\n", Form::Yaml, "line 2 column 1: duplicate mapping key: kind"),
        ("{\"kind\": \"a\"}\n{\"kind\": }", Form::Json, "line 2"),
        ("{", Form::Json, "line 1"),
    ] {
        let problem = read(text.as_bytes(), form).unwrap_err().to_string();
        assert!(problem.starts_with(want), "{text:?}: {problem}");
    }
    let problem = read(b"a: b\nc: \xff\n", Form::Yaml).unwrap_err();
    assert_eq!(problem.to_string(), "line 2: not valid UTF-8");
}

#[test]
fn a_value_of_the_wrong_type_names_its_line_even_behind_other_documents() {
    let content = yaml(&format!("{SLICE}---\n{}", WEB.replace("port: 80", "port: eighty")));
    assert_eq!(keys(&content), ["EndpointSlice default/web-1"], "one bad object leaves the other alone");
    let refused = refusals(&content).remove(0);
    assert!(refused.starts_with("line 18 column 11: Service \"shop/web\": "), "{refused}");
    let key = content.refused[0].0.as_ref().unwrap();
    assert_eq!(key.to_string(), "Service shop/web", "so that its last good version can stay");
}

#[test]
fn kinds_that_are_not_ours_are_told_and_left() {
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
fn nothing_at_all_is_no_object() {
    for text in ["", "\n\n", "# only a comment\n", "---\n---\n", "\u{feff}", "null"] {
        assert_eq!(yaml(text), Content::default(), "{text:?}");
    }
    assert_eq!(read(b"", Form::Json).unwrap(), Content::default());
}

#[test]
fn objects_without_a_name_or_kind_are_refused() {
    assert_eq!(
        refusal(WEB, "name: web, ", ""),
        "line 1: Service: metadata.name: Required value: name is required"
    );
    assert_eq!(refusal(WEB, "kind: Service\n", ""), "line 1: Object 'Kind' is missing");
    assert_eq!(
        refusal(WEB, "apiVersion: v1\n", ""),
        "line 1: Service \"shop/web\": Object 'apiVersion' is missing"
    );
    assert!(refusal("- a\n- b\n", "- b\n", "- c\n").contains("Object 'Kind' is missing"));
}

#[test]
fn a_service_that_an_api_server_would_refuse_is_refused() {
    let port = "must be between 1 and 65535, inclusive";
    for (line, by, want) in [
        ("port: 80", "port: -1", format!("spec.ports[0].port: Invalid value: -1: {port}")),
        ("port: 80", "port: 65536", format!("spec.ports[0].port: Invalid value: 65536: {port}")),
        ("port: 80", "{port: 80, nodePort: -5}", format!("spec.ports[0].nodePort: Invalid value: -5: {port}")),
        ("port: 80", "{port: 80, protocol: ICMP}", "spec.ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"TCP\", \"UDP\", \"SCTP\"".into()),
        ("- port: 80", "- port: 80\n  - {port: 81, name: b}", "spec.ports[0].name: Invalid value: \"\": several ports need a name each".into()),
        ("- port: 80", "- {port: 80, name: a}\n  - {port: 81, name: a, protocol: TCP}", "spec.ports[1].name: Invalid value: \"a\": another port has this name and protocol".into()),
        ("  - port: 80", "    []", "spec.ports: Invalid value: \"[]\": at least one port is needed".into()),
        ("clusterIP: 10.96.0.10", "clusterIP: ten", "spec.clusterIPs[0]: Invalid value: \"ten\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into()),
        ("clusterIP: 10.96.0.10", "type: ClusterIP", "spec.clusterIP: Required value: there is no API server to allocate one".into()),
        ("spec:", "spec:\n  externalIPs: [127.0.0.1]", "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)".into()),
        ("spec:", "spec:\n  loadBalancerSourceRanges: [10.0.0.0]", "spec.loadBalancerSourceRanges[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".into()),
        ("spec:", "spec:\n  externalTrafficPolicy: Near", "spec.externalTrafficPolicy: Unsupported value: \"Near\": supported values: \"Cluster\", \"Local\"".into()),
        ("spec:", "spec:\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}", "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than or equal to 86400".into()),
    ] {
        assert_eq!(refusal(WEB, line, by), format!("line 1: Service \"shop/web\": {want}"), "{by}");
    }
}

#[test]
fn a_slice_that_an_api_server_would_refuse_is_refused() {
    let address = "endpoints[0].addresses[0]: Invalid value";
    for (line, by, want) in [
        (
            "10.244.0.5",
            "127.0.0.9",
            format!("{address}: \"127.0.0.9\": may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        ),
        (
            "10.244.0.5",
            "169.254.1.1",
            format!(
                "{address}: \"169.254.1.1\": may not be in the link-local range (169.254.0.0/16, fe80::/10)"
            ),
        ),
        (
            "10.244.0.5",
            "224.0.0.1",
            format!("{address}: \"224.0.0.1\": may not be in the multicast range (224.0.0.0/4, ff00::/8)"),
        ),
        ("10.244.0.5", "0.0.0.0", format!("{address}: \"0.0.0.0\": may not be unspecified (0.0.0.0 or ::)")),
        ("10.244.0.5", "'fd00::5'", format!("{address}: \"fd00::5\": not of the slice's addressType")),
        (
            "10.244.0.5",
            "pod",
            format!("{address}: \"pod\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        ),
        (
            "[10.244.0.5]",
            "[]",
            "endpoints[0].addresses: Required value: must contain at least 1 endpoint address".into(),
        ),
        (
            "port: 8080",
            "port: 0",
            "ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive".into(),
        ),
        (
            "IPv4",
            "ipv4",
            "addressType: Unsupported value: \"ipv4\": supported values: \"IPv4\", \"IPv6\", \"FQDN\"".into(),
        ),
        (
            "  labels: {kubernetes.io/service-name: web}\n",
            "",
            "metadata.labels[kubernetes.io/service-name]: Required value: names the Service it is for".into(),
        ),
    ] {
        assert_eq!(refusal(SLICE, line, by), format!("line 1: EndpointSlice \"web-1\": {want}"), "{by}");
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_bring_the_reader_down(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        let _ = read(&bytes, Form::Yaml);
        let _ = read(&bytes, Form::Json);
    }

    #[test]
    fn no_damage_to_a_good_file_brings_the_reader_down(
        at in 0..WEB.len() + SLICE.len(), junk in "[-\\[{:&*!|>'\"%@`a0\n\t ]{0,4}", cut in 0..5usize,
    ) {
        let mut bytes = format!("{WEB}---\n{SLICE}").into_bytes();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at.min(end)..end, junk.bytes());
        let _ = read(&bytes, Form::Yaml);
    }
}
