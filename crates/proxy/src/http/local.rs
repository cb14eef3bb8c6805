//! Recognizes requests that come from this node.

use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HOST, HeaderName, VIA};

/// Marks a request that comes from this node: from a loopback address, or from the same address that it was sent to. A request
/// that was forwarded, or that was sent to another host name, is not marked: its client may be anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Local;

/// The only accepted host name. The owner of any other name can make it resolve to loopback, so that a web page in a browser on
/// this node could read our responses (DNS rebinding).
const HOST_NAME: &str = "localhost";

const FORWARDING: [HeaderName; 5] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-real-ip"),
];

/// Whether the other end of a connection is on this node.
pub fn is_on_this_node(peer: IpAddr, own: IpAddr) -> bool {
    peer.to_canonical().is_loopback() || peer == own
}

/// Whether the client sent the request itself, without a forwarder, and to this server at the address `own`.
pub fn is_direct<T>(request: &http::Request<T>, own: IpAddr) -> bool {
    let headers = request.headers();
    let is_forwarded = FORWARDING.iter().any(|name| headers.contains_key(name));
    let mut hosts = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    !is_forwarded
        && hosts.all(|host| names_this_node(host, own))
        && authority.is_none_or(|host| names_this_node(host, own))
}

/// `host` with or without a port.
fn names_this_node(host: &str, own: IpAddr) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let ip = host.parse().map(|at: SocketAddr| at.ip()).or_else(|_| bare.parse());
    match ip.map(|ip: IpAddr| ip.to_canonical()) {
        Ok(ip) => ip.is_loopback() || ip == own.to_canonical(),
        Err(_) => {
            let (name, port) = host.split_once(':').unwrap_or((host, "0"));
            name.eq_ignore_ascii_case(HOST_NAME) && port.parse::<u16>().is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_local(headers: &[(&str, &str)]) -> bool {
        let request =
            headers.iter().fold(http::Request::get("/"), |it, (name, value)| it.header(*name, *value));
        is_direct(&request.body(()).unwrap(), "192.0.2.7".parse().unwrap())
    }

    #[test]
    fn only_addresses_of_this_node_and_localhost_name_this_node() {
        for host in [
            "localhost",
            "LocalHost:10249",
            "127.0.0.1",
            "127.0.0.2:10249",
            "[::1]",
            "[::1]:10249",
            "[::ffff:127.0.0.1]:10249",
            "192.0.2.7",
            "192.0.2.7:10249",
        ] {
            assert!(is_local(&[("host", host)]), "{host}");
        }
        for host in [
            "",
            "node-1",
            "node-1:10249",
            "localhost.example.com",
            "localhost:example.com",
            "127.0.0.1.example.com:10249",
            "evil@localhost",
            "192.0.2.8:10249",
            "[2001:db8::1]:10249",
            "0.0.0.0:10249",
        ] {
            assert!(!is_local(&[("host", host)]), "{host}");
        }
        assert!(is_local(&[]), "HTTP/1.0 has no Host");
        assert!(!is_local(&[("host", "localhost"), ("host", "example.com")]));
    }

    #[test]
    fn a_forwarded_request_is_not_local() {
        for header in ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"] {
            assert!(!is_local(&[("Host", "localhost"), (header, "for=127.0.0.1")]), "{header}");
        }
        let absolute =
            http::Request::get("http://node-1:10249/").header("Host", "localhost").body(()).unwrap();
        assert!(!is_direct(&absolute, "127.0.0.1".parse().unwrap()), "a request to an HTTP proxy");
    }

    #[test]
    fn a_peer_with_an_address_of_this_node_is_on_this_node() {
        for (peer, own, want) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.8", "192.0.2.7", false),
        ] {
            assert_eq!(is_on_this_node(peer.parse().unwrap(), own.parse().unwrap()), want, "{peer} at {own}");
        }
    }
}
