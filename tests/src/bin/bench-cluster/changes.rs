//! One change at a time: the latency from the write to the API until a packet reaches the new endpoint, and CPU time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use model::address::Family;
use model::names::Protocol;
use testkit::lab::Place;
use testkit::namespace::Namespace;
use testkit::probe::{Answer, probe_here};
use tests::cluster::proxy::Proxy;
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

use crate::competitors::{BenchNode, wait_until_idle};
use crate::memory::{precise_cpu_time, status};
use crate::population::{create_services, slice_at, tcp_only};

/// The Services that change. Each has one endpoint, so that a single packet shows which one is in force.
const SERVICES: usize = 10;
const PLACES: [Place; 2] = [Place::PodA, Place::PodB];

/// No change is made later in a turn.
const TURN: Duration = Duration::from_secs(60);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Upstream may sync for other reasons all the time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

pub struct ChangingServices {
    /// Port 80 of each Service.
    frontends: Vec<SocketAddr>,
    /// Changes so far, in all turns.
    made: usize,
}

/// The changes of one turn.
pub struct ChangeFigures {
    pub latencies: Vec<Duration>,
    pub cpu_ms: f64,
    pub rss_mib: f64,
}

impl ChangingServices {
    pub fn create(cluster: &TestCluster) -> Self {
        create_services(cluster, (0..SERVICES).map(name), &PLACES[..1], &tcp_only());
        let frontend = |number| cluster_ip(&cluster.api().get(&cluster.service(&name(number))), Family::V4);
        Self { frontends: (0..SERVICES).map(frontend).collect(), made: 0 }
    }

    pub fn last_frontend(&self) -> SocketAddr {
        *self.frontends.last().unwrap()
    }

    /// Replaces the endpoint of one Service after the other, each time after the proxy has become idle: at most `count` changes,
    /// and fewer if they take long. `None` if the kernel does not get a change within `limit`.
    pub fn measure(
        &mut self,
        cluster: &TestCluster,
        node: &BenchNode,
        proxy: &Proxy,
        count: usize,
        limit: Duration,
    ) -> Option<ChangeFigures> {
        let (began, before) = (Instant::now(), precise_cpu_time(proxy.pid()));
        let mut latencies = Vec::new();
        while latencies.len() < count && (latencies.is_empty() || began.elapsed() < TURN) {
            latencies.push(self.change(cluster, node.client(), limit)?);
            wait_until_idle(proxy.pid(), IDLE_TIMEOUT);
        }
        let cpu = (precise_cpu_time(proxy.pid()) - before).as_secs_f64() * 1e3 / latencies.len() as f64;
        Some(ChangeFigures { latencies, cpu_ms: cpu, rss_mib: status(proxy.pid(), "VmRSS:") })
    }

    fn change(&mut self, cluster: &TestCluster, client: &Namespace, limit: Duration) -> Option<Duration> {
        let number = self.made % SERVICES;
        let place = PLACES[(self.made / SERVICES + 1) % 2];
        self.made += 1;
        let (path, slice) = (cluster.slice(&name(number), Family::V4), slice_at(&name(number), &[place]));
        let written = Instant::now();
        std::thread::scope(|scope| {
            let arrival = scope.spawn(|| client.enter(|| arrival(self.frontends[number], place, limit)));
            cluster.api().replace(&path, &slice);
            Some(arrival.join().unwrap()? - written)
        })
    }
}

/// Connects again and again, and returns when `place` answers.
fn arrival(to: SocketAddr, place: Place, limit: Duration) -> Option<Instant> {
    let began = Instant::now();
    loop {
        let answer = probe_here(None, Protocol::Tcp, to, PROBE_TIMEOUT);
        let elapsed = began.elapsed();
        match answer {
            Answer::From { endpoint, .. } if endpoint.ip() == place.ip(Family::V4) => {
                return Some(Instant::now());
            }
            _ if elapsed > limit => return None,
            // As precise as the latency deserves, so that the client leaves CPU time to the proxy.
            _ => std::thread::sleep((elapsed / 100).max(Duration::from_micros(300))),
        }
    }
}

fn name(number: usize) -> String {
    format!("changing-{number}")
}
