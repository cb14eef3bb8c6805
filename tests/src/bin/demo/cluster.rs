//! The network, the servers in the pods, and the copy of the manifests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use model::names::Protocol;
use tempfile::TempDir;
use testkit::namespace::Namespace;
use testkit::probe::Server;

use crate::manifests::DemoManifests;
use crate::network::DemoNetwork;

/// A frontend of a Service in `examples/demo`.
#[derive(Debug, PartialEq, Eq)]
pub struct DemoFrontend {
    pub service: &'static str,
    pub name: &'static str,
    pub protocol: Protocol,
    pub ip: IpAddr,
    pub port: u16,
}

pub static WEB_BY_NODE_PORT: DemoFrontend = DemoFrontend {
    service: "web",
    name: "by node port",
    protocol: Protocol::Tcp,
    ip: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11)),
    port: 30080,
};
pub static WEB_BY_CLUSTER_IP: DemoFrontend = DemoFrontend {
    service: "web",
    name: "by cluster IP",
    protocol: Protocol::Tcp,
    ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)),
    port: 80,
};
pub static DNS_BY_CLUSTER_IP: DemoFrontend = DemoFrontend {
    service: "dns",
    name: "by cluster IP",
    protocol: Protocol::Udp,
    ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 53)),
    port: 53,
};
pub static FRONTENDS: [&DemoFrontend; 3] = [&WEB_BY_NODE_PORT, &WEB_BY_CLUSTER_IP, &DNS_BY_CLUSTER_IP];

impl DemoFrontend {
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    pub fn is_node_port(&self) -> bool {
        self == &WEB_BY_NODE_PORT
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoPod {
    A,
    B,
    C,
}

impl DemoPod {
    pub const ALL: [Self; 3] = [Self::A, Self::B, Self::C];

    pub fn name(self) -> &'static str {
        match self {
            Self::A => "pod-a",
            Self::B => "pod-b",
            Self::C => "pod-c",
        }
    }

    pub fn ip(self) -> IpAddr {
        let host = match self {
            Self::A => 5,
            Self::B => 6,
            Self::C => 7,
        };
        [10, 244, 0, host].into()
    }

    /// The endpoint of `web` in this pod.
    pub fn web(self) -> SocketAddr {
        SocketAddr::new(self.ip(), 8080)
    }

    pub fn with_ip(ip: IpAddr) -> Option<Self> {
        Self::ALL.into_iter().find(|pod| pod.ip() == ip)
    }
}

/// Removes namespaces and files when dropped.
#[derive(Debug)]
pub struct DemoCluster {
    network: DemoNetwork,
    web: [Option<Server>; 3],
    _dns: Server,
    pub manifests: DemoManifests,
    folder: TempDir,
}

impl DemoCluster {
    pub fn new() -> Self {
        let folder = TempDir::with_prefix("sluice-demo.").expect("a temporary folder can be made");
        let manifests = DemoManifests::copy_to(folder.path().join("manifests"));
        let network = DemoNetwork::new();
        let web = DemoPod::ALL.map(|pod| Some(serve(&network, pod, 8080)));
        let dns = serve(&network, DemoPod::C, 5353);
        Self { network, web, _dns: dns, manifests, folder }
    }

    pub fn node(&self) -> &Namespace {
        &self.network.node
    }

    pub fn client(&self) -> &Namespace {
        &self.network.client
    }

    pub fn pod(&self, pod: DemoPod) -> &Namespace {
        self.network.pod(pod)
    }

    pub fn start_web(&mut self, pod: DemoPod) {
        self.web[pod as usize] = Some(serve(&self.network, pod, 8080));
    }

    /// From now on connections to the pod fail.
    pub fn stop_web(&mut self, pod: DemoPod) {
        self.web[pod as usize] = None;
    }

    pub fn log_file(&self) -> PathBuf {
        self.folder.path().join("kube-proxy.log")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn last_log_lines(&self, count: usize) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

fn serve(network: &DemoNetwork, pod: DemoPod, port: u16) -> Server {
    Server::start(network.pod(pod), SocketAddr::new(pod.ip(), port))
}
