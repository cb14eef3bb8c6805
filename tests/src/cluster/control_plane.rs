//! The control plane that the tests of one run share. Only one test at a time uses it.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cluster::api::ApiClient;
use testkit::namespace::Namespace;

/// The control plane's address on the network that connects it to the nodes.
pub const ADDRESS: &str = "198.18.4.1";
pub const API_PORT: u16 = 6443;

/// A supervisor process runs the components. It ends when this process does, however that ends: the kernel closes its
/// standard input.
#[derive(Debug)]
pub struct ControlPlane {
    pub namespace: Namespace,
    pub folder: PathBuf,
    pub api: ApiClient,
    supervisor: Child,
    replies: BufReader<ChildStdout>,
    nodes: u8,
}

impl ControlPlane {
    /// Locks the shared control plane, and starts it first if need be. `supervisor` is this crate's `control-plane` binary.
    pub fn lock(supervisor: &Path) -> MutexGuard<'static, Option<Self>> {
        static SHARED: Mutex<Option<ControlPlane>> = Mutex::new(None);
        // A test that panicked has cleaned up, too.
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.get_or_insert_with(|| Self::start(supervisor));
        shared
    }

    fn start(supervisor: &Path) -> Self {
        let namespace = Namespace::new();
        namespace.ip_all(&[
            "link add lan0 type bridge".into(),
            format!("address add {ADDRESS}/24 dev lan0"),
            "link set lan0 up".into(),
        ]);
        let mut supervisor = Command::new(supervisor);
        // In its own process group, so that Ctrl-C reaches only this process; the supervisor cleans up after it.
        supervisor.arg(components()).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut supervisor = namespace.spawn(&mut supervisor).unwrap();
        let mut replies = BufReader::new(supervisor.stdout.take().unwrap());
        let folder = PathBuf::from(line(&mut replies));
        let api = ApiClient::open(&namespace, &folder.join("admin.kubeconfig"));
        Self { namespace, folder, api, supervisor, replies, nodes: 0 }
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(ADDRESS.parse().unwrap(), API_PORT)
    }

    /// Connects a node to the control plane. The veth pair goes away with the node's namespace.
    pub fn join(&mut self, node: &Namespace) -> IpAddr {
        // Reuses numbers after 240 nodes; the earlier ones are gone by then.
        self.nodes = self.nodes % 240 + 1;
        let number = 10 + self.nodes;
        self.namespace.ip_all(&[
            format!("link add node{number} type veth peer name lan netns {}", node.path()),
            format!("link set node{number} master lan0 up"),
        ]);
        let ip = IpAddr::from([198, 18, 4, number]);
        node.ip_all(&[format!("address add {ip}/24 dev lan"), "link set lan up".into()]);
        ip
    }

    /// Kills the API server.
    pub fn stop_api_server(&mut self) {
        self.command("stop");
    }

    /// Starts the API server if it does not run, and returns when it is ready.
    pub fn start_api_server(&mut self) {
        self.command("start");
    }

    /// Kills etcd and starts it again with the same data. Returns when it is ready; the API server reconnects by itself.
    pub fn restart_etcd(&mut self) {
        self.command("restart etcd");
    }

    fn command(&mut self, command: &str) {
        writeln!(self.supervisor.stdin.as_mut().unwrap(), "{command}").unwrap();
        assert_eq!(line(&mut self.replies), "done", "{command}");
    }
}

/// The folder with the binaries of the control plane and upstream's kube-proxy.
pub fn components() -> PathBuf {
    std::env::var_os("SLUICE_CONTROL_PLANE").expect("`make e2e` sets SLUICE_CONTROL_PLANE").into()
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the supervisor ended, see its output above");
    line.trim_end().into()
}
