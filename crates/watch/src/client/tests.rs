use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::stub::{Asked, Stub, Talk};

fn get(api: &Api) -> Result<Vec<u8>, ApiError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(api.ask(Request::builder().uri("/version").body(Vec::new()).unwrap()))
}

/// A TLS server, and a kubeconfig file for it with `user`.
struct Place {
    folder: tempfile::TempDir,
    stub: Stub,
}

impl Place {
    fn new(script: impl Fn(&Asked, &mut Talk<'_>) + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stub = Stub::start_tls(&folder.path().join("ca"), script);
        Self { folder, stub }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, cluster: &str, user: &str) -> Result<Api, Misconfigured> {
        self.open_observed(cluster, user, Arc::new(Unobserved))
    }

    fn open_observed(
        &self,
        cluster: &str,
        user: &str,
        observer: Arc<dyn Observer>,
    ) -> Result<Api, Misconfigured> {
        let server = format!("https://{}", self.stub.address);
        let text = format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: c, user: u}}}}],
              clusters: [{{name: c, cluster: {{server: '{server}', {cluster}}}}}],
              users: [{{name: u, user: {{{user}}}}}]}}"
        );
        fs::write(self.path("config"), text).unwrap();
        let settings = Settings {
            kubeconfig: Some(self.path("config")),
            qps: -1.0,
            user_agent: user_agent("v1.36.3-dirty", "0123456789"),
            ..Settings::default()
        };
        Api::open(&settings, observer)
    }
}

#[test]
fn the_accept_header_is_that_of_client_go() {
    for (accept_content_types, content_type, header) in [
        ("", "", "application/json"),
        ("", "application/json", "application/json, */*"),
        ("", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf, */*"),
        ("application/json", "application/vnd.kubernetes.protobuf", "application/json"),
    ] {
        let settings = Settings {
            accept_content_types: accept_content_types.into(),
            content_type: content_type.into(),
            ..Settings::default()
        };
        assert_eq!(accept(&settings).unwrap(), header);
    }
    let invalid = Settings { content_type: "application/json\n".into(), ..Settings::default() };
    assert_eq!(
        accept(&invalid).unwrap_err().to_string(),
        "invalid content types \"application/json\\n, */*\""
    );
}

fn ok(_: &Asked, talk: &mut Talk<'_>) {
    talk.object(200, &json!({}));
}

#[test]
fn a_token_file_that_changes_is_noticed() {
    let place = Place::new(ok);
    fs::write(place.path("token"), "one\n").unwrap();
    let api = place.open("certificate-authority: ca", "tokenFile: token, token: written-down").unwrap();
    get(&api).unwrap();
    assert_eq!(place.stub.asked().headers["authorization"], "Bearer one");
    fs::write(place.path("token"), "two").unwrap();
    get(&api).unwrap();
    assert_eq!(place.stub.asked().headers["authorization"], "Bearer two");
    fs::write(place.path("token"), "\n").unwrap();
    get(&api).unwrap();
    assert_eq!(place.stub.asked().headers["authorization"], "Bearer two", "while it is being written");
    fs::remove_file(place.path("token")).unwrap();
    get(&api).unwrap();
    assert_eq!(place.stub.asked().headers["authorization"], "Bearer two", "the last one may still do");
}

#[test]
fn a_ca_file_that_changes_is_noticed() {
    let place = Place::new(ok);
    let real = fs::read(place.path("ca")).unwrap();
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(place.path("ca"), other.cert.pem()).unwrap();
    let api = place.open("certificate-authority: ca", "").unwrap();
    let refused = get(&api).unwrap_err().to_string();
    assert!(refused.contains("invalid peer certificate"), "{refused}");
    fs::write(place.path("ca"), real).unwrap();
    get(&api).unwrap();
}

#[test]
fn an_exec_plugin_runs_again_when_its_token_is_rejected() {
    let refused = AtomicUsize::new(0);
    let place = Place::new(move |_, talk| {
        if refused.fetch_add(1, Ordering::SeqCst) == 0 {
            talk.refuse(401, "Unauthorized", "Unauthorized");
        } else {
            talk.object(200, &json!({}));
        }
    });
    let calls = place.path("calls");
    let plugin = format!(
        "#!/bin/sh\necho >> '{0}'\necho '{{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \
         \"ExecCredential\", \"status\": {{\"token\": \"call-'$(wc -l < '{0}')'\"}}}}'\n",
        calls.display()
    );
    fs::write(place.path("plugin"), plugin).unwrap();
    let api = place
        .open(
            "certificate-authority: ca",
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: [PLUGIN], interactiveMode: Never}"
                .replace("PLUGIN", &place.path("plugin").to_string_lossy())
                .as_str(),
        )
        .unwrap();
    assert_eq!(get(&api).unwrap_err().code(), Some(401));
    get(&api).unwrap();
    let (first, second) = (place.stub.asked(), place.stub.asked());
    assert!(first.headers["authorization"].starts_with("Bearer call-"));
    assert_ne!(first.headers["authorization"], second.headers["authorization"]);
}

#[test]
fn the_output_of_an_exec_plugin_is_never_logged() {
    let credential = r#"{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status":
        {"token": "sesame", "expirationTimestamp": "2020-01-01T00:00:00Z"}}"#;
    // The last one is valid once and has to be renewed at once.
    let once = format!("[ -e DONE ] && {{ echo sesame; exit 1; }}; touch DONE; echo '{credential}'");
    for script in ["echo sesame; echo sesame >&2; exit 1", "echo '{\"status\": sesame'", "echo sesame", &once]
    {
        let place = Place::new(ok);
        let script = script.replace("DONE", &place.path("done").to_string_lossy());
        fs::write(place.path("plugin"), script).unwrap();
        let user = format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: ['{}'], interactiveMode: Never,
             env: [{{name: KEY, value: sesame}}]}}",
            place.path("plugin").display()
        );
        let opened = place.open("certificate-authority: ca", &user);
        let shown = match opened {
            Ok(api) => get(&api).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(shown.starts_with("exec plugin ") && !shown.contains("sesame"), "{shown}");
    }
}

#[test]
fn http2_is_kept_as_client_go_keeps_it() {
    let of = |set: &[(&str, &str)]| {
        let set: BTreeMap<_, _> = set.iter().copied().collect();
        Http2::from_environment(|name| set.get(name).map(|value| (*value).to_owned()))
    };
    let kept = |idle: u64, ping| {
        let read_idle_timeout = (idle > 0).then(|| Duration::from_secs(idle));
        Some(Http2 { read_idle_timeout, ping_timeout: Duration::from_secs(ping) })
    };
    assert_eq!(of(&[]), kept(30, 15));
    assert_eq!(of(&[("DISABLE_HTTP2", "1")]), None);
    assert_eq!(of(&[("DISABLE_HTTP2", ""), ("HTTP2_PING_TIMEOUT_SECONDS", "5")]), kept(30, 5));
    assert_eq!(of(&[("HTTP2_PING_TIMEOUT_SECONDS", "0")]), kept(30, 15), "as in Go");
    assert_eq!(of(&[("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "0")]), kept(0, 15));
    assert_eq!(of(&[("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "soon")]), kept(30, 15));
}

#[test]
fn requests_have_a_user_agent() {
    let place = Place::new(ok);
    let api = place.open("insecure-skip-tls-verify: true", "as: boss, as-groups: [a]").unwrap();
    get(&api).unwrap();
    let headers = place.stub.asked().headers;
    let agent = &headers["user-agent"];
    assert!(
        agent.starts_with("kube-proxy/v1.36.3 (linux/") && agent.ends_with(") kubernetes/0123456"),
        "{agent}"
    );
    assert_eq!((headers["impersonate-user"].as_str(), headers["impersonate-group"].as_str()), ("boss", "a"));
}

#[test]
fn a_certificate_is_verified_against_the_configured_name() {
    let place = Place::new(ok);
    let api = place.open("certificate-authority: ca, tls-server-name: kubernetes", "").unwrap();
    let refused = get(&api).unwrap_err().to_string();
    assert!(refused.contains("not valid for name \"kubernetes\""), "{refused}");
}

#[test]
fn a_proxy_may_be_used() {
    let proxy = Stub::start(ok);
    let text = format!(
        "{{current-context: a, contexts: [{{name: a, context: {{cluster: c}}}}], clusters: [{{name: c, cluster:
         {{server: 'http://kubernetes.invalid:8080', proxy-url: 'http://me:secret@{}'}}}}]}}",
        proxy.address
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let settings = Settings { kubeconfig: Some(file.path().into()), ..Settings::default() };
    let api = Api::open(&settings, Arc::new(Unobserved)).unwrap();
    get(&api).unwrap();
    let connect = proxy.asked();
    assert_eq!((connect.method.as_str(), connect.path.as_str()), ("CONNECT", "kubernetes.invalid:8080"));
    assert_eq!(connect.headers["proxy-authorization"], "Basic bWU6c2VjcmV0");
    assert_eq!(proxy.asked().path, "/version");
}

#[test]
fn an_error_contains_the_servers_message() {
    let stub = Stub::start(|_, talk| talk.refuse(403, "Forbidden", "services is forbidden"));
    let error = get(&stub.api()).unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), (Some(403), "services is forbidden"));
    let stub = Stub::start(|_, talk| talk.answer(502, "", b"<html>"));
    assert_eq!(get(&stub.api()).unwrap_err().to_string(), "the server said 502 Bad Gateway");
}

#[test]
fn an_unanswered_request_has_a_reason() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = Settings { master: Some(address.to_string()), ..Settings::default() };
    let api = Api::open(&settings, Arc::new(Unobserved)).unwrap();
    let error = get(&api).unwrap_err().to_string();
    assert!(error.contains("Connection refused"), "{error}");
}

#[derive(Default)]
struct Tally(Mutex<BTreeMap<String, u64>>);

impl Observer for Tally {
    fn answered(&self, exchange: &Exchange<'_>) {
        let code = exchange.code.map_or("<error>".into(), |code| code.to_string());
        *self.0.lock().unwrap().entry(format!("{} {code}", exchange.verb)).or_default() += 1;
    }

    fn throttled(&self, _: &Method, _: &str, _: Duration) {
        *self.0.lock().unwrap().entry("throttled".into()).or_default() += 1;
    }

    fn received(&self, _: &Method, _: &str, bytes: u64) {
        *self.0.lock().unwrap().entry("bytes".into()).or_default() += bytes;
    }
}

#[test]
fn every_request_is_counted() {
    let place = Place::new(|_, talk| talk.object(200, &json!({"a": 1})));
    let tally = Arc::new(Tally::default());
    let api = place.open_observed("certificate-authority: ca", "", tally.clone()).unwrap();
    get(&api).unwrap();
    get(&api).unwrap();
    let counted: Vec<_> = tally.0.lock().unwrap().clone().into_iter().collect();
    assert_eq!(counted, [("GET 200".to_owned(), 2), ("bytes".to_owned(), 14)]);
}
