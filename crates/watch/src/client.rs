//! The API server as we talk to it: a connection that follows rotated credentials, and how fast we may ask.
//!
//! ```text
//!   request ─▶ throttle ─▶ [who we are] ─▶ TLS, proxy, TCP ─▶ answer, or why not
//! ```
//!
//! `kube` reads kubeconfig files, speaks to exec plugins and sets up TLS. The rest is done here: tokens, certificates
//! and trust are read again when their files change, nothing is retried behind our back, and a peer that died without
//! a word is noticed by TCP keep-alive.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use kube::config::Kubeconfig;
use serde::Deserialize;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

pub use crate::kubeconfig::Misconfigured;
use crate::kubeconfig::{self, Pod, go_error};
use crate::throttle::Throttle;

/// The API server gives up on a request after a minute; a while later nobody is going to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// How long a silent peer is believed to be there, as with the reference's HTTP/2 pings.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(5), 3);

/// More of an error message than anyone reads.
const LONGEST_REFUSAL: usize = 64 << 10;

/// `clientConnection` of the configuration, and `--master`.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub kubeconfig: Option<PathBuf>,
    pub master: Option<String>,
    pub content_type: String,
    pub accept_content_types: String,
    pub qps: f32,
    pub burst: i32,
    pub user_agent: String,
}

/// Hears of every request, for the `rest_client_*` metrics.
pub trait Observer: Send + Sync {
    fn answered(&self, _exchange: &Exchange<'_>) {}
    /// A request waited so long for its turn.
    fn throttled(&self, _verb: &Method, _host: &str, _waited: Duration) {}
    /// The body of an answer had so many bytes. Not told of watches, which have no end.
    fn received(&self, _verb: &Method, _host: &str, _bytes: u64) {}
}

/// One request and its answer, as far as headers tell.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    pub verb: &'a Method,
    pub host: &'a str,
    /// Nothing if there was no answer; the metrics say `<error>` then.
    pub code: Option<u16>,
    pub took: Duration,
    pub request_bytes: u64,
    pub is_watch: bool,
}

/// An observer that does not care.
#[derive(Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// Why a request brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Nobody answered, or not to the end.
    #[error("{0}")]
    Unanswered(String),
    /// The answer is no.
    #[error("{message}")]
    Refused { code: u16, reason: String, message: String, retry_after: Option<Duration> },
}

impl ApiError {
    pub(crate) fn from_status(status: Status) -> Self {
        let seconds = status.details.and_then(|details| details.retry_after_seconds);
        Self::Refused {
            code: status.code,
            reason: status.reason,
            message: status.message,
            retry_after: seconds.map(Duration::from_secs),
        }
    }

    pub(crate) fn unanswered(error: &(dyn Error + 'static)) -> Self {
        // What went wrong is at the end of the chain, and what was tried at its beginning.
        let mut causes: Vec<String> = Vec::new();
        for cause in std::iter::successors(Some(error), |error| (*error).source()) {
            let words = cause.to_string();
            if causes.last().is_none_or(|last| !last.contains(&words)) {
                causes.push(words);
            }
        }
        Self::Unanswered(causes.join(": "))
    }

    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Unanswered(_) => None,
            Self::Refused { code, .. } => Some(*code),
        }
    }
}

/// How the API server says no.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: Option<StatusDetails>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct StatusDetails {
    pub retry_after_seconds: Option<u64>,
}

type Service = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// The API server.
pub struct Api {
    kubeconfig: Kubeconfig,
    user_agent: HeaderValue,
    host: String,
    link: tokio::sync::Mutex<Link>,
    throttle: Option<Mutex<Throttle>>,
    observer: Arc<dyn Observer>,
}

/// A connection, and the content of the files it was made from.
struct Link {
    service: Service,
    files: Vec<Option<Vec<u8>>>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Api {
    /// Finds out whom to talk to and as whom. Does not talk yet.
    pub fn open(settings: &Settings, observer: Arc<dyn Observer>) -> Result<Self, Misconfigured> {
        Self::open_in(settings, &Pod::here(), observer)
    }

    pub(crate) fn open_in(
        settings: &Settings,
        pod: &Pod,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, Misconfigured> {
        if settings.content_type.contains("protobuf") || settings.accept_content_types.contains("protobuf") {
            tracing::debug!(v = 2, "Speaking JSON to the API server, whatever contentType says");
        }
        let kubeconfig = kubeconfig::locate(settings.kubeconfig.as_deref(), settings.master.as_deref(), pod)?;
        let user_agent = HeaderValue::from_str(&settings.user_agent)
            .map_err(|_| Misconfigured(format!("invalid user agent {:?}", settings.user_agent)))?;
        let files = contents(&kubeconfig);
        let (service, host) = connect(&kubeconfig, &user_agent)?;
        Ok(Self {
            kubeconfig,
            user_agent,
            host,
            link: tokio::sync::Mutex::new(Link { service, files }),
            throttle: Throttle::new(settings.qps, settings.burst, Instant::now()).map(Mutex::new),
            observer,
        })
    }

    /// Sends a request and waits for the beginning of its answer. Watches need not wait for their turn.
    pub(crate) async fn send(
        &self,
        request: Request<Vec<u8>>,
        is_watch: bool,
    ) -> Result<Response<Incoming>, ApiError> {
        let verb = request.method().clone();
        if !is_watch {
            self.wait_for_turn(&verb).await;
        }
        let service = self.service().await;
        let (started, request_bytes) = (Instant::now(), request.body().len() as u64);
        let answer = tokio::time::timeout(PATIENCE, service.oneshot(request.map(Body::from))).await;
        self.observer.answered(&Exchange {
            verb: &verb,
            host: &self.host,
            code: answer.as_ref().ok().and_then(|sent| sent.as_ref().ok()).map(|ok| ok.status().as_u16()),
            took: started.elapsed(),
            request_bytes,
            is_watch,
        });
        match answer {
            Ok(Ok(response)) if response.status().is_success() => Ok(response),
            Ok(Ok(response)) => {
                if response.status() == http::StatusCode::UNAUTHORIZED {
                    self.distrust().await;
                }
                Err(refusal(response).await)
            }
            Ok(Err(error)) => {
                self.distrust().await;
                Err(ApiError::unanswered(&*error))
            }
            Err(_) => Err(ApiError::Unanswered(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }

    /// The same, with the whole answer.
    pub(crate) async fn ask(&self, request: Request<Vec<u8>>) -> Result<Vec<u8>, ApiError> {
        let verb = request.method().clone();
        let mut body = self.send(request, false).await?.into_body();
        let mut answer = Vec::new();
        while let Some(bytes) = next_bytes(&mut body, PATIENCE).await? {
            answer.extend_from_slice(&bytes);
        }
        self.received(&verb, answer.len() as u64);
        Ok(answer)
    }

    pub(crate) fn received(&self, verb: &Method, bytes: u64) {
        self.observer.received(verb, &self.host, bytes);
    }

    async fn wait_for_turn(&self, verb: &Method) {
        let Some(throttle) = &self.throttle else { return };
        let wait = throttle.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        tokio::time::sleep(wait).await;
        self.observer.throttled(verb, &self.host, wait);
    }

    /// The connection, made anew if the files behind it have changed.
    async fn service(&self) -> Service {
        let mut link = self.link.lock().await;
        let files = contents(&self.kubeconfig);
        if files != link.files {
            let (kubeconfig, user_agent) = (self.kubeconfig.clone(), self.user_agent.clone());
            // An exec plugin may take its time.
            let connected = tokio::task::spawn_blocking(move || connect(&kubeconfig, &user_agent)).await;
            match connected {
                Ok(Ok((service, _))) => {
                    tracing::debug!(v = 2, "Credentials for the API server have been read again");
                    *link = Link { service, files };
                }
                // Half of a certificate and its key, maybe: the other half will come. The old ones may still do.
                Ok(Err(error)) => {
                    tracing::error!(err = %error, "Failed to read credentials for the API server again");
                }
                Err(error) => {
                    tracing::error!(err = %error, "Failed to read credentials for the API server again")
                }
            }
        }
        link.service.clone()
    }

    /// What an exec plugin said no longer counts: ask it again.
    async fn distrust(&self) {
        let users = self.kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
        if users.into_iter().any(|user| user.exec.is_some()) {
            self.link.lock().await.files.push(None);
        }
    }
}

/// `kube-proxy/<version> (linux/<arch>) kubernetes/<commit>`, as the API server's audit log knows it.
pub fn user_agent(version: &str, commit: &str) -> String {
    let version = version.split('-').next().unwrap_or(version);
    let commit: String = commit.chars().take(7).collect();
    let commit = if commit.is_empty() { "unknown" } else { &commit };
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "x86" => "386",
        other => other,
    };
    format!("kube-proxy/{version} (linux/{arch}) kubernetes/{commit}")
}

/// The next piece of a body, or nothing at its end.
pub(crate) async fn next_bytes(body: &mut Incoming, patience: Duration) -> Result<Option<Bytes>, ApiError> {
    if body.is_end_stream() {
        return Ok(None);
    }
    match tokio::time::timeout(patience, body.frame()).await {
        // Trailers tell us nothing.
        Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
        Ok(Some(Err(error))) => Err(ApiError::unanswered(&error)),
        Ok(None) => Ok(None),
        Err(_) => Err(ApiError::Unanswered("the answer stopped short".into())),
    }
}

async fn refusal(response: Response<Incoming>) -> ApiError {
    let code = response.status().as_u16();
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let words = response.status().canonical_reason().unwrap_or("refused").to_owned();
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Ok(Some(bytes)) = next_bytes(&mut body, PATIENCE).await {
        text.extend_from_slice(&bytes);
        if text.len() > LONGEST_REFUSAL {
            break;
        }
    }
    let mut status: Status = serde_json::from_slice(&text).unwrap_or_default();
    status.code = code;
    if status.message.is_empty() {
        status.message = format!("the server said {code} {words}");
    }
    if let Some(seconds) = seconds {
        status.details = Some(StatusDetails { retry_after_seconds: Some(seconds) });
    }
    ApiError::from_status(status)
}

/// What the files hold that the connection is made from. One that can't be read is told from one that is empty.
fn contents(kubeconfig: &Kubeconfig) -> Vec<Option<Vec<u8>>> {
    kubeconfig::files(kubeconfig).iter().map(|path| std::fs::read(path).ok()).collect()
}

fn connect(kubeconfig: &Kubeconfig, user_agent: &HeaderValue) -> Result<(Service, String), Misconfigured> {
    let mut config = kube::Config::try_from(kubeconfig.clone()).map_err(misconfigured)?;
    config.headers.push((USER_AGENT, user_agent.clone()));
    config.headers.push((ACCEPT, HeaderValue::from_static("application/json")));
    // A file beats a token that is written down, and kube would not trim it.
    if let Some(path) = config.auth_info.token_file.take() {
        config.auth_info.token = None;
        config.headers.push((AUTHORIZATION, bearer(Path::new(&path))?));
    }
    let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let service = match proxy(kubeconfig, &config.cluster_url)? {
        None => stack(config, tcp())?,
        Some((uri, _)) if uri.scheme_str().is_some_and(|scheme| scheme.starts_with("socks5")) => {
            stack(config, SocksV5::new(uri, tcp()))?
        }
        Some((uri, authorization)) => {
            // `https_or_http`: the scheme of the proxy's own address says which.
            let connector = config.rustls_https_connector_with_connector(tcp()).map_err(misconfigured)?;
            let tunnel = Tunnel::new(uri, connector);
            stack(config, authorization.into_iter().fold(tunnel, Tunnel::with_auth))?
        }
    };
    Ok((service, host))
}

fn stack<C>(config: kube::Config, connector: C) -> Result<Service, Misconfigured>
where
    C: tower::Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let connector = config.rustls_https_connector_with_connector(connector).map_err(misconfigured)?;
    let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(misconfigured)?)
        .layer(config.extra_headers_layer().map_err(misconfigured)?)
        .map_err(BoxError::from)
        .service(client);
    Ok(BoxCloneSyncService::new(service.map_err(BoxError::from)))
}

fn tcp() -> HttpConnector {
    let (idle, interval, retries) = KEEPALIVE;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(Duration::from_secs(30)));
    tcp.set_keepalive(Some(idle));
    tcp.set_keepalive_interval(Some(interval));
    tcp.set_keepalive_retries(Some(retries));
    tcp.set_tcp_user_timeout(Some(idle + interval * retries));
    tcp
}

fn bearer(path: &Path) -> Result<HeaderValue, Misconfigured> {
    let token =
        std::fs::read_to_string(path).map_err(|error| Misconfigured(go_error("open", path, &error)))?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
        .map_err(|_| Misconfigured(format!("{} holds no token", path.display())))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The proxy on the way to the server, if there is one, and what it wants to see of us.
fn proxy(kubeconfig: &Kubeconfig, server: &Uri) -> Result<Option<(Uri, Option<HeaderValue>)>, Misconfigured> {
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let written = clusters.filter_map(|cluster| cluster.proxy_url.clone()).next();
    let found = match written {
        Some(url) => {
            let found = Matcher::builder().all(url.clone()).build().intercept(server);
            Some(found.ok_or_else(|| Misconfigured(format!("invalid proxy URL {url:?}")))?)
        }
        None if is_this_host(server) => None,
        None => {
            let variable = |upper, lower| {
                let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
                set(upper).or_else(|| set(lower)).unwrap_or_default()
            };
            let matcher = Matcher::builder()
                .http(variable("HTTP_PROXY", "http_proxy"))
                .https(variable("HTTPS_PROXY", "https_proxy"))
                .no(variable("NO_PROXY", "no_proxy"));
            matcher.build().intercept(server)
        }
    };
    Ok(found.map(|found| (found.uri().clone(), found.basic_auth().cloned())))
}

fn is_this_host(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn misconfigured(error: impl Error) -> Misconfigured {
    Misconfigured(error.to_string())
}

#[cfg(test)]
mod tests;
