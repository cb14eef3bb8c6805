//! What has to work on every kernel, in each mode, from the first start to the clean-up, with both families at the same time.
//!
//! `make vm` runs these tests on other kernels, one right after each boot, when the kernel has loaded no module of netfilter.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, listen, socket_with};
use testkit::lab::{Address, ClientPlace, Lab, NODE_PORT, Place, TARGET};
use testkit::lab_proxy::LabProxy;
use testkit::manifests::{A, ALL, B, EndpointManifest, PortManifest, ServiceManifest, web, write};
use testkit::network::{Network, of};
use testkit::probe::{Answer, probe_here};
use testkit::wait::holds_within;

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// An emulated machine is slow, and the first packets of a mode load modules.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The proxy looks once a minute whether the connections of a removed endpoint have ended.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(300);

/// A port that only kernels with SCTP serve.
const SCTP: PortManifest =
    PortManifest { number: 90, target: 8090, node_port: Some(30090), protocols: &[Protocol::Sctp] };

/// A port for connections that last.
const LASTING: PortManifest =
    PortManifest { number: 7, target: 8082, node_port: Some(30007), protocols: &[Protocol::Tcp] };

/// Who connects where, and whether the endpoint sees the node instead of the client.
const ROUTES: [(ClientPlace, Address, u16, bool); 4] = [
    (ClientPlace::Pod, Address::ClusterIp, 80, false),
    (ClientPlace::Node, Address::ClusterIp, 80, true),
    (ClientPlace::PodA, Address::ClusterIp, 80, false),
    (ClientPlace::Outside, Address::NodeIp, NODE_PORT, true),
];

#[test]
fn nftables_serves_from_the_first_start_to_the_clean_up() {
    check_life(start("nftables", None), "nft list ruleset");
}

#[test]
fn iptables_over_nft_serves_from_the_first_start_to_the_clean_up() {
    check_life(start("iptables", Some("nft")), "nft list ruleset");
}

#[test]
fn legacy_iptables_serves_from_the_first_start_to_the_clean_up() {
    check_life(start("iptables", Some("legacy")), "iptables-legacy-save");
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_serves_from_the_first_start_to_the_clean_up() {
    let proxy = check_life(start("ipvs", None), "nft list ruleset");
    let left = proxy.lab.network.node.run("ip -brief link") + &proxy.lab.network.node.run("ipvsadm-save -n");
    assert!(!left.contains("kube-ipvs0") && !left.contains("-A "), "after --cleanup: {left}");
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_serves_the_connections_of_a_removed_endpoint_until_they_end() {
    let proxy = start("ipvs", None);
    for (pod, place) in [(0, Place::PodA), (1, Place::PodB)] {
        for family in Family::BOTH {
            let at = SocketAddr::new(place.ip(family), LASTING.target);
            let listener = proxy.lab.network.pods[pod].namespace.enter(|| TcpListener::bind(at)).unwrap();
            std::thread::spawn(move || listener.incoming().flatten().for_each(serve_association));
        }
    }
    wait_for(&proxy, A.place);
    let lasting = |(family, (from, to, port, _))| {
        let port = if port == NODE_PORT { LASTING.node_port.unwrap() } else { LASTING.number };
        let to = SocketAddr::new(Address::ip(to, family), port);
        proxy.lab.namespace(from).enter(|| TcpStream::connect_timeout(&to, TIMEOUT)).unwrap()
    };
    let expected = |(family, route), place| answer_of(family, route, place, LASTING.target);
    let mut before: Vec<_> = routes().map(|route| (route, lasting(route))).collect();
    for (route, stream) in &mut before {
        assert_eq!(ask(stream), expected(*route, A.place), "{route:?}");
    }

    apply(&proxy, &[B]);
    wait_for(&proxy, B.place);
    for route in routes() {
        // More often than there are real servers.
        for _ in 0..3 {
            assert_eq!(ask(&mut lasting(route)), expected(route, B.place), "a new connection: {route:?}");
        }
    }
    for (route, stream) in &mut before {
        assert_eq!(ask(stream), expected(*route, A.place), "an old connection: {route:?}");
        // A reset when dropped: IPVS keeps a connection that ends by FIN for minutes.
        set_socket_linger(&*stream, Some(Duration::ZERO)).unwrap();
    }
    let removed = Family::BOTH.map(|family| SocketAddr::new(A.place.ip(family), LASTING.target).to_string());
    let listing = || proxy.lab.network.node.run("ipvsadm-save -n");
    let kept = listing();
    assert!(removed.iter().all(|real| kept.contains(&format!("{real} -m -w 0"))), "{kept}");

    drop(before);
    let mut last = String::new();
    let deleted = holds_within(TERMINATION_TIMEOUT, || {
        last = listing();
        !removed.iter().any(|real| last.contains(real))
    });
    assert!(deleted, "{last}");
    check_log(&proxy);
}

#[test]
#[ignore = "needs a kernel with IPVS and SCTP"]
fn ipvs_carries_sctp_associations() {
    // As in upstream, only TCP connections outlive their endpoint.
    for mut stream in check_associations(&start("ipvs", None)) {
        let ended = stream.write_all(b"?").and_then(|()| stream.read(&mut [0; 16]));
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
#[ignore = "needs a kernel with SCTP"]
fn nftables_carries_sctp_associations() {
    check_that_associations_last(&start("nftables", None));
}

#[test]
#[ignore = "needs a kernel with SCTP"]
fn iptables_over_nft_carries_sctp_associations() {
    check_that_associations_last(&start("iptables", Some("nft")));
}

#[test]
#[ignore = "needs a kernel with SCTP"]
fn legacy_iptables_carries_sctp_associations() {
    check_that_associations_last(&start("iptables", Some("legacy")));
}

fn start(mode: &'static str, iptables: Option<&str>) -> LabProxy {
    let lab = Lab::on(Network::without_netfilter(3));
    let mut proxy = LabProxy::stopped_in(lab, KUBE_PROXY, mode, Family::V4, &[]);
    if let Some(variant) = iptables {
        proxy.use_iptables(variant);
    }
    apply(&proxy, &[A]);
    proxy.start();
    proxy
}

/// Replaces all manifests by one Service per family.
fn apply(proxy: &LabProxy, endpoints: &[EndpointManifest]) {
    let service = |name, family| {
        let mut service = ServiceManifest { name, ..web(endpoints) };
        service.ports.extend([SCTP, LASTING]);
        write(&[service.into()], family)
    };
    proxy.apply_text(&(service("web", Family::V4) + &service("web6", Family::V6)));
}

/// `listing` is a command that prints all rules of the mode.
fn check_life(mut proxy: LabProxy, listing: &str) -> LabProxy {
    wait_for(&proxy, A.place);
    check_routes(&proxy, A.place);
    check_log(&proxy);

    apply(&proxy, &[B]);
    wait_for(&proxy, B.place);
    check_routes(&proxy, B.place);
    apply(&proxy, &[]);
    for family in Family::BOTH {
        wait_until(&proxy, family, &Answer::Refused);
    }

    apply(&proxy, &[A]);
    wait_for(&proxy, A.place);
    proxy.terminate();
    check_routes(&proxy, A.place);
    proxy.start();
    apply(&proxy, &[B]);
    wait_for(&proxy, B.place);

    proxy.kill();
    check_routes(&proxy, B.place);
    apply(&proxy, &[A]);
    proxy.start();
    wait_for(&proxy, A.place);
    check_routes(&proxy, A.place);
    check_log(&proxy);

    proxy.terminate();
    proxy.clean_up();
    let left = proxy.lab.network.node.run(listing);
    // As in upstream, this chain stays, since it is of use to kubelet, too.
    let left = left.replace("KUBE-FIREWALL", "");
    assert!(!left.contains("KUBE-") && !left.contains("kube-proxy"), "after --cleanup: {left}");
    proxy
}

/// An SCTP association survives that its endpoint is replaced.
fn check_that_associations_last(proxy: &LabProxy) {
    for mut stream in check_associations(proxy) {
        ask(&mut stream);
    }
}

/// A new SCTP association reaches the endpoint, and carries data in both directions. Returns those of the first endpoint after it
/// has been replaced.
fn check_associations(proxy: &LabProxy) -> Vec<TcpStream> {
    let servers = [(0, Place::PodA), (1, Place::PodB)];
    for (pod, place) in servers {
        let namespace = &proxy.lab.network.pods[pod].namespace;
        for family in Family::BOTH {
            let listener = namespace.enter(|| listen_sctp(SocketAddr::new(place.ip(family), SCTP.target)));
            std::thread::spawn(move || listener.incoming().flatten().for_each(serve_association));
        }
    }
    wait_for(proxy, A.place);
    let associations: Vec<_> = routes()
        .map(|(family, route @ (from, to, port, _))| {
            let port = if port == NODE_PORT { SCTP.node_port.unwrap() } else { SCTP.number };
            let to = SocketAddr::new(to.ip(family), port);
            let source = from.ip(family, 0, to.ip());
            let mut stream = proxy.lab.namespace(from).enter(|| connect_sctp(source, to));
            let expected = answer_of(family, route, A.place, SCTP.target);
            assert_eq!(ask(&mut stream), expected, "{family} {from:?} to {to}");
            stream
        })
        .collect();
    apply(proxy, &[B]);
    wait_for(proxy, B.place);
    associations
}

fn routes() -> impl Iterator<Item = (Family, (ClientPlace, Address, u16, bool))> {
    Family::BOTH.into_iter().flat_map(|family| ROUTES.map(|route| (family, route)))
}

/// What a client on this route receives if `place` is the only endpoint.
fn answer_of(
    family: Family,
    (from, to, _, masqueraded): (ClientPlace, Address, u16, bool),
    place: Place,
    port: u16,
) -> Answer {
    let is_hairpin = from == ClientPlace::PodA && place == Place::PodA;
    let client = if masqueraded || is_hairpin {
        place.masquerade_ips(family)[0]
    } else {
        from.ip(family, 0, to.ip(family))
    };
    Answer::From { endpoint: SocketAddr::new(place.ip(family), port), client }
}

fn check_routes(proxy: &LabProxy, place: Place) {
    for (family, route @ (from, to, port, _)) in routes() {
        for protocol in ALL {
            let expected = answer_of(family, route, place, TARGET);
            let found = probe(proxy, from, *protocol, SocketAddr::new(to.ip(family), port));
            assert_eq!(found, expected, "{family} {protocol} {from:?} to {to:?}");
        }
    }
}

/// Waits until both families reach `place`.
fn wait_for(proxy: &LabProxy, place: Place) {
    for family in Family::BOTH {
        let expected = answer_of(family, ROUTES[0], place, TARGET);
        wait_until(proxy, family, &expected);
    }
}

fn wait_until(proxy: &LabProxy, family: Family, expected: &Answer) {
    let (from, to, port, _) = ROUTES[0];
    let mut last = None;
    let reached = holds_within(TIMEOUT, || {
        last = Some(probe(proxy, from, Protocol::Tcp, SocketAddr::new(to.ip(family), port)));
        last.as_ref() == Some(expected)
    });
    assert!(reached, "{family}: expected {expected:?}, got {last:?}");
}

fn probe(proxy: &LabProxy, from: ClientPlace, protocol: Protocol, to: SocketAddr) -> Answer {
    let source = from.source(Family::of(to.ip()), 0);
    proxy.lab.namespace(from).enter(|| probe_here(source, protocol, to, Duration::from_secs(5)))
}

/// No sync has failed.
fn check_log(proxy: &LabProxy) {
    let log = proxy.log();
    let errors = log.lines().filter(|line| line.starts_with('E'));
    let errors: Vec<&str> =
        errors.filter(|line| !line.contains("The ipvs proxier is now deprecated")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

fn sctp_socket(address: SocketAddr) -> OwnedFd {
    let family = of(Family::of(address.ip()), [AddressFamily::INET, AddressFamily::INET6]);
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::SCTP)).unwrap();
    // An association between two single addresses, since address translation does not change those in the packet.
    bind(&socket, &address).unwrap();
    socket
}

/// Sockets of the standard library work with any stream.
fn listen_sctp(address: SocketAddr) -> TcpListener {
    let socket = sctp_socket(address);
    listen(&socket, 16).unwrap();
    socket.into()
}

fn connect_sctp(source: IpAddr, to: SocketAddr) -> TcpStream {
    let stream = TcpStream::from(sctp_socket(SocketAddr::new(source, 0)));
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // Limits `connect`, too.
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    connect(&stream, &to).unwrap_or_else(|error| panic!("connecting to {to}: {error}"));
    stream
}

/// Answers each request with the addresses of both ends.
fn serve_association(mut stream: TcpStream) {
    let addresses = format!("{} {}", stream.local_addr().unwrap(), stream.peer_addr().unwrap().ip());
    std::thread::spawn(move || {
        while matches!(stream.read(&mut [0; 16]), Ok(1..)) && stream.write_all(addresses.as_bytes()).is_ok() {
        }
    });
}

fn ask(stream: &mut TcpStream) -> Answer {
    stream.write_all(b"?").unwrap();
    let mut buffer = [0; 128];
    let length = stream.read(&mut buffer).unwrap();
    let text = std::str::from_utf8(&buffer[..length]).unwrap();
    let (endpoint, client) = text.split_once(' ').unwrap();
    Answer::From { endpoint: endpoint.parse().unwrap(), client: client.parse().unwrap() }
}
