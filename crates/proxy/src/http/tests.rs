use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

/// Sends a request to a site on a port of its own, and returns the response's head and body.
pub(crate) fn request(site: Arc<dyn Site>, text: &str) -> (String, String) {
    let (address, _serving) = serve(site);
    exchange(address, text)
}

pub(crate) fn exchange(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = connect(address);
    let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
    let (line, headers) = head.split_once('\n').unwrap_or((head, ""));
    let headers = headers.lines().map(|header| format!("{header}\r\n")).collect::<String>();
    let length = body.len();
    let text = format!(
        "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    let response = String::from_utf8_lossy(&response).into_owned();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{response:?}"));
    (head.to_owned(), body.to_owned())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn serve(site: Arc<dyn Site>) -> (SocketAddr, ServedPorts) {
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (address, Http::start().unwrap().serve(vec![listener], &site))
}

/// Responds with the request; runs `/later` on another thread.
struct Echo;

/// Sends on `begun` when long work begins, and completes it once the sender of `ended` is dropped.
struct Slow {
    begun: SyncSender<()>,
    ended: Mutex<Receiver<()>>,
}

impl Site for Arc<Slow> {
    fn reply(&self, request: &ServerRequest) -> Reply {
        let slow = self.clone();
        match request.uri().path() {
            "/long" => Reply::Long(Box::new(move || {
                slow.begun.send(()).unwrap();
                let _ = slow.ended.lock().unwrap().recv();
                response::plain(StatusCode::OK, "at last")
            })),
            _ => Reply::Later(Box::new(|| response::plain(StatusCode::OK, "later"))),
        }
    }
}

#[test]
fn long_work_delays_nothing_but_other_long_work() {
    let ((begun, begins), (end, ended)) = (sync_channel(1), sync_channel(0));
    let (address, _serving) = serve(Arc::new(Arc::new(Slow { begun, ended: Mutex::new(ended) })));
    let waiting = thread::spawn(move || exchange(address, "GET /long"));
    begins.recv_timeout(DEADLINE).unwrap();
    assert_eq!(exchange(address, "GET /later").1, "later");
    let (head, body) = exchange(address, "GET /long");
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: 1"), "{head}");
    assert_eq!(body, "busy with another request, try again in a moment\n");
    drop(end);
    assert_eq!(waiting.join().unwrap().1, "at last");
    assert_eq!(exchange(address, "GET /long").1, "at last");
}

#[test]
fn long_work_whose_client_has_disconnected_still_excludes_other_long_work() {
    let ((begun, begins), (end, ended)) = (sync_channel(1), sync_channel(0));
    let (address, _serving) = serve(Arc::new(Arc::new(Slow { begun, ended: Mutex::new(ended) })));
    let mut left = connect(address);
    left.write_all(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    begins.recv_timeout(DEADLINE).unwrap();
    drop(left);
    for _ in 0..10 {
        assert!(exchange(address, "GET /long").0.starts_with("HTTP/1.1 503 "));
    }
    drop(end);
}

impl Site for Echo {
    fn reply(&self, request: &ServerRequest) -> Reply {
        let echo = format!("{} {} {:?}", request.method(), request.uri().path(), request.body());
        match request.uri().path() {
            "/later" => Reply::Later(Box::new(|| {
                let name = thread::current().name().unwrap_or_default().to_owned();
                response::plain(StatusCode::OK, name)
            })),
            "/panic" => Reply::Later(Box::new(|| panic!("on purpose"))),
            _ => Reply::Now(response::plain(StatusCode::OK, echo)),
        }
    }
}

#[test]
fn a_request_is_answered() {
    let (head, body) = request(Arc::new(Echo), "GET /path?query");
    assert_eq!(body, "GET /path b\"\"");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    for header in
        ["Content-Type: text/plain; charset=utf-8", "X-Content-Type-Options: nosniff", "Content-Length: 13"]
    {
        assert!(head.contains(header), "{header} in {head}");
    }
}

#[test]
fn only_the_body_of_a_put_is_read_and_its_size_is_limited() {
    for (text, status, want) in [
        ("PUT /v\n\n4", 200, "PUT /v b\"4\"".to_owned()),
        ("POST /v\n\n4", 200, "POST /v b\"\"".to_owned()),
        (&format!("PUT /v\n\n{}", "4".repeat(MAX_BODY_SIZE + 1)), 413, String::new()),
    ] {
        let (head, body) = request(Arc::new(Echo), text);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert_eq!(body, want);
    }
}

#[test]
fn a_head_request_gets_the_length_without_the_body() {
    let (head, body) = request(Arc::new(Echo), "HEAD /path");
    assert!(head.contains("Content-Length: 14"), "{head}");
    assert_eq!(body, "");
}

#[test]
fn headers_that_are_too_large_are_refused() {
    let header = format!("GET /\nX: {}", "x".repeat(MAX_HEAD_SIZE));
    let (head, _) = request(Arc::new(Echo), &header);
    assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
}

#[test]
fn blocking_work_runs_on_another_thread() {
    let (address, _serving) = serve(Arc::new(Echo));
    assert_eq!(exchange(address, "GET /later").1, "http-later");
    assert!(exchange(address, "GET /panic").0.starts_with("HTTP/1.1 500 "));
    assert!(exchange(address, "GET /").0.starts_with("HTTP/1.1 200 "), "other requests are not affected");
}

#[test]
fn idle_connections_make_room_for_others() {
    let http = Http::start().unwrap();
    let limit = pool::limit(getrlimit(Resource::Nofile).current);
    let site: Arc<dyn Site> = Arc::new(Echo);
    let listeners = [(); 2].map(|()| listen("127.0.0.1:0".parse().unwrap()).unwrap());
    let [a, b] = [0, 1].map(|at| listeners[at].local_addr().unwrap());
    let _serving = listeners.map(|listener| http.serve(vec![listener], &site));
    let mut first = connect(a);
    let idle: Vec<_> = (0..limit + 10).map(|n| connect(if n % 2 == 0 { a } else { b })).collect();
    for address in [a, b] {
        assert!(exchange(address, "GET /").0.starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the longest idle connection was closed");
    let is_open = |stream: &&TcpStream| {
        stream.set_nonblocking(true).unwrap();
        { *stream }.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    assert!(idle.iter().filter(is_open).count() < limit, "all ports together have one limit");
}

#[tokio::test(start_paused = true)]
async fn the_connection_of_a_client_that_never_completes_its_request_is_closed() {
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = ServerState { workers: Workers::new(), pool: Arc::new(Pool::new(8)) };
    tokio::spawn(accept(listener, Arc::new(Echo), server));
    for part in
        ["", "GET / HTTP/1.1\r\nHost: no", "PUT /v HTTP/1.1\r\nHost: node\r\nContent-Length: 9\r\n\r\n1"]
    {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(part.as_bytes()).unwrap();
        client.set_nonblocking(true).unwrap();
        let began = tokio::time::Instant::now();
        let mut response = Vec::new();
        loop {
            match client.read_to_end(&mut response) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sleep(Duration::from_secs(1)).await
                }
                ended => {
                    ended.unwrap();
                    break;
                }
            }
        }
        assert!(began.elapsed() < MAX_RESPONSE_TIME, "{part:?}: {}", String::from_utf8_lossy(&response));
    }
}

#[test]
fn dropping_the_served_ports_frees_them_and_closes_their_connections() {
    let (address, served) = serve(Arc::new(Echo));
    let mut open = connect(address);
    open.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
    let received = open.read(&mut [0; 1024]).unwrap();
    assert!(received > 0);
    drop(served);
    assert!(listen(address).is_ok());
    assert_eq!(open.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_port_in_use_is_an_error_only_if_that_is_fatal() {
    let holder = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = holder.local_addr().unwrap();
    let http = Http::start().unwrap();
    let serve =
        |is_fatal| http.serve_forever(address, Arc::new(Echo), OnBindFailure { is_fatal, log: |_| () });
    assert!(serve(true).is_err());
    assert!(serve(false).is_ok());
}

static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[tokio::test(start_paused = true)]
async fn a_port_is_served_once_it_is_free_and_an_unchanged_error_is_logged_once() {
    let holder = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = holder.local_addr().unwrap();
    let first = listen(address).unwrap_err();
    let log = |error: &ListenError| LOGGED.lock().unwrap().push(error.to_string());
    let waiting = tokio::spawn(listen_once_free(address, log, first));
    let began = tokio::time::Instant::now();
    sleep(BIND_RETRY_INTERVAL * 3 + BIND_RETRY_INTERVAL / 2).await;
    assert!(!waiting.is_finished());
    drop(holder);
    let listener = waiting.await.unwrap();
    assert_eq!(listener.local_addr().unwrap(), address);
    assert_eq!(began.elapsed().as_secs(), (BIND_RETRY_INTERVAL * 4).as_secs());
    assert_eq!(*LOGGED.lock().unwrap(), Vec::<String>::new(), "the caller has logged the first error");
}
