//! The kube-proxies that are compared, and the nodes that they run on.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use testkit::lab::{ClientPlace, Lab};
use testkit::namespace::Namespace;
use testkit::wait::{holds_within, within};
use tests::cluster::control_plane::components;
use tests::cluster::proxy::{Mode, Proxy, flags};
use tests::cluster::test_cluster::TestCluster;

use crate::memory::cpu_time;

/// A kube-proxy in one mode.
#[derive(Clone)]
pub struct Competitor {
    pub project: Project,
    pub mode: Mode,
    binary: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Project {
    Sluice,
    Upstream,
}

impl Competitor {
    pub fn new(cluster: &TestCluster, project: Project, mode: Mode) -> Self {
        let binary = match project {
            Project::Sluice => cluster.kube_proxy().into(),
            Project::Upstream => components().join("kube-proxy"),
        };
        Self { project, mode, binary }
    }

    /// The name under which its figures are recorded.
    pub fn name(&self) -> String {
        let project = match self.project {
            Project::Sluice => "sluice",
            Project::Upstream => "upstream",
        };
        format!("{project}-{}", self.mode.name())
    }

    pub fn start(&self, cluster: &TestCluster, node: &BenchNode) -> Proxy {
        let kubeconfig = cluster.kubeconfig(cluster.control_plane().address(), &cluster.proxy_user());
        let flags = flags(self.mode, &cluster.node, &kubeconfig);
        let log = cluster.folder().join(format!("{}.log", self.name()));
        Proxy::start(&self.binary, &node.lab.network.node, &flags, &log)
    }
}

/// A node without rules, with pods and clients. All have the same name and addresses, in namespaces of their own.
pub struct BenchNode {
    pub lab: Lab,
    /// The end of its link in the namespace of the control plane.
    device: String,
}

impl BenchNode {
    pub fn join(cluster: &mut TestCluster) -> Self {
        let lab = Lab::new();
        let lan_ip = cluster.control_plane_mut().join(&lab.network.node).to_string();
        let device = format!("node{}", lan_ip.rsplit('.').next().unwrap());
        Self { lab, device }
    }

    /// The namespace of a pod that is never an endpoint.
    pub fn client(&self) -> &Namespace {
        self.lab.namespace(ClientPlace::Pod)
    }

    /// Removes the node, and waits until the kernel has freed its rules, so that this does not disturb the next measurement.
    pub fn remove(self, cluster: &TestCluster) {
        let Self { lab, device } = self;
        drop(lab);
        // Devices go after rules.
        within(Duration::from_secs(300), "the node is gone", || {
            device_counters(&cluster.control_plane().namespace, &device).is_none()
        });
    }

    /// Bytes that the node has received from the network of the control plane, with TLS and headers.
    pub fn received(&self) -> f64 {
        device_counters(&self.lab.network.node, "lan").unwrap()[0]
    }
}

/// Received bytes and packets of a device; `None` if it does not exist.
pub fn device_counters(namespace: &Namespace, device: &str) -> Option<[f64; 2]> {
    let devices = namespace.enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let line = devices.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{device}:")))?;
    let mut counters = line.split_whitespace().map(|counter| counter.parse().unwrap());
    Some([counters.next()?, counters.next()?])
}

/// Waits until the process has run no commands and used hardly any CPU time for longer than any proxy's minimum interval between
/// syncs, at most for `limit`.
pub fn wait_until_idle(process: u32, limit: Duration) {
    const PAUSE: Duration = Duration::from_millis(1_200);
    let mut before = cpu_time(process);
    holds_within(limit, || {
        std::thread::sleep(PAUSE);
        let now = cpu_time(process);
        let is_idle = now - std::mem::replace(&mut before, now) <= Duration::from_millis(20);
        is_idle && !runs_commands(process)
    });
}

/// Whether the process has children. Their CPU time counts only when they end.
fn runs_commands(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let children = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children"));
    threads.into_iter().any(|thread| children(thread).is_ok_and(|children| !children.is_empty()))
}
