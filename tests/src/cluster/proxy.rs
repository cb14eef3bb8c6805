//! kube-proxy on the node of a test cluster.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use model::address::Family;
use rustix::process::Signal;

use crate::cluster::http::{self, HttpResponse};
use testkit::namespace::Namespace;
use testkit::network::pod_cidr;
use testkit::process::Process;
use testkit::wait::eventually;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
}

pub const HEALTH_ADDRESS: &str = "127.0.0.1:10256";
pub const METRICS_ADDRESS: &str = "127.0.0.1:10249";

/// A running kube-proxy, killed when dropped.
#[derive(Debug)]
pub struct Proxy {
    process: Process,
    node: Namespace,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

/// The flags that all tests share.
pub fn flags(mode: Mode, node_name: &str, kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--proxy-mode={}", mode.name()),
        format!("--hostname-override={node_name}"),
        format!("--cluster-cidr={},{}", pod_cidr(Family::V4), pod_cidr(Family::V6)),
        // The limit applies to the whole machine, which a test must not change.
        "--conntrack-max-per-core=0".into(),
        "--v=2".into(),
    ]
}

impl Proxy {
    pub fn start(binary: &Path, node: &Namespace, flags: &[String], log: &Path) -> Self {
        Self { process: Process::start(node, binary, flags, log), node: node.clone() }
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    pub fn health(&self, path: &str) -> Option<HttpResponse> {
        self.get(HEALTH_ADDRESS, path)
    }

    pub fn metrics(&self, path: &str) -> Option<HttpResponse> {
        self.get(METRICS_ADDRESS, path)
    }

    /// `None` if the server does not respond.
    pub fn get(&self, address: &str, path: &str) -> Option<HttpResponse> {
        let address: SocketAddr = address.parse().unwrap();
        http::get(&self.node, address, path).ok()
    }

    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().is_none()
    }

    /// Waits until the process has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("kube-proxy ends", || {
            status = self.process.try_wait();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of kube-proxy's log:\n{}", self.process.log_tail());
        }
    }
}

/// The binary to test: `SLUICE_KUBE_PROXY`, or the one beside the binary `beside`.
pub fn binary(beside: &Path) -> PathBuf {
    std::env::var_os("SLUICE_KUBE_PROXY").map_or_else(|| beside.with_file_name("kube-proxy"), PathBuf::from)
}
