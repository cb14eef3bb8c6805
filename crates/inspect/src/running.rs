//! Queries the debug API of the proxy that runs on this node, at its metrics port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::StatusCode;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proxy::debug_api::PREFIX;
use proxy::http::MAX_RESPONSE_TIME;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Limits the retries while the proxy is busy with another request.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = MAX_RESPONSE_TIME.saturating_add(BUSY_TIMEOUT).saturating_add(CONNECT_TIMEOUT);

/// Gets `path` under [`PREFIX`]. `address` is the proxy's metrics address.
pub fn ask(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let address = reachable(address);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let path = format!("{PREFIX}/{path}");
    // `timeout` has to be called within the runtime.
    let result = runtime.block_on(async { timeout(TIMEOUT, get_with_retries(address, &path)).await });
    result.unwrap_or_else(|_| Err(anyhow!("no answer within {TIMEOUT:?}"))).with_context(|| {
        format!("querying the proxy at {address} (is it running, and is this its --metrics-bind-address?)")
    })
}

/// Retries while the proxy is busy.
async fn get_with_retries(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let started = Instant::now();
    loop {
        match get(address, path).await? {
            Response::Body(body) => return Ok(body),
            Response::Busy(_) if started.elapsed() < BUSY_TIMEOUT => sleep(RETRY_INTERVAL).await,
            Response::Busy(message) => bail!(message),
        }
    }
}

enum Response {
    Body(Bytes),
    /// The proxy answers one request at a time.
    Busy(String),
}

/// A proxy that listens on all addresses is reachable on loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn get(address: SocketAddr, path: &str) -> anyhow::Result<Response> {
    let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let stream = connected.map_err(|_| anyhow!("no connection within {CONNECT_TIMEOUT:?}"))??;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = http::Request::get(path)
        .header(http::header::HOST, address.to_string())
        .body(Empty::<Bytes>::new())?;
    let response = async {
        let response = sender.send_request(request).await?;
        let (status, is_busy) = (response.status(), response.headers().contains_key(RETRY_AFTER));
        anyhow::Ok((status, is_busy, response.into_body().collect().await?.to_bytes()))
    };
    let mut response = pin!(response);
    let (status, is_busy, body) = tokio::select! {
        response = &mut response => response?,
        // The connection may end before the response has been polled.
        _ = connection => response.await.context("the connection ended early")?,
    };
    let message = || String::from_utf8_lossy(&body).trim_end().to_owned();
    match status {
        StatusCode::OK => Ok(Response::Body(body)),
        StatusCode::NOT_FOUND => bail!("{path} not found: is this a Sluice of the same version?"),
        StatusCode::SERVICE_UNAVAILABLE if is_busy => Ok(Response::Busy(message())),
        _ => bail!(message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use proxy::debug_api::VERIFY;

    #[test]
    fn a_request_is_retried_while_the_proxy_is_busy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = thread::spawn(move || {
            for answer in [
                "503 Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy",
                "200 OK\r\nContent-Length: 2\r\n\r\nok",
            ] {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
                stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).unwrap();
            }
        });
        assert_eq!(ask(address, VERIFY).unwrap(), "ok");
        proxy.join().unwrap();
    }
}
