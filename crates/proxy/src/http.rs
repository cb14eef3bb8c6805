//! A small HTTP server: one thread answers at every port of the process.
//!
//! ```text
//!   listeners ─▶ Pool of connections, the longest idle makes room ─▶ Request ─▶ Site ─▶ Answer
//! ```
//!
//! Clients are not trusted. One that sends nothing, sends slowly or does not read is given up after a while. All ports
//! together have one number of connections that clients may hold, so that however many there are, and wherever they connect
//! to, the next one is answered and the process has file descriptors left for everything else.

pub mod answer;
pub mod listen;
mod local;
mod pool;

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

pub type Request = http::Request<Bytes>;
pub type Answer = http::Response<Bytes>;

/// What is to be found at a port.
pub trait Site: Send + Sync {
    /// Waits for nothing: every port depends on the thread that asks.
    fn reply(&self, request: &Request) -> Reply;
}

/// An answer, or how to come by it.
pub enum Reply {
    Now(Answer),
    /// Takes its time, so it is worked out elsewhere; one after the other.
    Later(Work),
    /// May take minutes. One at a time, beside all others: who asks meanwhile is told to ask again.
    Long(Work),
}

pub type Work = Box<dyn FnOnce() -> Answer + Send>;

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(answer) => f.debug_tuple("Now").field(answer).finish(),
            Self::Later(_) => f.debug_tuple("Later").finish_non_exhaustive(),
            Self::Long(_) => f.debug_tuple("Long").finish_non_exhaustive(),
        }
    }
}

/// What to do about a port that somebody else has.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// Give up at once instead of trying again.
    pub is_fatal: bool,
    /// Says so in the log.
    pub tell: fn(&ListenError),
}

/// Between two attempts to listen.
const RETRY: Duration = Duration::from_secs(5);

/// For a request to arrive, or for the next one on the same connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// After which a connection ends with the answer it is at.
const LONGEST_CONNECTION: Duration = Duration::from_secs(300);
const LARGEST_HEAD: usize = 16 << 10;
/// Only a verbosity is ever sent to us.
const LARGEST_BODY: usize = 1 << 10;
/// When the process has no file descriptor left, until the connection that was closed for that has let go of its own.
const OUT_OF_FILES: Duration = Duration::from_millis(100);
/// A listener closes at once, unless something is very wrong.
const CLOSING: Duration = Duration::from_secs(1);

/// After which nobody is answered any more.
pub const LONGEST_ANSWER: Duration = LONGEST_CONNECTION.saturating_add(PATIENCE);

/// The thread that serves. Cloning gives another handle on the same one.
#[derive(Clone, Debug)]
pub struct Http {
    runtime: Handle,
    shared: Shared,
}

/// What all ports have in common.
#[derive(Clone, Debug)]
struct Shared {
    workers: Workers,
    pool: Arc<Pool>,
}

/// The threads that work out what takes its time: one for each kind, so that neither waits for the other.
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

    /// Who leaves while it waits for its turn is not worked for.
    async fn later(&self, work: Work) -> Answer {
        match self.later.clone().acquire_owned().await {
            Ok(turn) => work_out(turn, work).await,
            Err(_) => busy(),
        }
    }

    async fn long(&self, work: Work) -> Answer {
        match self.long.clone().try_acquire_owned() {
            Ok(turn) => work_out(turn, work).await,
            Err(_) => busy(),
        }
    }
}

/// The turn lasts as long as the work, also if nobody waits for the answer any more.
async fn work_out(turn: OwnedSemaphorePermit, work: Work) -> Answer {
    let work = move || {
        let _turn = turn;
        work()
    };
    let worked_out = spawn_blocking(work).await;
    worked_out.unwrap_or_else(|_| answer::plain(StatusCode::INTERNAL_SERVER_ERROR, ""))
}

fn busy() -> Answer {
    let busy = "busy with another question, ask again in a moment\n";
    answer::with_header(answer::plain(StatusCode::SERVICE_UNAVAILABLE, busy), RETRY_AFTER, "1")
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
        Ok(Self { runtime: handle, shared: Shared { workers: Workers::new(), pool } })
    }

    /// Serves until what is returned is dropped.
    pub fn serve(&self, listeners: Vec<TcpListener>, site: &Arc<dyn Site>) -> Serving {
        let (open, closed) = channel();
        let serve = |listener| {
            let (open, site, shared) = (open.clone(), site.clone(), self.shared.clone());
            self.runtime.spawn(async move {
                // Declared first, so that it is dropped after the listener.
                let _open = open;
                accept(listener, site, shared).await;
            })
        };
        Serving {
            tasks: listeners.into_iter().map(|listener| serve(listener).abort_handle()).collect(),
            closed,
        }
    }

    /// Serves for as long as the process lives, beginning as soon as the address is free.
    pub fn serve_for_ever(
        &self,
        address: SocketAddr,
        site: Arc<dyn Site>,
        trouble: Trouble,
    ) -> Result<(), ListenError> {
        let shared = self.shared.clone();
        match listen(address) {
            Ok(listener) => drop(self.runtime.spawn(accept(listener, site, shared))),
            Err(error) if trouble.is_fatal => return Err(error),
            Err(error) => {
                (trouble.tell)(&error);
                self.runtime.spawn(async move {
                    let listener = listen_at_last(address, trouble.tell, error).await;
                    accept(listener, site, shared).await;
                });
            }
        }
        Ok(())
    }
}

/// Ports being served. When dropped, they and all connections to them are closed at once.
#[derive(Debug)]
#[must_use]
pub struct Serving {
    tasks: Vec<AbortHandle>,
    closed: Receiver<Infallible>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        // Somebody else may want the ports right away. Nothing is ever sent; what ends the wait is the last sender.
        let _ = self.closed.recv_timeout(CLOSING);
    }
}

async fn listen_at_last(address: SocketAddr, tell: fn(&ListenError), first: ListenError) -> TcpListener {
    let mut told = first.to_string();
    loop {
        sleep(RETRY).await;
        match listen(address) {
            Ok(listener) => return listener,
            Err(error) if error.to_string() == told => {}
            Err(error) => {
                tell(&error);
                told = error.to_string();
            }
        }
    }
}

async fn accept(listener: TcpListener, site: Arc<dyn Site>, shared: Shared) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(err = %error, "Failed to serve a port"),
    };
    // All that are left end with the listener.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            shared.pool.close_longest_idle();
            sleep(OUT_OF_FILES).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        if shared.pool.make_room() {
            // What was closed lets go of its descriptor before another one is accepted.
            yield_now().await;
        }
        let activity = shared.pool.activity();
        let connection = converse(stream, site.clone(), shared.workers.clone(), activity.clone());
        shared.pool.enter(connections.spawn(connection), activity);
    }
}

async fn converse(stream: TcpStream, site: Arc<dyn Site>, workers: Workers, activity: Arc<Activity>) {
    let own = match (stream.peer_addr(), stream.local_addr()) {
        (Ok(peer), Ok(own)) if local::is_near(peer.ip(), own.ip()) => Some(own.ip()),
        _ => None,
    };
    let service = service_fn(|mut request: http::Request<Incoming>| async {
        if own.is_some_and(|own| local::is_for_us(&request, own)) {
            request.extensions_mut().insert(Local);
        }
        Ok::<_, Infallible>(respond(request, &*site, &workers, &activity).await)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(LARGEST_HEAD)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // How a client leaves us is of no interest.
    if timeout(LONGEST_CONNECTION, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(PATIENCE, connection).await;
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
        Method::PUT => match timeout(PATIENCE, Limited::new(body, LARGEST_BODY).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => return answer::plain(StatusCode::PAYLOAD_TOO_LARGE, "").map(Full::new),
            Err(_) => return answer::plain(StatusCode::REQUEST_TIMEOUT, "").map(Full::new),
        },
        // Nothing else means anything to any site.
        _ => Bytes::new(),
    };
    let _busy = activity.work();
    let answer = match site.reply(&Request::from_parts(head, body)) {
        Reply::Now(answer) => answer,
        Reply::Later(work) => workers.later(work).await,
        Reply::Long(work) => workers.long(work).await,
    };
    answer.map(Full::new)
}

#[cfg(test)]
pub(crate) mod tests;
