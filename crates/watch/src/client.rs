//! The connection to the API server: follows rotated credentials, and limits the rate of requests.
//!
//! ```text
//!   request ─▶ throttle ─▶ credentials ─▶ TLS, proxy, TCP ─▶ answer or ApiError
//! ```
//!
//! `kube` reads kubeconfig files, runs exec plugins and sets up TLS. This module reads tokens, certificates and CAs again when
//! their files change, and leaves retries to its callers.
//!
//! HTTP/2 is preferred, as client-go prefers it: all watches share one connection, and pings notice an API server that
//! died behind a load balancer which keeps the connection open. TCP keep-alive notices a peer that is gone altogether.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::rt::{Read, Write};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use kube::client::{AuthError, Body, ConfigExt as _};
use kube::config::Kubeconfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

use crate::certificate;
pub use crate::kubeconfig::Misconfigured;
use crate::kubeconfig::{self, InClusterConfig, go_error};
use crate::meta::{Status, StatusDetails};
use crate::throttle::Throttle;
use crate::wire::{self, Object, Wire};

/// The maximum time until an answer begins, and between two chunks of it. The API server aborts a request after a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(70);

/// The maximum time until the answer to a watch begins, including the connection. The API server answers at once.
const WATCH_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Idle time, interval and retries of TCP keep-alive.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(5), 3);

/// How often to check for new credentials while waiting.
const CREDENTIALS_INTERVAL: Duration = Duration::from_secs(1);

/// Error messages are truncated to about this size.
const MAX_ERROR_BODY: usize = 64 << 10;

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

/// Notified of every request, for the `rest_client_*` metrics.
pub trait Observer: Send + Sync {
    fn answered(&self, _exchange: &Exchange<'_>) {}
    /// The rate limit delayed a request by `waited`.
    fn throttled(&self, _verb: &Method, _host: &str, _waited: Duration) {}
    /// The body of an answer had this size. Not called for watches, which have no end.
    fn received(&self, _verb: &Method, _host: &str, _bytes: u64) {}
    /// A watch of this resource began, or received a message.
    fn message(&self, _resource: &'static str) {}
}

/// One request and the headers of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    pub verb: &'a Method,
    pub host: &'a str,
    /// `None` if there was no answer, which metrics count as `<error>`.
    pub code: Option<u16>,
    pub took: Duration,
    pub request_bytes: u64,
    pub is_watch: bool,
}

/// An observer that ignores everything.
#[derive(Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// There was no answer, or an incomplete one.
    #[error("{0}")]
    Unanswered(String),
    /// The server rejected the request.
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
        if let Some(words) = plugin_failure(error) {
            return Self::Unanswered(words);
        }
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

    /// Adds what is known of the cause.
    fn because(mut self, cause: Option<String>) -> Self {
        let (Self::Unanswered(message) | Self::Refused { message, .. }) = &mut self;
        message.extend(cause.map(|cause| format!(": {cause}")));
        self
    }

    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Unanswered(_) => None,
            Self::Refused { code, .. } => Some(*code),
        }
    }
}

type Service = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// The API server.
pub struct Api {
    kubeconfig: Kubeconfig,
    transport: Transport,
    user_agent: HeaderValue,
    /// The encodings to request.
    accept: HeaderValue,
    /// Whether to request JSON instead: set once the server has rejected `accept`.
    requests_json: AtomicBool,
    host: String,
    link: tokio::sync::Mutex<Link>,
    throttle: Option<Mutex<Throttle>>,
    observer: Arc<dyn Observer>,
}

/// What connections are made of.
#[derive(Clone)]
pub(crate) enum Transport {
    Tcp,
    /// For tests in virtual time.
    #[cfg(test)]
    Memory(crate::scripted::Dial),
}

/// Connections that share credentials.
struct Link {
    service: Service,
    generation: Generation,
    /// The content of the credential files when they were last read, whether they could be used or not.
    files: Vec<Option<Vec<u8>>>,
    /// Whether to make a new one for the next request, whatever the files hold.
    is_stale: bool,
}

/// The beginning of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Incoming,
    pub(crate) wire: Wire,
    /// What [`Api::renew_connection`] needs if the rest of the body does not arrive.
    pub(crate) generation: Generation,
}

/// Which link a request was sent through; each new one has a higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Api {
    /// Finds out whom to talk to and as whom. Does not talk yet.
    pub fn open(settings: &Settings, observer: Arc<dyn Observer>) -> Result<Self, Misconfigured> {
        Self::open_in(settings, &InClusterConfig::here(), Transport::Tcp, observer)
    }

    pub(crate) fn open_in(
        settings: &Settings,
        pod: &InClusterConfig,
        transport: Transport,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, Misconfigured> {
        let kubeconfig = kubeconfig::locate(settings.kubeconfig.as_deref(), settings.master.as_deref(), pod)?;
        let user_agent = HeaderValue::from_str(&settings.user_agent)
            .map_err(|_| Misconfigured(format!("invalid user agent {:?}", settings.user_agent)))?;
        let accept = accept(settings)?;
        let files = contents(&kubeconfig);
        let (service, host) = connect(&kubeconfig, &user_agent, &transport)?;
        Ok(Self {
            kubeconfig,
            transport,
            user_agent,
            accept,
            requests_json: AtomicBool::new(false),
            host,
            link: tokio::sync::Mutex::new(Link {
                service,
                generation: Generation::default(),
                files,
                is_stale: false,
            }),
            throttle: Throttle::new(settings.qps, settings.burst, Instant::now().into_std()).map(Mutex::new),
            observer,
        })
    }

    /// Sends a request and waits for the beginning of its answer. Watches need not wait for their turn. If the server does not
    /// have the configured encodings, requests JSON from then on.
    pub(crate) async fn send(&self, request: Request<Vec<u8>>, is_watch: bool) -> Result<Answer, ApiError> {
        let json = HeaderValue::from_static(wire::JSON);
        if self.requests_json.load(Ordering::Relaxed) {
            return self.send_accepting(json, request, is_watch).await;
        }
        match self.send_accepting(self.accept.clone(), request.clone(), is_watch).await {
            Err(ApiError::Refused { code: 406 | 415, message, .. }) if request.method() == Method::GET => {
                if !self.requests_json.swap(true, Ordering::Relaxed) {
                    tracing::warn!(err = message, accept = ?self.accept, "Falling back to JSON");
                }
                self.send_accepting(json, request, is_watch).await
            }
            answer => answer,
        }
    }

    async fn send_accepting(
        &self,
        accept: HeaderValue,
        mut request: Request<Vec<u8>>,
        is_watch: bool,
    ) -> Result<Answer, ApiError> {
        request.headers_mut().insert(ACCEPT, accept);
        let verb = request.method().clone();
        if !is_watch {
            self.wait_for_turn(&verb).await;
        }
        let (service, generation) = self.service().await;
        let (started, request_bytes) = (Instant::now(), request.body().len() as u64);
        let limit = if is_watch { WATCH_ANSWER_TIMEOUT } else { ANSWER_TIMEOUT };
        let answer = timeout(limit, service.oneshot(request.map(Body::from))).await;
        self.observer.answered(&Exchange {
            verb: &verb,
            host: &self.host,
            code: answer.as_ref().ok().and_then(|sent| sent.as_ref().ok()).map(|ok| ok.status().as_u16()),
            took: started.elapsed(),
            request_bytes,
            is_watch,
        });
        match answer {
            Ok(Ok(response)) if response.status().is_success() => {
                let wire = Wire::of(response.headers());
                Ok(Answer { body: response.into_body(), wire, generation })
            }
            Ok(Ok(response)) => {
                let is_unauthorized = response.status() == http::StatusCode::UNAUTHORIZED;
                let refusal = refusal(response).await;
                if is_unauthorized {
                    self.renew_exec_credentials(generation).await;
                    return Err(refusal.because(self.expired_certificate()));
                }
                Err(refusal)
            }
            Ok(Err(error)) => {
                self.renew_exec_credentials(generation).await;
                Err(ApiError::unanswered(&*error).because(self.expired_certificate()))
            }
            Err(_) => {
                self.renew_connection(generation).await;
                Err(ApiError::Unanswered(format!("no answer within {} s", limit.as_secs())))
            }
        }
    }

    /// Like `send`, but returns the whole answer.
    pub(crate) async fn ask(&self, request: Request<Vec<u8>>) -> Result<Vec<u8>, ApiError> {
        let verb = request.method().clone();
        let Answer { mut body, .. } = self.send(request, false).await?;
        let mut answer = Vec::new();
        while let Some(bytes) = next_bytes_in_time(&mut body).await? {
            answer.extend_from_slice(&bytes);
        }
        self.received(&verb, answer.len() as u64);
        Ok(answer)
    }

    pub(crate) fn received(&self, verb: &Method, bytes: u64) {
        self.observer.received(verb, &self.host, bytes);
    }

    pub(crate) fn message(&self, resource: &'static str) {
        self.observer.message(resource);
    }

    /// Sleeps for `delay`, or until the credentials change: the server may have rejected the old ones.
    pub(crate) async fn delay(&self, delay: Duration) {
        let before = self.link.lock().await.files.clone();
        let changed = async {
            while contents(&self.kubeconfig) == before {
                sleep(CREDENTIALS_INTERVAL).await;
            }
        };
        let _ = timeout(delay, changed).await;
    }

    /// Makes the next request use a new connection, unless the connection of this generation has been replaced already. Requests in
    /// progress are not affected.
    pub(crate) async fn renew_connection(&self, generation: Generation) {
        let mut link = self.link.lock().await;
        link.is_stale |= link.generation == generation;
    }

    async fn wait_for_turn(&self, verb: &Method) {
        let Some(throttle) = &self.throttle else { return };
        let wait = throttle.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now().into_std());
        sleep(wait).await;
        self.observer.throttled(verb, &self.host, wait);
    }

    /// The connection, which is replaced if the files of the credentials have changed.
    async fn service(&self) -> (Service, Generation) {
        let mut link = self.link.lock().await;
        let files = contents(&self.kubeconfig);
        if link.is_stale || files != link.files {
            link.files = files;
            let (kubeconfig, user_agent) = (self.kubeconfig.clone(), self.user_agent.clone());
            let transport = self.transport.clone();
            // An exec plugin may block.
            let connected = spawn_blocking(move || connect(&kubeconfig, &user_agent, &transport)).await;
            match connected.map_err(|error| error.to_string()).and_then(|it| it.map_err(|it| it.to_string()))
            {
                Ok((service, _)) => {
                    tracing::debug!(v = 2, "Credentials for the API server have been read again");
                    link.service = service;
                    link.generation.0 += 1;
                    link.is_stale = false;
                }
                // A certificate and its key may be replaced one after the other. The old ones may still be valid.
                Err(err) => {
                    tracing::error!(
                        err,
                        "Failed to read credentials for the API server again, using the last ones"
                    );
                }
            }
        }
        (link.service.clone(), link.generation)
    }

    /// The message for a client certificate that has expired.
    fn expired_certificate(&self) -> Option<String> {
        let mut users = self.kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
        let path = users.find_map(|user| user.client_certificate.as_ref())?;
        let expiry = certificate::expiry(&CertificateDer::from_pem_file(path).ok()?)?;
        (expiry < Timestamp::now()).then(|| format!("client certificate {path} expired at {expiry}"))
    }

    /// Makes the next request run the exec plugin again, if there is one.
    async fn renew_exec_credentials(&self, generation: Generation) {
        let users = self.kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
        if users.into_iter().any(|user| user.exec.is_some()) {
            self.renew_connection(generation).await;
        }
    }
}

/// `kube-proxy/<version> (linux/<arch>) kubernetes/<commit>`, as upstream appears in audit logs.
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

/// The next chunk of a body, or `None` at its end.
pub(crate) async fn next_bytes(body: &mut Incoming) -> Result<Option<Bytes>, ApiError> {
    if body.is_end_stream() {
        return Ok(None);
    }
    match body.frame().await {
        // Trailers are ignored.
        Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
        Some(Err(error)) => Err(ApiError::unanswered(&error)),
        None => Ok(None),
    }
}

/// Like [`next_bytes`], with a timeout.
pub(crate) async fn next_bytes_in_time(body: &mut Incoming) -> Result<Option<Bytes>, ApiError> {
    let stopped = |_| ApiError::Unanswered("the answer stopped short".into());
    timeout(ANSWER_TIMEOUT, next_bytes(body)).await.map_err(stopped)?
}

async fn refusal(response: Response<Incoming>) -> ApiError {
    let code = response.status().as_u16();
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let words = response.status().canonical_reason().unwrap_or("refused").to_owned();
    let wire = Wire::of(response.headers());
    let mut body = response.into_body();
    let mut answer = Vec::new();
    while let Ok(Some(bytes)) = next_bytes_in_time(&mut body).await {
        answer.extend_from_slice(&bytes);
        if answer.len() > MAX_ERROR_BODY {
            break;
        }
    }
    let status = wire.object(&answer).and_then(Object::decode::<Status>);
    let mut status = status.unwrap_or_default();
    status.code = code;
    if status.message.is_empty() {
        status.message = format!("the server said {code} {words}");
    }
    if let Some(seconds) = seconds {
        status.details = Some(StatusDetails { retry_after_seconds: Some(seconds) });
    }
    ApiError::from_status(status)
}

/// The header of client-go: anything is acceptable if only `contentType` is set.
fn accept(settings: &Settings) -> Result<HeaderValue, Misconfigured> {
    let accept = match (settings.accept_content_types.as_str(), settings.content_type.as_str()) {
        ("", "") => wire::JSON.to_owned(),
        ("", content_type) => format!("{content_type}, */*"),
        (accept, _) => accept.to_owned(),
    };
    HeaderValue::from_str(&accept).map_err(|_| Misconfigured(format!("invalid content types {accept:?}")))
}

/// The contents of the files of the credentials, `None` for those that cannot be read.
fn contents(kubeconfig: &Kubeconfig) -> Vec<Option<Vec<u8>>> {
    kubeconfig::files(kubeconfig).iter().map(|path| std::fs::read(path).ok()).collect()
}

fn connect(
    kubeconfig: &Kubeconfig,
    user_agent: &HeaderValue,
    transport: &Transport,
) -> Result<(Service, String), Misconfigured> {
    let mut config = kube::Config::try_from(kubeconfig.clone()).map_err(misconfigured)?;
    config.headers.push((USER_AGENT, user_agent.clone()));
    // A token file takes precedence over a literal token. `kube` would not trim it.
    if let Some(path) = config.auth_info.token_file.take() {
        config.auth_info.token = None;
        config.headers.push((AUTHORIZATION, bearer(Path::new(&path))?));
    }
    let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let service = match transport {
        Transport::Tcp => over_tcp(kubeconfig, config)?,
        #[cfg(test)]
        Transport::Memory(dial) => stack(config, dial.clone())?,
    };
    Ok((service, host))
}

/// Connects directly or through a proxy.
fn over_tcp(kubeconfig: &Kubeconfig, config: kube::Config) -> Result<Service, Misconfigured> {
    match proxy(kubeconfig, &config.cluster_url)? {
        None => stack(config, tcp()),
        Some((uri, _)) if uri.scheme_str().is_some_and(|scheme| scheme.starts_with("socks5")) => {
            stack(config, SocksV5::new(uri, tcp()))
        }
        Some((uri, authorization)) => {
            // The scheme of the proxy's own address decides between TLS and plain text.
            let connector = config.rustls_https_connector_with_connector(tcp()).map_err(misconfigured)?;
            let tunnel = Tunnel::new(uri, connector);
            stack(config, authorization.into_iter().fold(tunnel, Tunnel::with_auth))
        }
    }
}

fn stack<C>(config: kube::Config, connector: C) -> Result<Service, Misconfigured>
where
    C: tower::Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let http2 = Http2::from_environment(|name| std::env::var(name).ok());
    let tls = config.rustls_client_config().map_err(misconfigured)?;
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(misconfigured)?;
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = match http2 {
        Some(_) => https.enable_all_versions().wrap_connector(connector),
        None => https.enable_http1().wrap_connector(connector),
    };
    let mut builder = Client::builder(TokioExecutor::new());
    builder.timer(TokioTimer::new()).pool_timer(TokioTimer::new());
    // The pool measures idle time from the last request: it would close a connection whose watches last longer.
    builder.pool_idle_timeout(None);
    if let Some(Http2 { read_idle_timeout, ping_timeout }) = http2 {
        builder.http2_keep_alive_interval(read_idle_timeout).http2_keep_alive_timeout(ping_timeout);
        builder.http2_keep_alive_while_idle(true);
    }
    let client: Client<_, Body> = builder.build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(misconfigured)?)
        .layer(config.extra_headers_layer().map_err(misconfigured)?)
        .map_err(BoxError::from)
        .service(client);
    Ok(BoxCloneSyncService::new(service.map_err(BoxError::from)))
}

/// HTTP/2 health checks, with the defaults and environment variables of client-go.
#[derive(Debug, PartialEq, Eq)]
struct Http2 {
    /// Send a ping after this time without a frame. `None` disables pings.
    read_idle_timeout: Option<Duration>,
    /// Close the connection if a ping is not answered within this time.
    ping_timeout: Duration,
}

impl Http2 {
    /// `None` if HTTP/2 is disabled.
    fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let seconds = |name, default| {
            let Some(value) = set(name) else { return default };
            value.parse().unwrap_or_else(|_| {
                tracing::warn!(variable = name, value, default, "Not a number of seconds, using the default");
                default
            })
        };
        if set("DISABLE_HTTP2").is_some() {
            return None;
        }
        let read_idle = seconds("HTTP2_READ_IDLE_TIMEOUT_SECONDS", 30);
        // client-go treats 0 as not set.
        let ping = Some(seconds("HTTP2_PING_TIMEOUT_SECONDS", 15)).filter(|seconds| *seconds > 0);
        Some(Self {
            read_idle_timeout: (read_idle > 0).then(|| Duration::from_secs(read_idle)),
            ping_timeout: Duration::from_secs(ping.unwrap_or(15)),
        })
    }
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
    let token = Some(token.trim()).filter(|token| !token.is_empty());
    let value = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
    let mut value = value.ok_or_else(|| Misconfigured(format!("{} holds no token", path.display())))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The proxy to use for the server, if there is one, and the header that authorizes us to it.
fn proxy(kubeconfig: &Kubeconfig, server: &Uri) -> Result<Option<(Uri, Option<HeaderValue>)>, Misconfigured> {
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let configured = clusters.filter_map(|cluster| cluster.proxy_url.clone()).next();
    let found = match configured {
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

fn misconfigured(error: impl Error + 'static) -> Misconfigured {
    Misconfigured(plugin_failure(&error).unwrap_or_else(|| error.to_string()))
}

/// The message for a failed exec plugin. That of `kube` contains its output, which may include a token.
fn plugin_failure(error: &(dyn Error + 'static)) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    let failure = causes.find_map(|cause| cause.downcast_ref::<AuthError>())?;
    if let AuthError::AuthExecRun { out, .. } = failure {
        return Some(format!("exec plugin failed: {}", out.status));
    }
    let is_unreadable = matches!(failure, AuthError::AuthExecParse(_));
    is_unreadable.then(|| "exec plugin printed no ExecCredential".into())
}

#[cfg(test)]
mod tests;
