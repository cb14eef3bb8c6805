//! An in-memory API server for tests in virtual time, with a history that can be watched and with faults. It supports HTTP/1.1
//! and, with TLS, the version that the client prefers.
//!
//! Like a real one, it sends a bookmark a little later than every minute.

use std::collections::BTreeMap;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsAcceptor;

use crate::client::{Api, Observer, Settings, Transport, Unobserved};
use crate::kubeconfig::InClusterConfig;
use crate::stub::Asked;
use crate::wire::Wire;

const BOOKMARKS: Duration = Duration::from_millis(61_250);

/// What the server does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Served,
    Refused {
        code: u16,
        reason: &'static str,
        retry_after: Option<u64>,
    },
    /// Accepts it and never answers.
    Unanswered,
}

type Script = Box<dyn FnMut(&Asked) -> Reply + Send>;

#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    history: Mutex<History>,
    /// Incremented by every change.
    changes: watch::Sender<u64>,
    /// Incremented to end all watches in the middle of an object.
    cuts: watch::Sender<u64>,
    /// Incremented to stop reading from and writing to all existing connections.
    silences: watch::Sender<u64>,
    script: Mutex<Script>,
    asked: Mutex<Vec<(Instant, Asked)>>,
    connections: AtomicUsize,
    sends_bookmarks: AtomicBool,
    tls: Mutex<Option<TlsAcceptor>>,
}

#[derive(Default)]
struct History {
    version: u64,
    /// The oldest version that can be watched from.
    oldest: u64,
    /// The path of the collection and the last state of an object, by version.
    events: Vec<(u64, &'static str, Value)>,
}

impl Server {
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            history: Mutex::new(History { version: 10, ..History::default() }),
            changes: watch::Sender::new(0),
            cuts: watch::Sender::new(0),
            silences: watch::Sender::new(0),
            script: Mutex::new(Box::new(|_| Reply::Served)),
            asked: Mutex::default(),
            connections: AtomicUsize::new(0),
            sends_bookmarks: AtomicBool::new(true),
            tls: Mutex::default(),
        }))
    }

    /// Without TLS, with JSON.
    pub fn api(&self) -> Api {
        self.api_with(Wire::Json)
    }

    /// Without TLS.
    pub fn api_with(&self, wire: Wire) -> Api {
        self.api_of(Settings {
            master: Some("server:8080".into()),
            content_type: wire.content_type().into(),
            ..Settings::default()
        })
    }

    pub fn api_of(&self, settings: Settings) -> Api {
        self.observed_api(settings, Arc::new(Unobserved))
    }

    pub fn observed_api(&self, settings: Settings, observer: Arc<dyn Observer>) -> Api {
        let nowhere =
            InClusterConfig { host: String::new(), port: String::new(), service_account: "/none".into() };
        let settings = Settings { qps: -1.0, ..settings };
        Api::open_in(&settings, &nowhere, Transport::Memory(Dial(self.clone())), observer).unwrap()
    }

    /// Makes new connections use TLS.
    pub fn speak_tls(&self, config: rustls::ServerConfig) {
        *lock(&self.0.tls) = Some(TlsAcceptor::from(Arc::new(config)));
    }

    pub fn script(&self, script: impl FnMut(&Asked) -> Reply + Send + 'static) {
        *lock(&self.0.script) = Box::new(script);
    }

    /// Writes an object with this name, and sends it to all watches.
    pub fn change(&self, path: &'static str, name: &str) {
        let mut history = lock(&self.0.history);
        history.version += 1;
        let version = history.version;
        let object = json!({
            "metadata": {"name": name, "namespace": "shop", "resourceVersion": version.to_string()},
            "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}], "cidrs": []},
            "addressType": "IPv4",
        });
        history.events.push((version, path, object));
        drop(history);
        self.0.changes.send_modify(|count| *count += 1);
    }

    pub fn cut(&self) {
        self.0.cuts.send_modify(|count| *count += 1);
    }

    /// Keeps existing connections open but sends nothing on them. New ones work.
    pub fn fall_silent(&self) {
        self.0.silences.send_modify(|count| *count += 1);
    }

    /// Sends no more bookmarks, except at the end of lists.
    pub fn stop_bookmarks(&self) {
        self.0.sends_bookmarks.store(false, Ordering::SeqCst);
    }

    /// Drops the history before now.
    pub fn compact(&self) {
        let mut history = lock(&self.0.history);
        history.version += 1;
        history.oldest = history.version;
    }

    pub fn asked(&self) -> Vec<(Instant, Asked)> {
        lock(&self.0.asked).clone()
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::SeqCst)
    }

    async fn connected(self, pipe: DuplexStream) {
        let mut silences = self.0.silences.subscribe();
        silences.mark_unchanged();
        let tls = lock(&self.0.tls).clone();
        let mut serving = pin!(self.serve(pipe, tls));
        tokio::select! {
            biased;
            _ = silences.changed() => std::future::pending().await,
            () = &mut serving => {}
        }
    }

    async fn serve(self, pipe: DuplexStream, tls: Option<TlsAcceptor>) {
        let service = service_fn(move |request| self.clone().answer(request));
        let http1 = hyper::server::conn::http1::Builder::new();
        let Some(tls) = tls else {
            let _ = http1.serve_connection(TokioIo::new(pipe), service).await;
            return;
        };
        let Ok(stream) = tls.accept(pipe).await else { return };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = http2.serve_connection(TokioIo::new(stream), service).await;
        } else {
            let _ = http1.serve_connection(TokioIo::new(stream), service).await;
        }
    }

    async fn answer(self, request: Request<Incoming>) -> io::Result<Response<Feed>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let headers = parts.headers.iter();
        let headers: BTreeMap<_, _> =
            headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
        let target = parts.uri.path_and_query().unwrap().as_str();
        let body = String::from_utf8(body.to_vec()).unwrap();
        let asked = Asked::new(parts.method.as_str(), target, headers, body);
        lock(&self.0.asked).push((Instant::now(), asked.clone()));
        let reply = (lock(&self.0.script))(&asked);
        let (sender, feed) = unbounded_channel();
        let wire = asked.wire();
        let mut response = Response::new(Feed(feed));
        response.headers_mut().insert("content-type", wire.content_type().parse().unwrap());
        match reply {
            Reply::Served if asked.is_watch() => {
                tokio::spawn(self.clone().watched(asked, wire, sender));
            }
            Reply::Served if asked.method == "GET" => say(&sender, wire.encode(&self.list(&asked))),
            Reply::Served => say(&sender, wire.encode(&json!({}))),
            Reply::Refused { code, reason, retry_after } => {
                *response.status_mut() = code.try_into().unwrap();
                if let Some(seconds) = retry_after {
                    response.headers_mut().insert("retry-after", seconds.into());
                }
                let status = json!({"kind": "Status", "code": code, "reason": reason, "message": reason});
                say(&sender, wire.encode(&status));
            }
            Reply::Unanswered => std::future::pending().await,
        }
        Ok(response)
    }

    fn list(&self, asked: &Asked) -> Value {
        let history = lock(&self.0.history);
        json!({"metadata": {"resourceVersion": history.version.to_string()}, "items": history.objects(&asked.path)})
    }

    async fn watched(self, asked: Asked, wire: Wire, feed: UnboundedSender<io::Result<Bytes>>) {
        let event = |kind: &str, object: &Value| say(&feed, wire.encode_event(kind, object));
        let mut changes = self.0.changes.subscribe();
        let mut cuts = self.0.cuts.subscribe();
        let seconds = asked.query("timeoutSeconds").parse().unwrap();
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut bookmark = Instant::now() + BOOKMARKS;
        let mut sent = match asked.query("resourceVersion").parse::<u64>() {
            Ok(version) if version < lock(&self.0.history).oldest => {
                return event("ERROR", &json!({"code": 410, "reason": "Expired", "message": "too old"}));
            }
            Ok(version) => version,
            Err(_) => {
                let history = lock(&self.0.history);
                for object in history.objects(&asked.path) {
                    event("ADDED", &object);
                }
                event("BOOKMARK", &mark(history.version, true));
                history.version
            }
        };
        loop {
            {
                let history = lock(&self.0.history);
                let unsent = history.events.iter().filter(|(at, path, _)| *at > sent && *path == asked.path);
                unsent.for_each(|(_, _, object)| event("MODIFIED", object));
                sent = history.version;
            }
            tokio::select! {
                _ = changes.changed() => {}
                _ = cuts.changed() => {
                    let mut cut = wire.encode_event("MODIFIED", &mark(sent + 1, false));
                    cut.truncate(20);
                    say(&feed, cut);
                    let _ = feed.send(Err(io::ErrorKind::ConnectionReset.into()));
                    return;
                }
                () = sleep_until(bookmark) => {
                    bookmark += BOOKMARKS;
                    if self.0.sends_bookmarks.load(Ordering::SeqCst) {
                        event("BOOKMARK", &mark(sent, false));
                    }
                }
                () = sleep_until(end) => return,
            }
        }
    }
}

impl History {
    fn objects(&self, path: &str) -> Vec<Value> {
        let of_path = self.events.iter().filter(|(_, at, _)| *at == path);
        let last: BTreeMap<_, _> =
            of_path.map(|(_, _, object)| (object["metadata"]["name"].to_string(), object.clone())).collect();
        last.into_values().collect()
    }
}

fn mark(version: u64, ends_list: bool) -> Value {
    let annotations = if ends_list { json!({"k8s.io/initial-events-end": "true"}) } else { json!({}) };
    json!({"metadata": {"resourceVersion": version.to_string(), "annotations": annotations}})
}

fn say(feed: &UnboundedSender<io::Result<Bytes>>, bytes: Vec<u8>) {
    let _ = feed.send(Ok(bytes.into()));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// A body that is sent in chunks.
struct Feed(UnboundedReceiver<io::Result<Bytes>>);

impl Body for Feed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Connects to the server.
#[derive(Clone)]
pub struct Dial(Server);

impl tower::Service<Uri> for Dial {
    type Response = TokioIo<Pipe>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<TokioIo<Pipe>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (client, server) = duplex(64 << 10);
        self.0.0.connections.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(self.0.clone().connected(server));
        std::future::ready(Ok(TokioIo::new(Pipe(client))))
    }
}

pub struct Pipe(DuplexStream);

impl Connection for Pipe {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
