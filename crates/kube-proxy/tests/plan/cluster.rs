//! A folder of manifests, a proxy that serves it, and the tools beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use netlink::testing::run;
use tempfile::TempDir;
use testkit::wait::Deadline;

pub const MODES: [&str; 2] = ["nftables", "iptables"];

/// A folder of manifests, and the flags with which proxies and tools read it.
pub struct Cluster {
    pub folder: TempDir,
    pub mode: &'static str,
}

/// A running proxy, killed when dropped.
pub struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Cluster {
    pub fn new(mode: &'static str) -> Self {
        run("ip link set lo up");
        let cluster = Self { folder: TempDir::new().unwrap(), mode };
        cluster.write("web", &web("10.96.0.10", "80", "30080", &["10.244.0.5", "10.244.0.6", "10.244.0.7"]));
        cluster.write("dns", &web("10.96.0.53", "53", "30053", &["10.244.0.9"]).replace("web", "dns"));
        cluster.write("sticky", &sticky());
        cluster.write("none", &web("10.96.0.11", "80", "30081", &[]).replace("web", "none"));
        cluster
    }

    pub fn write(&self, name: &str, content: &str) {
        let next = self.folder.path().join("next");
        fs::write(&next, content).unwrap();
        fs::rename(next, self.folder.path().join(format!("{name}.yaml"))).unwrap();
    }

    pub fn open_to_all(&self) {
        fs::set_permissions(self.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn flags(&self) -> Vec<String> {
        let mode = self.mode;
        vec![
            format!("--proxy-mode={mode}"),
            format!("--manifests={}", self.folder.path().display()),
            "--hostname-override=node-1".into(),
            "--conntrack-max-per-core=0".into(),
            "--iptables-min-sync-period=0".into(),
            "--cluster-cidr=10.244.0.0/16".into(),
        ]
    }

    pub fn start(&self) -> Proxy {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
        Proxy(command.args(self.flags()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Leaves what a proxy leaves that has synced and ended.
    pub fn sync(&self) {
        let _proxy = self.start();
        self.wait_until_verified();
    }

    pub fn wait_until_verified(&self) {
        let mut deadline = Deadline::after(Duration::from_secs(30));
        loop {
            let (code, text) = self.tool("verify", &[]);
            if code == 0 {
                return;
            }
            assert!(!deadline.has_passed(), "{}: {text}", self.mode);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn tool(&self, name: &str, more: &[&str]) -> (i32, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
        outcome(command.arg(name).args(self.flags()).args(more).output().unwrap())
    }

    /// Lines of a plan but for the sum at its end, which must say that there is something.
    pub fn plan(&self, what: &str) -> Vec<String> {
        let (code, text) = self.tool("plan", &[]);
        assert_eq!(code, 2, "{} {what}: {text}", self.mode);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let sum = lines.pop().unwrap();
        assert!(sum.starts_with(&format!("ipv4 {}: ", self.mode)), "{text}");
        lines
    }
}

pub fn outcome(output: Output) -> (i32, String) {
    let stderr = String::from_utf8(output.stderr).unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &stderr;
    (output.status.code().unwrap(), text)
}

pub fn web(ip: &str, port: &str, node_port: &str, endpoints: &[&str]) -> String {
    let endpoints: Vec<String> =
        endpoints.iter().map(|ip| format!("{{addresses: [{ip}], nodeName: node-1}}")).collect();
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: NodePort
  clusterIP: {ip}
  ports: [{{name: http, port: {port}, nodePort: {node_port}}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

pub fn sticky() -> String {
    web("10.96.0.12", "80", "30082", &["10.244.0.20", "10.244.0.21"])
        .replace("web", "sticky")
        .replace("type: NodePort", "type: NodePort\n  sessionAffinity: ClientIP")
}

pub const NOTHING: (i32, String) = (0, String::new());

pub fn without_privileges(cluster: &Cluster, tool: &str, more: &[&str]) -> (i32, String) {
    // The build folder may be closed to others.
    let copy = cluster.folder.path().join("kube-proxy");
    // By another process: a test in another thread that starts one meanwhile would pass on the open file, which then is busy.
    run(&format!("cp {} {}", env!("CARGO_BIN_EXE_kube-proxy"), copy.display()));
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--clear-groups"]).arg(&copy).arg(tool).args(cluster.flags()).args(more);
    let output = command.output();
    fs::remove_file(copy).unwrap();
    outcome(output.unwrap())
}
