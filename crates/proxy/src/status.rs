//! Everything at the metrics port: metrics, and what a person wants to know about a running proxy.

pub(crate) mod accept;
mod debug;
pub(crate) mod healthz;
mod local;
mod page;

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

use crate::connections::Census;
use crate::family::Families;
use crate::http::answer::{JSON, TEXT, answer, nosniff, not_found, plain, with_header};
use crate::http::listen::ListenError;
use crate::http::{Answer, Http, Reply, Request, Site, Trouble};
use crate::metrics::Metrics;
use crate::metrics::process::Process;
use healthz::Healthz;
use local::Here;
use page::{Flagz, Statusz};

/// What there is to show.
#[derive(Debug)]
pub struct Facts {
    pub mode: ProxyMode,
    pub config: KubeProxyConfiguration,
    pub flags: Vec<(&'static str, String)>,
    /// The version to report.
    pub version: String,
    pub gates: Gates,
    /// Whether to let people look deeper, and change the verbosity.
    pub profiling: bool,
    pub logs: Logs,
    pub metrics: Arc<Metrics>,
    /// Whom to ask about services.
    pub families: Families,
    pub census: Arc<Census>,
    pub node_name: String,
}

/// Serves it all. An error only where a port that is taken is the end.
pub fn serve(http: &Http, address: SocketAddr, hard_fail: bool, facts: Facts) -> Result<(), ListenError> {
    let tell = |error: &ListenError| tracing::error!(err = %error, "starting metrics server failed");
    http.serve_for_ever(address, Arc::new(Status::new(facts)), Trouble { is_fatal: hard_fail, tell })
}

#[derive(Debug)]
struct Status {
    mode: &'static str,
    configz: String,
    statusz: Option<Statusz>,
    flagz: Option<Flagz>,
    healthz: Healthz,
    /// For changing the verbosity, if that is allowed.
    debug: Option<Logs>,
    metrics: Arc<Metrics>,
    families: Families,
    census: Arc<Census>,
    node_name: String,
    /// Whole seconds since the epoch.
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
            census,
            node_name,
        } = facts;
        let build = Build::reported_as(&version);
        let now = Timestamp::now();
        let has_flagz = gates.enabled(Gate::ComponentFlagz);
        let started = Process::here().start_time().unwrap_or_else(|| now.as_duration().as_secs_f64());
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
            debug: profiling.then_some(logs),
            metrics,
            families,
            census,
            node_name,
            started: format!("{:.0}", started.floor()),
        }
    }

    fn find(&self, request: &Request) -> Answer {
        match request.uri().path() {
            "/healthz" => self.healthz.answer(request.uri().query().unwrap_or_default()),
            "/healthz/ping" => answer(StatusCode::OK, TEXT, "ok"),
            "/proxyMode" => plain(StatusCode::OK, self.mode),
            "/metrics/slis" => self.slis(request),
            "/configz" => nosniff(answer(StatusCode::OK, JSON, self.configz.clone())),
            "/flagz" => self.flagz.as_ref().map_or_else(not_found, |flagz| flagz.answer(request)),
            "/statusz" => self.statusz.as_ref().map_or_else(not_found, |statusz| {
                statusz.answer(request, Timestamp::now(), &self.metrics.watch_ages())
            }),
            _ => self.debug.as_ref().and_then(|logs| debug::find(request, logs)).unwrap_or_else(not_found),
        }
    }

    fn slis(&self, request: &Request) -> Answer {
        if request.method() == Method::DELETE {
            self.healthz.forget();
            return answer(StatusCode::OK, TEXT, "metrics reset\n");
        }
        exposition(self.healthz.page(), &self.started, accepts_gzip(request))
    }
}

impl Site for Status {
    fn reply(&self, request: &Request) -> Reply {
        if request.uri().path() != "/metrics" {
            let here = Here {
                node_name: &self.node_name,
                mode: self.mode,
                families: &self.families,
                census: &self.census,
            };
            return local::find(request, here).unwrap_or_else(|| Reply::Now(self.find(request)));
        }
        let (metrics, started) = (self.metrics.clone(), self.started.clone());
        let gzip = accepts_gzip(request);
        Reply::Later(Box::new(move || exposition(metrics.page(), &started, gzip)))
    }
}

const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Text that Prometheus reads. Of the forms it may ask for, the reference has another, binary one; every client that
/// knows it takes this one, too.
fn exposition(page: String, started: &str, gzip: bool) -> Answer {
    let page = Bytes::from(page);
    let zipped = if gzip { compress(&page) } else { None };
    let is_zipped = zipped.is_some();
    let answer = answer(StatusCode::OK, EXPOSITION, zipped.unwrap_or(page));
    let answer = with_header(answer, HeaderName::from_static("process-start-time-unix"), started);
    if is_zipped { with_header(answer, CONTENT_ENCODING, "gzip") } else { answer }
}

fn compress(page: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(page).ok()?;
    Some(encoder.finish().ok()?.into())
}

fn accepts_gzip(request: &Request) -> bool {
    let accepted = request.headers().get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.unwrap_or_default().split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|part| part == "q=0")
    })
}

fn configz(config: &KubeProxyConfiguration) -> String {
    match config.to_json() {
        Ok(json) => format!(r#"{{"kubeproxy.config.k8s.io":{json}}}"#),
        // Only numbers that JSON does not have, and those do not come through validation.
        Err(error) => format!(r#"{{"error":"{error}"}}"#),
    }
}

#[cfg(test)]
mod tests;
