//! Asks the proxy that runs on this node, at its metrics port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::timeout;

/// Where questions to the proxy go; see `status::local`.
pub const PREFIX: &str = "/debug/sluice";

/// Longer than the busiest proxy takes to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks for what is at `path` under [`PREFIX`]. `address` is where the proxy serves metrics.
pub fn ask(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let address = reachable(address);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let path = format!("{PREFIX}/{path}");
    // Within the runtime: a timeout begins to count where it is made.
    let asked = runtime.block_on(async { timeout(PATIENCE, converse(address, &path)).await });
    asked.unwrap_or_else(|_| Err(anyhow!("no answer within {PATIENCE:?}"))).with_context(|| {
        format!("asking the proxy at {address} (is it running, and is this its --metrics-bind-address?)")
    })
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

async fn converse(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = http::Request::get(path)
        .header(http::header::HOST, address.to_string())
        .body(Empty::<Bytes>::new())?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        anyhow::Ok((status, answer.into_body().collect().await?.to_bytes()))
    };
    let (status, body) = tokio::select! {
        answer = answer => answer?,
        ended = connection => bail!("the connection ended early: {ended:?}"),
    };
    match status {
        StatusCode::OK => Ok(body),
        StatusCode::NOT_FOUND => bail!("it does not know {path}: is it a Sluice of this version?"),
        _ => bail!("{}", String::from_utf8_lossy(&body).trim_end()),
    }
}
