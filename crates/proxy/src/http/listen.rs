//! Listening sockets. Which families a wildcard address covers does not depend on the system's settings.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with, sockopt};
use settings::go::os_error;

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("listen tcp {address}: bind: {}", os_error(source))]
pub struct ListenError {
    pub address: SocketAddr,
    pub source: io::Error,
}

/// Connections that wait to be accepted. The system's limit may be lower.
const BACKLOG: i32 = 1024;

/// Listens at the address. An unspecified one means all addresses of both families.
pub fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let opened = if address.ip().is_unspecified() {
        let both = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
        match open(both, false) {
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
                open(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()), true)
            }
            opened => opened,
        }
    } else {
        open(address, true)
    };
    opened.map_err(|errno| ListenError { address, source: errno.into() })
}

/// Listens at the address in its own family only.
pub fn listen_in_family(ip: IpAddr, port: u16) -> Result<TcpListener, ListenError> {
    let address = SocketAddr::new(ip, port);
    open(address, true).map_err(|errno| ListenError { address, source: errno.into() })
}

fn open(address: SocketAddr, only_its_family: bool) -> rustix::io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, only_its_family)?;
    }
    // A restarted proxy must not have to wait for its predecessor's connections to leave TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn port(listener: &TcpListener) -> u16 {
        listener.local_addr().unwrap().port()
    }

    #[test]
    fn a_wildcard_covers_both_families() {
        for wildcard in ["0.0.0.0:0", "[::]:0"] {
            let listener = listen(wildcard.parse().unwrap()).unwrap();
            for ip in ["127.0.0.1", "::1"] {
                let address = SocketAddr::new(ip.parse().unwrap(), port(&listener));
                assert!(TcpStream::connect(address).is_ok(), "{wildcard} at {address}");
            }
        }
    }

    #[test]
    fn listening_in_one_family_leaves_the_port_of_the_other_free() {
        let v4 = listen_in_family(Ipv4Addr::UNSPECIFIED.into(), 0).unwrap();
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port(&v4))).is_err());
        let v6 = listen_in_family(Ipv6Addr::UNSPECIFIED.into(), port(&v4)).unwrap();
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port(&v6))).is_ok());
    }

    #[test]
    fn the_error_names_a_port_that_is_in_use() {
        let taken = listen("127.0.0.1:0".parse().unwrap()).unwrap().local_addr().unwrap();
        let holder = TcpListener::bind(taken).unwrap();
        let error = listen(taken).unwrap_err();
        assert_eq!(error.to_string(), format!("listen tcp {taken}: bind: address already in use"));
        drop(holder);
    }
}
