//! A small HTTP server: one thread serves all ports of the process.
//!
//! ```text
//!   listeners ─▶ Pool of connections, closes the longest idle ─▶ ServerRequest ─▶ Site ─▶ ServerResponse
//! ```
//!
//! Clients are not trusted. A connection whose client sends nothing, sends slowly or does not read is closed after a while. All
//! ports share one limit of connections, so that however many clients there are, and whichever port they connect to, the next one
//! is served and the process has file descriptors left for everything else.

pub mod listen;
mod local;
mod pool;
pub mod response;

use std::convert::Infallible;
use std::future::pending;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{fmt, io, thread};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, getrlimit};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet, spawn_blocking, yield_now};
use tokio::time::{sleep, timeout};

use listen::{ListenError, listen};
pub use local::Local;
use pool::{Activity, Pool};

pub type ServerRequest = http::Request<Bytes>;
pub type ServerResponse = http::Response<Bytes>;

/// What a port serves.
pub trait Site: Send + Sync {
    /// Must not block: the calling thread serves all ports.
    fn reply(&self, request: &ServerRequest) -> Reply;
}

/// A response, or the work that makes it.
pub enum Reply {
    Now(ServerResponse),
    /// Work that blocks, for a thread of its own. Requests wait for each other.
    Later(Work),
    /// Work that may take minutes, for another thread. One at a time: the client of another such request is asked to retry.
    Long(Work),
}

pub type Work = Box<dyn FnOnce() -> ServerResponse + Send>;

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(response) => f.debug_tuple("Now").field(response).finish(),
            Self::Later(_) => f.debug_tuple("Later").finish_non_exhaustive(),
            Self::Long(_) => f.debug_tuple("Long").finish_non_exhaustive(),
        }
    }
}

/// What to do if an address cannot be bound, since another process listens there, for example.
#[derive(Clone, Copy, Debug)]
pub struct OnBindFailure {
    /// Return the error instead of retrying.
    pub is_fatal: bool,
    /// Logs the error.
    pub log: fn(&ListenError),
}

/// The interval between two attempts to bind an address.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long a client may take to send a request, or the next one on the same connection.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection is closed after this time, once its current response is sent.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(300);
const MAX_HEAD_SIZE: usize = 16 << 10;
/// The only body that clients send is a verbosity.
const MAX_BODY_SIZE: usize = 1 << 10;
/// The delay before the next accept when the process has no file descriptor left: the connection that was closed for it needs
/// a moment to release its own.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long to wait until listeners are closed. They normally close immediately.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// No response is sent later than this after its request.
pub const MAX_RESPONSE_TIME: Duration = MAX_CONNECTION_AGE.saturating_add(READ_TIMEOUT);

/// A handle to the server thread. Clones refer to the same thread.
#[derive(Clone, Debug)]
pub struct Http {
    runtime: Handle,
    server: ServerState,
}

/// State that all ports share.
#[derive(Clone, Debug)]
struct ServerState {
    workers: Workers,
    pool: Arc<Pool>,
}

/// Limits the threads that run blocking work: one for each kind, so that neither waits for the other.
#[derive(Clone, Debug)]
struct Workers {
    later: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Workers {
    const THREADS: usize = 2;

    fn new() -> Self {
        Self { later: Arc::new(Semaphore::new(1)), long: Arc::new(Semaphore::new(1)) }
    }

    /// The work of a client that disconnects while it waits is not run.
    async fn later(&self, work: Work) -> ServerResponse {
        match self.later.clone().acquire_owned().await {
            Ok(permit) => run_blocking(permit, work).await,
            Err(_) => busy(),
        }
    }

    async fn long(&self, work: Work) -> ServerResponse {
        match self.long.clone().try_acquire_owned() {
            Ok(permit) => run_blocking(permit, work).await,
            Err(_) => busy(),
        }
    }
}

/// Holds the permit until the work ends, even if the client has disconnected.
async fn run_blocking(permit: OwnedSemaphorePermit, work: Work) -> ServerResponse {
    let work = move || {
        let _permit = permit;
        work()
    };
    let response = spawn_blocking(work).await;
    response.unwrap_or_else(|_| response::plain(StatusCode::INTERNAL_SERVER_ERROR, ""))
}

fn busy() -> ServerResponse {
    let busy = "busy with another request, try again in a moment\n";
    response::with_header(response::plain(StatusCode::SERVICE_UNAVAILABLE, busy), RETRY_AFTER, "1")
}

impl Http {
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(Workers::THREADS)
            .thread_keep_alive(Duration::from_secs(1))
            .thread_name("http-later")
            .build()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(pending::<()>());
        thread::Builder::new().name("http".to_owned()).spawn(run)?;
        let pool = Arc::new(Pool::new(pool::limit(getrlimit(Resource::Nofile).current)));
        Ok(Self { runtime: handle, server: ServerState { workers: Workers::new(), pool } })
    }

    /// Serves until the returned value is dropped.
    pub fn serve(&self, listeners: Vec<TcpListener>, site: &Arc<dyn Site>) -> ServedPorts {
        let (open, closed) = channel();
        let serve = |listener| {
            let (open, site, server) = (open.clone(), site.clone(), self.server.clone());
            self.runtime.spawn(async move {
                // Declared first, so that it is dropped after the listener.
                let _open = open;
                accept(listener, site, server).await;
            })
        };
        ServedPorts {
            tasks: listeners.into_iter().map(|listener| serve(listener).abort_handle()).collect(),
            closed,
        }
    }

    /// Serves for as long as the process lives, starting once the address can be bound.
    pub fn serve_forever(
        &self,
        address: SocketAddr,
        site: Arc<dyn Site>,
        on_failure: OnBindFailure,
    ) -> Result<(), ListenError> {
        let server = self.server.clone();
        match listen(address) {
            Ok(listener) => drop(self.runtime.spawn(accept(listener, site, server))),
            Err(error) if on_failure.is_fatal => return Err(error),
            Err(error) => {
                (on_failure.log)(&error);
                self.runtime.spawn(async move {
                    let listener = listen_once_free(address, on_failure.log, error).await;
                    accept(listener, site, server).await;
                });
            }
        }
        Ok(())
    }
}

/// Ports that are being served. Dropping it closes them and all their connections.
#[derive(Debug)]
#[must_use]
pub struct ServedPorts {
    tasks: Vec<AbortHandle>,
    closed: Receiver<Infallible>,
}

impl Drop for ServedPorts {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        // The caller may bind the same ports again right away. Nothing is ever sent: the wait ends when the last sender is dropped.
        let _ = self.closed.recv_timeout(CLOSE_TIMEOUT);
    }
}

async fn listen_once_free(address: SocketAddr, log: fn(&ListenError), first: ListenError) -> TcpListener {
    let mut logged = first.to_string();
    loop {
        sleep(BIND_RETRY_INTERVAL).await;
        match listen(address) {
            Ok(listener) => return listener,
            Err(error) if error.to_string() == logged => {}
            Err(error) => {
                log(&error);
                logged = error.to_string();
            }
        }
    }
}

async fn accept(listener: TcpListener, site: Arc<dyn Site>, server: ServerState) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(err = %error, "Failed to serve a port"),
    };
    // Dropping the set ends the remaining connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            server.pool.close_longest_idle();
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        if server.pool.make_room() {
            // Lets the closed connection release its descriptor before another one is accepted.
            yield_now().await;
        }
        let activity = server.pool.activity();
        let connection = serve_connection(stream, site.clone(), server.workers.clone(), activity.clone());
        server.pool.add(connections.spawn(connection), activity);
    }
}

async fn serve_connection(stream: TcpStream, site: Arc<dyn Site>, workers: Workers, activity: Arc<Activity>) {
    let own = match (stream.peer_addr(), stream.local_addr()) {
        (Ok(peer), Ok(own)) if local::is_on_this_node(peer.ip(), own.ip()) => Some(own.ip()),
        _ => None,
    };
    let service = service_fn(|mut request: http::Request<Incoming>| async {
        if own.is_some_and(|own| local::is_direct(&request, own)) {
            request.extensions_mut().insert(Local);
        }
        Ok::<_, Infallible>(respond(request, &*site, &workers, &activity).await)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .max_buf_size(MAX_HEAD_SIZE)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // Errors of a connection are not logged: clients may disconnect at any time.
    if timeout(MAX_CONNECTION_AGE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(READ_TIMEOUT, connection).await;
    }
}

async fn respond(
    request: http::Request<Incoming>,
    site: &dyn Site,
    workers: &Workers,
    activity: &Activity,
) -> http::Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = match head.method {
        Method::PUT => match timeout(READ_TIMEOUT, Limited::new(body, MAX_BODY_SIZE).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => return response::plain(StatusCode::PAYLOAD_TOO_LARGE, "").map(Full::new),
            Err(_) => return response::plain(StatusCode::REQUEST_TIMEOUT, "").map(Full::new),
        },
        // No site reads the body of other requests.
        _ => Bytes::new(),
    };
    let _busy = activity.mark_busy();
    let response = match site.reply(&ServerRequest::from_parts(head, body)) {
        Reply::Now(response) => response,
        Reply::Later(work) => workers.later(work).await,
        Reply::Long(work) => workers.long(work).await,
    };
    response.map(Full::new)
}

#[cfg(test)]
pub(crate) mod tests;
