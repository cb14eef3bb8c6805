//! Asks the proxy that runs on this node, at its metrics port.

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

/// Who runs and listens is there at once.
const CONNECTING: Duration = Duration::from_secs(5);
/// For a proxy that is busy with somebody else's question.
const TURN: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);
/// Longer than the busiest proxy takes to answer.
const PATIENCE: Duration = MAX_RESPONSE_TIME.saturating_add(TURN).saturating_add(CONNECTING);

/// Asks for what is at `path` under [`PREFIX`]. `address` is where the proxy serves metrics.
pub fn ask(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let address = reachable(address);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let path = format!("{PREFIX}/{path}");
    // Within the runtime: a timeout begins to count where it is made.
    let asked = runtime.block_on(async { timeout(PATIENCE, answered(address, &path)).await });
    asked.unwrap_or_else(|_| Err(anyhow!("no answer within {PATIENCE:?}"))).with_context(|| {
        format!("asking the proxy at {address} (is it running, and is this its --metrics-bind-address?)")
    })
}

/// Asks again while it is not our turn.
async fn answered(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let began = Instant::now();
    loop {
        match converse(address, path).await? {
            Said::Answer(body) => return Ok(body),
            Said::Busy(_) if began.elapsed() < TURN => sleep(PAUSE).await,
            Said::Busy(words) => bail!(words),
        }
    }
}

enum Said {
    Answer(Bytes),
    /// It answers one question at a time.
    Busy(String),
}

/// Who listens at all addresses is found at loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn converse(address: SocketAddr, path: &str) -> anyhow::Result<Said> {
    let connected = timeout(CONNECTING, TcpStream::connect(address)).await;
    let stream = connected.map_err(|_| anyhow!("no connection within {CONNECTING:?}"))??;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = http::Request::get(path)
        .header(http::header::HOST, address.to_string())
        .body(Empty::<Bytes>::new())?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        let (status, is_busy) = (answer.status(), answer.headers().contains_key(RETRY_AFTER));
        anyhow::Ok((status, is_busy, answer.into_body().collect().await?.to_bytes()))
    };
    let mut answer = pin!(answer);
    let (status, is_busy, body) = tokio::select! {
        answer = &mut answer => answer?,
        // With the answer, if all is well.
        _ = connection => answer.await.context("the connection ended early")?,
    };
    let words = || String::from_utf8_lossy(&body).trim_end().to_owned();
    match status {
        StatusCode::OK => Ok(Said::Answer(body)),
        StatusCode::NOT_FOUND => bail!("it does not know {path}: is it a Sluice of this version?"),
        StatusCode::SERVICE_UNAVAILABLE if is_busy => Ok(Said::Busy(words())),
        _ => bail!(words()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn who_is_busy_is_asked_again() {
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
        assert_eq!(ask(address, "verify").unwrap(), "ok");
        proxy.join().unwrap();
    }
}
