//! The site at the metrics port: metrics, and pages about the running proxy for operators.

pub(crate) mod accept;
mod debug_api;
pub(crate) mod healthz;
mod page;
mod profiling;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderName};
use http::{Method, StatusCode};
use jiff::Timestamp;
use settings::config::{KubeProxyConfiguration, ProxyMode};
use settings::gates::{Gate, Gates};
use settings::logs::Logs;
use settings::version::Build;

use crate::connections::ConnectionCounter;
use crate::family::Families;
use crate::http::listen::ListenError;
use crate::http::response::{JSON, TEXT, nosniff, not_found, plain, response, with_header};
use crate::http::{Http, OnBindFailure, Reply, ServerRequest, ServerResponse, Site};
use crate::metrics::Metrics;
use crate::metrics::process::ProcessMetrics;
use debug_api::DebugContext;
use healthz::Healthz;
use page::{Flagz, Statusz};

/// What the pages show.
#[derive(Debug)]
pub struct Facts {
    pub mode: ProxyMode,
    pub config: KubeProxyConfiguration,
    pub flags: Vec<(&'static str, String)>,
    /// The version to report.
    pub version: String,
    pub gates: Gates,
    /// Whether to serve `/debug/pprof` and `/debug/flags`, which changes the verbosity.
    pub profiling: bool,
    pub logs: Logs,
    pub metrics: Arc<Metrics>,
    /// The family workers, for queries of the debug API.
    pub families: Families,
    pub connection_counter: Arc<ConnectionCounter>,
    pub node_name: String,
}

/// Serves the site. Returns an error only if `hard_fail` is set and the port cannot be bound.
pub fn serve(http: &Http, address: SocketAddr, hard_fail: bool, facts: Facts) -> Result<(), ListenError> {
    let log = |error: &ListenError| tracing::error!(err = %error, "starting metrics server failed");
    http.serve_forever(address, Arc::new(Status::new(facts)), OnBindFailure { is_fatal: hard_fail, log })
}

#[derive(Debug)]
struct Status {
    mode: &'static str,
    configz: String,
    statusz: Option<Statusz>,
    flagz: Option<Flagz>,
    healthz: Healthz,
    /// Changes the verbosity; `None` if profiling is disabled.
    profiling: Option<Logs>,
    metrics: Arc<Metrics>,
    families: Families,
    connection_counter: Arc<ConnectionCounter>,
    node_name: String,
    /// The start time in whole seconds since the epoch.
    started: String,
}

impl Status {
    fn new(facts: Facts) -> Self {
        let Facts {
            mode,
            config,
            flags,
            version,
            gates,
            profiling,
            logs,
            metrics,
            families,
            connection_counter,
            node_name,
        } = facts;
        let build = Build::reported_as(&version);
        let now = Timestamp::now();
        let has_flagz = gates.enabled(Gate::ComponentFlagz);
        let started =
            ProcessMetrics::current().start_time().unwrap_or_else(|| now.as_duration().as_secs_f64());
        Self {
            mode: match mode {
                ProxyMode::Iptables => "iptables",
                ProxyMode::Ipvs => "ipvs",
                ProxyMode::Nftables => "nftables",
            },
            configz: configz(&config),
            statusz: gates.enabled(Gate::ComponentStatusz).then(|| Statusz::new(now, &build, has_flagz)),
            flagz: has_flagz.then(|| Flagz::new(&flags)),
            healthz: Healthz::default(),
            profiling: profiling.then_some(logs),
            metrics,
            families,
            connection_counter,
            node_name,
            started: format!("{:.0}", started.floor()),
        }
    }

    fn page(&self, request: &ServerRequest) -> ServerResponse {
        match request.uri().path() {
            "/healthz" => self.healthz.response(request.uri().query().unwrap_or_default()),
            "/healthz/ping" => response(StatusCode::OK, TEXT, "ok"),
            "/proxyMode" => plain(StatusCode::OK, self.mode),
            "/metrics/slis" => self.slis(request),
            "/configz" => nosniff(response(StatusCode::OK, JSON, self.configz.clone())),
            "/flagz" => self.flagz.as_ref().map_or_else(not_found, |flagz| flagz.response(request)),
            "/statusz" => self.statusz.as_ref().map_or_else(not_found, |statusz| {
                statusz.response(request, Timestamp::now(), &self.metrics.watch_ages())
            }),
            _ => self
                .profiling
                .as_ref()
                .and_then(|logs| profiling::page(request, logs))
                .unwrap_or_else(not_found),
        }
    }

    fn slis(&self, request: &ServerRequest) -> ServerResponse {
        if request.method() == Method::DELETE {
            self.healthz.clear();
            return response(StatusCode::OK, TEXT, "metrics reset\n");
        }
        exposition(self.healthz.page(), &self.started, accepts_gzip(request))
    }
}

impl Site for Status {
    fn reply(&self, request: &ServerRequest) -> Reply {
        if request.uri().path() != "/metrics" {
            let context = DebugContext {
                node_name: &self.node_name,
                mode: self.mode,
                families: &self.families,
                connection_counter: &self.connection_counter,
            };
            return debug_api::reply(request, context).unwrap_or_else(|| Reply::Now(self.page(request)));
        }
        let (metrics, started) = (self.metrics.clone(), self.started.clone());
        let gzip = accepts_gzip(request);
        Reply::Later(Box::new(move || exposition(metrics.page(), &started, gzip)))
    }
}

const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The text format of Prometheus. Upstream also has a binary format; every client that accepts it accepts text, too.
fn exposition(page: String, started: &str, gzip: bool) -> ServerResponse {
    let page = Bytes::from(page);
    let compressed = if gzip { compress(&page) } else { None };
    let is_compressed = compressed.is_some();
    let response = response(StatusCode::OK, EXPOSITION, compressed.unwrap_or(page));
    let response = with_header(response, HeaderName::from_static("process-start-time-unix"), started);
    if is_compressed { with_header(response, CONTENT_ENCODING, "gzip") } else { response }
}

fn compress(page: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(page).ok()?;
    Some(encoder.finish().ok()?.into())
}

fn accepts_gzip(request: &ServerRequest) -> bool {
    let accepted = request.headers().get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.unwrap_or_default().split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|part| part == "q=0")
    })
}

fn configz(config: &KubeProxyConfiguration) -> String {
    match config.to_json() {
        Ok(json) => format!(r#"{{"kubeproxy.config.k8s.io":{json}}}"#),
        // Only numbers that JSON cannot represent fail, and validation refuses them.
        Err(error) => format!(r#"{{"error":"{error}"}}"#),
    }
}

#[cfg(test)]
mod tests;
