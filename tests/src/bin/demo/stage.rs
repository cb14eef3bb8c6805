//! What stands before the curtain opens: the network, servers in the pods, and a copy of the manifests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use model::names::Protocol;
use tempfile::TempDir;
use testkit::namespace::Namespace;
use testkit::talk::Server;

use crate::manifests::Manifests;
use crate::network::Network;

/// A way into a service, as `examples/demo` has them.
#[derive(Debug, PartialEq, Eq)]
pub struct Way {
    pub service: &'static str,
    pub name: &'static str,
    pub protocol: Protocol,
    pub ip: IpAddr,
    pub port: u16,
}

pub static WEB_BY_NODE_PORT: Way = Way {
    service: "web",
    name: "by node port",
    protocol: Protocol::Tcp,
    ip: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11)),
    port: 30080,
};
pub static WEB_BY_CLUSTER_IP: Way = Way {
    service: "web",
    name: "by cluster IP",
    protocol: Protocol::Tcp,
    ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)),
    port: 80,
};
pub static DNS_BY_CLUSTER_IP: Way = Way {
    service: "dns",
    name: "by cluster IP",
    protocol: Protocol::Udp,
    ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 53)),
    port: 53,
};
pub static WAYS: [&Way; 3] = [&WEB_BY_NODE_PORT, &WEB_BY_CLUSTER_IP, &DNS_BY_CLUSTER_IP];

impl Way {
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    pub fn is_node_port(&self) -> bool {
        self == &WEB_BY_NODE_PORT
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pod {
    A,
    B,
    C,
}

impl Pod {
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

    /// Where it serves `web`.
    pub fn web(self) -> SocketAddr {
        SocketAddr::new(self.ip(), 8080)
    }

    pub fn with_ip(ip: IpAddr) -> Option<Self> {
        Self::ALL.into_iter().find(|pod| pod.ip() == ip)
    }
}

/// Everything here goes when it is dropped.
#[derive(Debug)]
pub struct Stage {
    network: Network,
    web: [Option<Server>; 3],
    _dns: Server,
    pub manifests: Manifests,
    folder: TempDir,
}

impl Stage {
    pub fn set() -> Self {
        let folder = TempDir::with_prefix("sluice-demo.").expect("a temporary folder can be made");
        let manifests = Manifests::copy_to(folder.path().join("manifests"));
        let network = Network::new();
        let web = Pod::ALL.map(|pod| Some(serve(&network, pod, 8080)));
        let dns = serve(&network, Pod::C, 5353);
        Self { network, web, _dns: dns, manifests, folder }
    }

    pub fn node(&self) -> &Namespace {
        &self.network.node
    }

    pub fn client(&self) -> &Namespace {
        &self.network.client
    }

    pub fn pod(&self, pod: Pod) -> &Namespace {
        self.network.pod(pod)
    }

    pub fn start_web(&mut self, pod: Pod) {
        self.web[pod as usize] = Some(serve(&self.network, pod, 8080));
    }

    /// From now on a connection to it fails.
    pub fn stop_web(&mut self, pod: Pod) {
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

fn serve(network: &Network, pod: Pod, port: u16) -> Server {
    Server::start(network.pod(pod), SocketAddr::new(pod.ip(), port))
}
