//! kube-proxy as a process on a node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use model::address::Family;
use rustix::process::Signal;

use crate::cluster::http::{self, Answer};
use crate::matrix::eventually;
use testkit::namespace::Namespace;
use testkit::network::pod_cidr;
use testkit::process::Process;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
}

pub const HEALTH: &str = "127.0.0.1:10256";
pub const METRICS: &str = "127.0.0.1:10249";

/// Killed when dropped.
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

/// What every proxy here is told.
pub fn flags(mode: Mode, node_name: &str, kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--proxy-mode={}", mode.name()),
        format!("--hostname-override={node_name}"),
        format!("--cluster-cidr={},{}", pod_cidr(Family::V4), pod_cidr(Family::V6)),
        // That limit is one for the whole machine, and not a test's to set.
        "--conntrack-max-per-core=0".into(),
        "--v=2".into(),
    ]
}

impl Proxy {
    pub fn start(binary: &Path, node: &Namespace, flags: &[String], log: &Path) -> Self {
        Self { process: Process::start(node, binary, flags, log), node: node.clone() }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    pub fn health(&self, path: &str) -> Option<Answer> {
        self.get(HEALTH, path)
    }

    pub fn metrics(&self, path: &str) -> Option<Answer> {
        self.get(METRICS, path)
    }

    /// Nothing if nobody answers.
    pub fn get(&self, address: &str, path: &str) -> Option<Answer> {
        let address: SocketAddr = address.parse().unwrap();
        http::get(&self.node, address, path).ok()
    }

    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end of the proxy", || {
            status = self.process.ended();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("The last words of kube-proxy:\n{}", self.process.last_words());
        }
    }
}

/// Beside the program given, unless `SLUICE_KUBE_PROXY` names another to be put to the test.
pub fn binary(beside: &Path) -> PathBuf {
    std::env::var_os("SLUICE_KUBE_PROXY").map_or_else(|| beside.with_file_name("kube-proxy"), PathBuf::from)
}
