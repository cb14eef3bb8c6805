//! Who is on this node.

use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HOST, HeaderName, VIA};

/// On a request that comes from this node: from a loopback address, or from the very address it was sent to. One that a
/// forwarder says it brought, or that was meant for somebody else's name, is not: who asked may be anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Local;

/// The only name for us. Any other may belong to somebody who has it resolve to loopback, so that a page of theirs in a
/// browser on this node may ask us.
const NAME: &str = "localhost";

const FORWARDING: [HeaderName; 5] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-real-ip"),
];

/// Whether the other end of a connection is on this node.
pub fn is_near(peer: IpAddr, own: IpAddr) -> bool {
    peer.to_canonical().is_loopback() || peer == own
}

/// Whether a request from such an end was made there, and for us at the address `own`.
pub fn is_for_us<T>(request: &http::Request<T>, own: IpAddr) -> bool {
    let headers = request.headers();
    let is_forwarded = FORWARDING.iter().any(|name| headers.contains_key(name));
    let mut hosts = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    !is_forwarded && hosts.all(|host| names_us(host, own)) && authority.is_none_or(|host| names_us(host, own))
}

/// `host` with or without a port.
fn names_us(host: &str, own: IpAddr) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let ip = host.parse().map(|at: SocketAddr| at.ip()).or_else(|_| bare.parse());
    match ip.map(|ip: IpAddr| ip.to_canonical()) {
        Ok(ip) => ip.is_loopback() || ip == own.to_canonical(),
        Err(_) => {
            let (name, port) = host.split_once(':').unwrap_or((host, "0"));
            name.eq_ignore_ascii_case(NAME) && port.parse::<u16>().is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_local(headers: &[(&str, &str)]) -> bool {
        let request =
            headers.iter().fold(http::Request::get("/"), |it, (name, value)| it.header(*name, *value));
        is_for_us(&request.body(()).unwrap(), "192.0.2.7".parse().unwrap())
    }

    #[test]
    fn only_addresses_of_this_node_and_localhost_name_us() {
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
        assert!(is_local(&[]), "HTTP/1.0 knows no Host");
        assert!(!is_local(&[("host", "localhost"), ("host", "example.com")]));
    }

    #[test]
    fn what_was_forwarded_comes_from_elsewhere() {
        for header in ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"] {
            assert!(!is_local(&[("Host", "localhost"), (header, "for=127.0.0.1")]), "{header}");
        }
        let absolute =
            http::Request::get("http://node-1:10249/").header("Host", "localhost").body(()).unwrap();
        assert!(!is_for_us(&absolute, "127.0.0.1".parse().unwrap()), "asked as if we were a proxy");
    }

    #[test]
    fn near_is_who_has_an_address_of_this_node() {
        for (peer, own, want) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.8", "192.0.2.7", false),
        ] {
            assert_eq!(is_near(peer.parse().unwrap(), own.parse().unwrap()), want, "{peer} at {own}");
        }
    }
}
