//! One start on a node without rules: how long until Services are served, and what it costs.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use testkit::lab::ClientPlace;
use testkit::probe::connect_and_read;
use testkit::wait::holds_within;
use tests::cluster::proxy::Proxy;
use tests::cluster::test_cluster::TestCluster;

use crate::competitors::{BenchNode, Competitor, wait_until_idle};
use crate::encodings::api_server;
use crate::memory::{cpu_time, status};

pub const FIGURES: [&str; 6] =
    ["served_s", "start_cpu_s", "rss_mib", "rss_peak_mib", "received_mib", "api_server_cpu_s"];

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the proxy, and measures until it serves all of `frontends` and is idle. `None` if it does not serve them within `limit`.
pub fn measure(
    cluster: &TestCluster,
    node: &BenchNode,
    competitor: &Competitor,
    frontends: &[SocketAddr],
    limit: Duration,
) -> Option<(Proxy, [f64; FIGURES.len()])> {
    let api_server = api_server(&cluster.control_plane().folder);
    let (received, busy) = (node.received(), cpu_time(api_server));
    let started = Instant::now();
    let mut proxy = competitor.start(cluster, node);
    let all_are_served = || {
        assert!(proxy.is_running(), "{} ended:\n{}", competitor.name(), proxy.log());
        frontends.iter().all(|to| is_served(*to))
    };
    // Not the pod that measures later: conntrack remembers connections from before the rules, and their ports.
    let client = node.lab.namespace(ClientPlace::Outside);
    if !client.enter(|| holds_within(limit, all_are_served)) {
        return None;
    }
    let served = started.elapsed();
    wait_until_idle(proxy.pid(), limit);
    let figures = [
        served.as_secs_f64(),
        cpu_time(proxy.pid()).as_secs_f64(),
        status(proxy.pid(), "VmRSS:"),
        status(proxy.pid(), "VmHWM:"),
        (node.received() - received) / f64::from(1 << 20),
        (cpu_time(api_server) - busy).as_secs_f64(),
    ];
    Some((proxy, figures))
}

/// Whether rules translate connections to the frontend. A pod that does not listen refuses them.
fn is_served(to: SocketAddr) -> bool {
    match connect_and_read(to, CONNECT_TIMEOUT, |_| Ok(())) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionRefused,
    }
}
