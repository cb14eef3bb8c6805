//! The path of packets through a cluster IP: first packets, connections per second, and packets per second of one flow, by the
//! number of Services and of endpoints, beside those to a pod directly. `make bench-upstream` runs it.
//!
//! Each kube-proxy has a node of its own, and ends when it has loaded its rules, so that only rules are compared. A client on each
//! node takes turns with the others, in blocks of milliseconds, so that other load of the machine affects all of them.
//!
//! ```text
//!   client (pod) ──▶ node: the rules of one kube-proxy ──▶ the third node, which has the addresses of all endpoints
//! ```

use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::address::Family;
use serde_json::json;
use testkit::lab::TARGET;
use testkit::namespace::Namespace;
use tests::cluster::objects::{endpoint, service, slice, with};
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

use crate::competitors::{BenchNode, Competitor, Project, device_counters};
use crate::figures::{FigureLog, median, percentile};
use crate::population::{PLACES, populate_with_tcp, single_stack};
use crate::{ruleset, setting, starts};

/// The endpoints of each Service that is measured.
const ENDPOINTS: [usize; 4] = [1, 10, 100, 5_000];
/// The limit of the API.
const ENDPOINTS_PER_SLICE: usize = 1_000;
const CONNECTIONS: usize = 100;
const PACKETS: usize = 2_000;
const COMPETITORS: [(Project, Mode); 3] = [
    (Project::Sluice, Mode::Nftables),
    (Project::Upstream, Mode::Nftables),
    (Project::Upstream, Mode::Iptables),
];

/// `services` is the number of all Services, of which those that are measured have [`ENDPOINTS`] and the others one each.
pub fn measure(cluster: &mut TestCluster, services: usize) {
    populate_with_tcp(cluster, services.saturating_sub(ENDPOINTS.len()), &PLACES[..1]);
    let frontends = create_measured(cluster);
    let mut paths = Vec::new();
    for (project, mode) in COMPETITORS {
        let competitor = Competitor::new(cluster, project, mode);
        let limit = Duration::from_secs(setting("LIMIT", 600) as u64);
        let node = BenchNode::join(cluster);
        serve(&node);
        match starts::measure(cluster, &node, &competitor, &frontends, limit) {
            Some((proxy, [served, ..])) => {
                drop(proxy);
                let size = ruleset::count(&node.lab.network.node);
                println!(
                    "{}: served after {served:.1} s; {} rules, {} sets, {} elements",
                    competitor.name(),
                    size.rules,
                    size.sets,
                    size.elements
                );
                paths.extend(Path::all(node, &competitor.name(), &frontends));
            }
            None => println!("{}: a start takes more than {} s", competitor.name(), limit.as_secs()),
        }
    }
    // One target after the other, so that clients of different nodes follow each other.
    paths.sort_by_key(|path| path.endpoints);
    for _ in 0..setting("BLOCKS", 100) {
        paths.iter_mut().for_each(Path::measure_block);
    }
    paths.iter().for_each(|path| path.record(services));
}

/// Creates the Services that are measured, and returns their frontends.
fn create_measured(cluster: &TestCluster) -> Vec<SocketAddr> {
    // The first address is that of the pod that is reached directly.
    let mut addresses = (1..).map(address);
    let create = |count: usize| {
        let name = format!("measured-{count}");
        let created = cluster.api().create(&cluster.services(), &with(service(&name), single_stack()));
        let endpoints: Vec<_> = addresses.by_ref().take(count).map(endpoint).collect();
        for (number, endpoints) in endpoints.chunks(ENDPOINTS_PER_SLICE).enumerate() {
            let part = json!({"metadata": {"name": format!("{name}-{number}")}});
            cluster.api().create(&cluster.slices(), &with(slice(&name, Family::V4, endpoints), part));
        }
        cluster_ip(&created, Family::V4)
    };
    ENDPOINTS.map(create).into()
}

fn address(number: usize) -> IpAddr {
    let [high, low] = [number / 250, number % 250].map(|part| u8::try_from(part).unwrap());
    Ipv4Addr::new(10, 244, 128 + high, 1 + low).into()
}

/// Gives the third node the addresses of all endpoints, and closes each connection to them.
fn serve(node: &BenchNode) {
    let network = &node.lab.network;
    network.far.ip("route add local 10.244.128.0/17 dev lo");
    network.node.ip("route add 10.244.128.0/17 via 198.18.2.12");
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), TARGET);
    let (listener, datagrams) =
        network.far.enter(|| (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap()));
    std::thread::spawn(move || {
        // Nothing reads the datagrams, but without a socket the kernel would refuse them.
        let _datagrams = datagrams;
        listener.incoming().for_each(drop);
    });
}

/// What one client measures: a cluster IP or, with no endpoints, a pod that it reaches directly.
struct Path {
    competitor: String,
    endpoints: usize,
    to: SocketAddr,
    client: Namespace,
    /// Where all packets arrive.
    third_node: Namespace,
    flow: UdpSocket,
    first_packet_us: Vec<f64>,
    connections_per_s: Vec<f64>,
    packets_per_s: Vec<f64>,
    /// Keeps the namespaces connected.
    _node: Arc<BenchNode>,
}

impl Path {
    /// The paths through one node.
    fn all(node: BenchNode, competitor: &str, frontends: &[SocketAddr]) -> Vec<Self> {
        let node = Arc::new(node);
        let direct = (0, SocketAddr::new(address(0), TARGET));
        let cluster_ips = ENDPOINTS.into_iter().zip(frontends.iter().copied());
        let flow = |to| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.connect(to).unwrap();
            socket
        };
        let path = |(endpoints, to)| Self {
            competitor: competitor.to_owned(),
            endpoints,
            to,
            client: node.client().clone(),
            third_node: node.lab.network.far.clone(),
            flow: node.client().enter(|| flow(to)),
            first_packet_us: Vec::new(),
            connections_per_s: Vec::new(),
            packets_per_s: Vec::new(),
            _node: node.clone(),
        };
        [direct].into_iter().chain(cluster_ips).map(path).collect()
    }

    fn measure_block(&mut self) {
        let connected = self.client.enter(|| connect(self.to));
        let (latencies, elapsed) = connected.unwrap_or_else(|error| {
            panic!("{}, {} endpoints: connecting to {}: {error}", self.competitor, self.endpoints, self.to)
        });
        self.first_packet_us.extend(latencies.iter().map(|latency| latency.as_secs_f64() * 1e6));
        self.connections_per_s.push(CONNECTIONS as f64 / elapsed.as_secs_f64());
        let before = self.arrived();
        let began = Instant::now();
        for _ in 0..PACKETS {
            self.flow.send(&[0; 64]).unwrap();
        }
        self.packets_per_s.push((self.arrived() - before) / began.elapsed().as_secs_f64());
    }

    fn arrived(&self) -> f64 {
        device_counters(&self.third_node, "eth0").unwrap()[1]
    }

    fn record(&self, services: usize) {
        let what = if self.endpoints == 0 { "direct" } else { "data-path" };
        let mut log = FigureLog::of(&format!("{what}-{}", self.competitor), services, self.endpoints);
        log.record("first_packet_p50_us", median(&self.first_packet_us));
        log.record("first_packet_p99_us", percentile(&self.first_packet_us, 99));
        log.record_spread("connections_per_s", &self.connections_per_s, 25, 75);
        log.record_spread("packets_per_s", &self.packets_per_s, 25, 75);
    }
}

/// Opens one connection after the other, and returns how long each took, and all of them until the server had closed them.
fn connect(to: SocketAddr) -> io::Result<(Vec<Duration>, Duration)> {
    let began = Instant::now();
    let open = |_| {
        let began = Instant::now();
        let mut stream = TcpStream::connect(to)?;
        let latency = began.elapsed();
        stream.read_to_end(&mut Vec::new())?;
        Ok(latency)
    };
    let latencies: io::Result<Vec<Duration>> = (0..CONNECTIONS).map(open).collect();
    Ok((latencies?, began.elapsed()))
}
