//! The control plane that all tests of a run share, one after the other.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cluster::api::Api;
use testkit::namespace::Namespace;

/// Where it is on the network between it and the nodes.
pub const ADDRESS: &str = "198.18.4.1";
pub const API_PORT: u16 = 6443;

/// A process of its own runs the components, and ends with us: the kernel closes its standard input then, however we end.
#[derive(Debug)]
pub struct ControlPlane {
    pub namespace: Namespace,
    pub folder: PathBuf,
    pub api: Api,
    supervisor: Child,
    hear: BufReader<ChildStdout>,
    nodes: u8,
}

impl ControlPlane {
    /// The only one there is, for as long as the guard lives. `supervisor` is the program `control-plane` of this crate.
    pub fn alone(supervisor: &Path) -> MutexGuard<'static, Option<Self>> {
        static SHARED: Mutex<Option<ControlPlane>> = Mutex::new(None);
        // A test that failed has cleaned up, too.
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
        // A Ctrl-C is for us; it cleans up when we are gone.
        supervisor.arg(components()).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut supervisor = namespace.spawn(&mut supervisor).unwrap();
        let mut hear = BufReader::new(supervisor.stdout.take().unwrap());
        let folder = PathBuf::from(line(&mut hear));
        let api = Api::open(&namespace, &folder.join("admin.kubeconfig"));
        Self { namespace, folder, api, supervisor, hear, nodes: 0 }
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(ADDRESS.parse().unwrap(), API_PORT)
    }

    /// Joins a node to the network. The wire goes away with the node's namespace.
    pub fn join(&mut self, node: &Namespace) -> IpAddr {
        // Enough for the nodes of a run: .1 is the control plane, .255 is everybody.
        self.nodes = self.nodes % 200 + 1;
        let number = 10 + self.nodes;
        self.namespace.ip_all(&[
            format!("link add node{number} type veth peer name lan netns {}", node.path()),
            format!("link set node{number} master lan0 up"),
        ]);
        let ip = IpAddr::from([198, 18, 4, number]);
        node.ip_all(&[format!("address add {ip}/24 dev lan"), "link set lan up".into()]);
        ip
    }

    /// Ends the API server as a crash would.
    pub fn stop_api_server(&mut self) {
        self.command("stop");
    }

    /// Returns when it is ready.
    pub fn start_api_server(&mut self) {
        self.command("start");
    }

    /// Kills etcd and starts it again with the same data. Returns when it is ready; the API server reconnects by itself.
    pub fn restart_etcd(&mut self) {
        self.command("restart etcd");
    }

    fn command(&mut self, what: &str) {
        writeln!(self.supervisor.stdin.as_mut().unwrap(), "{what}").unwrap();
        assert_eq!(line(&mut self.hear), "done", "{what}");
    }
}

/// The folder with the programs of a control plane, and the reference's kube-proxy.
pub fn components() -> PathBuf {
    std::env::var_os("SLUICE_CONTROL_PLANE").expect("`make e2e` says where the components are").into()
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the control plane did not start, see above");
    line.trim_end().into()
}
