//! `/statusz` and `/flagz`: text for operators, or an object for programs that request one.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, WARNING};
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use settings::config::yaml;
use settings::version::{Build, KUBERNETES, MAJOR, MINOR};

use super::accept::{Encoding, GROUP, ResponseFormat, Version, negotiate};
use crate::http::response::{JSON, TEXT, response, with_header};
use crate::http::{ServerRequest, ServerResponse};

/// One of them is chosen at random, as upstream does, so that programs do not come to parse the text.
const DELIMITERS: [&str; 4] = [":", ": ", "=", " "];

/// What is running, and since when.
#[derive(Debug)]
pub struct Statusz {
    started: Timestamp,
    go_version: &'static str,
    paths: Vec<&'static str>,
}

impl Statusz {
    pub fn new(started: Timestamp, build: &Build, has_flagz: bool) -> Self {
        let paths = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"];
        let paths = paths.into_iter().filter(|path| has_flagz || *path != "/flagz").collect();
        Self { started, go_version: build.go_version, paths }
    }

    /// `watches` has the time since the last message of each resource's watch.
    pub fn response(
        &self,
        request: &ServerRequest,
        now: Timestamp,
        watches: &[(&'static str, Duration)],
    ) -> ServerResponse {
        let text = || self.text(now, random_delimiter(), watches);
        negotiated(request, "Statusz", text, || self.fields(now))
    }

    fn up(&self, now: Timestamp) -> i64 {
        now.duration_since(self.started).as_secs().max(0)
    }

    fn text(&self, now: Timestamp, delimiter: &str, watches: &[(&'static str, Duration)]) -> String {
        let up = self.up(now);
        let (hours, minutes, seconds) = (up / 3_600, up / 60 % 60, up % 60);
        let mut lines = vec![
            ("Started", self.started.strftime("%a %b %e %H:%M:%S UTC %Y").to_string()),
            ("Up", format!("{hours} hr {minutes:02} min {seconds:02} sec")),
            ("Go version", self.go_version.to_owned()),
            ("Binary version", binary_version().to_owned()),
            ("Emulation version", emulation_version()),
            ("Paths", self.paths.join(" ")),
        ];
        // Ours, and only here: the object has the fields that upstream's has.
        if !watches.is_empty() {
            let ages: Vec<_> =
                watches.iter().map(|(resource, age)| format!("{resource} {} s ago", age.as_secs())).collect();
            lines.push(("Last watch messages", ages.join(", ")));
        }
        let lines: String =
            lines.iter().map(|(name, value)| format!("{name}{delimiter} {value}\n")).collect();
        format!("{}\n{lines}", heading("statusz"))
    }

    fn fields(&self, now: Timestamp) -> Fields {
        vec![
            ("startTime", self.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()),
            ("uptimeSeconds", self.up(now).into()),
            ("goVersion", self.go_version.into()),
            ("binaryVersion", binary_version().into()),
            ("emulationVersion", emulation_version().into()),
            ("paths", json!(self.paths)),
        ]
    }
}

/// Every flag and its value.
#[derive(Debug)]
pub struct Flagz {
    flags: Vec<(&'static str, String)>,
    delimiter: &'static str,
}

impl Flagz {
    pub fn new(flags: &[(&'static str, String)]) -> Self {
        let mut flags = flags.to_vec();
        flags.sort();
        Self { flags, delimiter: random_delimiter() }
    }

    pub fn response(&self, request: &ServerRequest) -> ServerResponse {
        negotiated(request, "Flagz", || self.text(), || self.fields())
    }

    fn text(&self) -> String {
        let delimiter = self.delimiter;
        let lines: String =
            self.flags.iter().map(|(name, value)| format!("{name}{delimiter}{value}\n")).collect();
        heading("flagz") + &lines
    }

    fn fields(&self) -> Fields {
        let flags: BTreeMap<_, _> = self.flags.iter().map(|(name, value)| (name, value)).collect();
        vec![("flags", json!(flags))]
    }
}

fn heading(page: &str) -> String {
    format!(
        "\nkube-proxy {page}\nWarning: This endpoint is not meant to be machine parseable, \
         has no formatting compatibility guarantees and is for debugging purposes only.\n"
    )
}

fn binary_version() -> &'static str {
    KUBERNETES.trim_start_matches('v')
}

fn emulation_version() -> String {
    format!("{MAJOR}.{MINOR}")
}

fn random_delimiter() -> &'static str {
    let random = RandomState::new().build_hasher().finish();
    let count = DELIMITERS.len() as u64;
    DELIMITERS.iter().zip(0..).find(|(_, n)| *n == random % count).map_or(":", |(delimiter, _)| delimiter)
}

/// Responds in a format that the client accepts.
fn negotiated(
    request: &ServerRequest,
    kind: &str,
    text: impl FnOnce() -> String,
    fields: impl FnOnce() -> Fields,
) -> ServerResponse {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match negotiate(accept, kind) {
        Some(ResponseFormat::Text) => response(StatusCode::OK, TEXT, text()),
        Some(ResponseFormat::Structured { encoding, version }) => {
            structured(encoding, version, kind, fields())
        }
        None => not_acceptable(),
    }
}

fn structured(encoding: Encoding, version: Version, kind: &str, fields: Fields) -> ServerResponse {
    let head = [
        ("kind", kind.into()),
        ("apiVersion", format!("{GROUP}/{}", version.name()).into()),
        ("metadata", json!({ "name": "kube-proxy" })),
    ];
    let object = OrderedObject(head.into_iter().chain(fields).collect());
    let body = match encoding {
        Encoding::Json => serde_json::to_string_pretty(&object).unwrap_or_default(),
        Encoding::Yaml => yaml::write(&object).unwrap_or_default(),
    };
    let mut response = response(StatusCode::OK, encoding.media_type(), body);
    let (media_type, version_name) = (encoding.media_type(), version.name());
    let full_type = format!("{media_type};g={GROUP};v={version_name};as={kind}");
    if let Ok(full_type) = HeaderValue::from_str(&full_type) {
        response.headers_mut().insert(CONTENT_TYPE, full_type);
    }
    match version {
        Version::V1beta1 => response,
        Version::V1alpha1 => {
            let page = kind.to_ascii_lowercase();
            let warning = format!(
                "299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\""
            );
            with_header(response, WARNING, &warning)
        }
    }
}

fn not_acceptable() -> ServerResponse {
    let message =
        "only the following media types are accepted: application/json, application/yaml, text/plain";
    let status = OrderedObject(vec![
        ("kind", "Status".into()),
        ("apiVersion", "v1".into()),
        ("metadata", json!({})),
        ("status", "Failure".into()),
        ("message", message.into()),
        ("reason", "NotAcceptable".into()),
        ("code", 406.into()),
    ]);
    response(StatusCode::NOT_ACCEPTABLE, JSON, serde_json::to_string_pretty(&status).unwrap_or_default())
}

type Fields = Vec<(&'static str, Value)>;

/// A JSON object that keeps the order of its fields.
struct OrderedObject(Fields);

impl Serialize for OrderedObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statusz() -> (Statusz, Timestamp) {
        let started: Timestamp = "2026-11-06T18:27:23.9Z".parse().unwrap();
        let page = Statusz { started, go_version: "rustc 1.95.0", paths: vec!["/configz", "/metrics"] };
        (page, "2026-11-07T20:28:50Z".parse().unwrap())
    }

    fn ask(accept: &str) -> ServerRequest {
        http::Request::builder().header(ACCEPT, accept).body(bytes::Bytes::new()).unwrap()
    }

    fn body(response: ServerResponse) -> String {
        String::from_utf8(response.into_body().to_vec()).unwrap()
    }

    #[test]
    fn status_has_the_text_of_upstream() {
        let (page, now) = statusz();
        let want = "\nkube-proxy statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n
Started= Fri Nov  6 18:27:23 UTC 2026
Up= 26 hr 01 min 26 sec
Go version= rustc 1.95.0
Binary version= 1.36.3
Emulation version= 1.36
Paths= /configz /metrics
";
        assert_eq!(page.text(now, "=", &[]), want);
        let watches = [("nodes", Duration::from_millis(61_900)), ("services", Duration::ZERO)];
        let want = format!("{want}Last watch messages= nodes 61 s ago, services 0 s ago\n");
        assert_eq!(page.text(now, "=", &watches), want);
    }

    #[test]
    fn status_is_an_object_if_the_client_requests_one() {
        let (page, now) = statusz();
        let json = page.response(&ask("application/json;g=config.k8s.io;v=v1beta1;as=Statusz"), now, &[]);
        let media_type = "application/json;g=config.k8s.io;v=v1beta1;as=Statusz";
        assert_eq!(json.headers()[CONTENT_TYPE], media_type);
        assert!(!json.headers().contains_key(WARNING));
        let want = r#"{
  "kind": "Statusz",
  "apiVersion": "config.k8s.io/v1beta1",
  "metadata": {
    "name": "kube-proxy"
  },
  "startTime": "2026-11-06T18:27:23Z",
  "uptimeSeconds": 93686,
  "goVersion": "rustc 1.95.0",
  "binaryVersion": "1.36.3",
  "emulationVersion": "1.36",
  "paths": [
    "/configz",
    "/metrics"
  ]
}"#;
        assert_eq!(body(json), want);

        let yaml = page.response(&ask("application/yaml;g=config.k8s.io;v=v1alpha1;as=Statusz"), now, &[]);
        let warning =
            "299 - \"This version of the statusz endpoint is deprecated. Please use a newer version.\"";
        assert_eq!(yaml.headers()[WARNING], warning);
        let want = r#"apiVersion: config.k8s.io/v1alpha1
binaryVersion: 1.36.3
emulationVersion: "1.36"
goVersion: rustc 1.95.0
kind: Statusz
metadata:
  name: kube-proxy
paths:
- /configz
- /metrics
startTime: "2026-11-06T18:27:23Z"
uptimeSeconds: 93686
"#;
        assert_eq!(body(yaml), want);
    }

    #[test]
    fn flags_are_listed_by_name() {
        let flags = [("v", "2".to_owned()), ("config", String::new())];
        let page = Flagz { delimiter: ": ", ..Flagz::new(&flags) };
        assert!(page.text().ends_with("debugging purposes only.\nconfig: \nv: 2\n"), "{}", page.text());
        let json = page.response(&ask("application/json;g=config.k8s.io;v=v1beta1;as=Flagz"));
        assert!(body(json).ends_with("\n  \"flags\": {\n    \"config\": \"\",\n    \"v\": \"2\"\n  }\n}"));
    }

    #[test]
    fn a_format_that_does_not_exist_is_refused_with_a_status() {
        let response = statusz().0.response(&ask("application/json"), Timestamp::now(), &[]);
        assert_eq!(response.status(), StatusCode::NOT_ACCEPTABLE);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(response.body().len(), 237, "as long as that of upstream");
    }
}
