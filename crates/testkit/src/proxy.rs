//! The kube-proxy binary as a process that serves a folder of manifests, without an API server.

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::lab::NODE_NAME;
use crate::wait::Deadline;

const LOG_TIMEOUT: Duration = Duration::from_secs(20);

/// A running kube-proxy in nftables mode, killed when dropped. A test that panics prints its log.
#[derive(Debug)]
pub struct StandaloneProxy {
    child: Child,
    log: PathBuf,
    /// The length of the log file before this process.
    log_start: usize,
    /// Numbers of the log lines that [`Self::wait_for`] has returned.
    returned: Vec<usize>,
}

impl StandaloneProxy {
    /// Starts `command`, the binary or a wrapper that executes it, in the namespace of the calling thread.
    ///
    /// `flags` override the usual ones, which leave out delays between syncs and settings of the whole machine. The log is
    /// appended to `log`.
    pub fn start(mut command: Command, manifests: &Path, flags: &[&str], log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log).unwrap();
        let log_start = usize::try_from(file.metadata().unwrap().len()).unwrap();
        let child = command
            .args(["--proxy-mode=nftables", "--hostname-override", NODE_NAME, "-v=2"])
            .args(["--iptables-min-sync-period=0", "--conntrack-max-per-core=0"])
            .args(flags)
            .arg("--manifests")
            .arg(manifests)
            .stderr(Stdio::from(file))
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, log: log.into(), log_start, returned: Vec::new() }
    }

    /// Waits for a log line that contains all `parts`, and returns it. Each line is returned only once.
    pub fn wait_for(&mut self, parts: &[&str]) -> String {
        let mut deadline = Deadline::after(LOG_TIMEOUT);
        loop {
            let log = self.log();
            let is_match = |line: &str| parts.iter().all(|part| line.contains(part));
            // The last line may be incomplete.
            let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n')).enumerate();
            let found =
                lines.into_iter().find(|(number, line)| !self.returned.contains(number) && is_match(line));
            if let Some((number, line)) = found {
                self.returned.push(number);
                return line.trim_end().to_owned();
            }
            assert!(!deadline.has_passed(), "no line with {parts:?} in the log");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the next completed sync of a family and returns its log line.
    pub fn wait_for_sync(&mut self, family: &str) -> String {
        self.wait_for(&["\"SyncProxyRules complete\"", family])
    }

    /// The log of this process, without that of earlier ones in the same file.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()[self.log_start..]).into_owned()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the process has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for StandaloneProxy {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("the log of kube-proxy, {}:\n{}", self.log.display(), self.log());
        }
    }
}

/// A Service with a cluster IP and port 80.
pub fn service_manifest(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  clusterIP: {ip}
  ports:
  - port: 80
"
    )
}

/// The slice of [`service_manifest`], with one endpoint on port 8080.
pub fn slice_manifest(service: &str, endpoint: &str) -> String {
    slice_of(service, &[endpoint])
}

/// [`service_manifest`] and its slice with any number of endpoints on port 8080.
pub fn service_with_endpoints(name: &str, ip: &str, endpoints: &[impl Display]) -> String {
    format!("{}---\n{}", service_manifest(name, ip), slice_of(name, endpoints))
}

fn slice_of(service: &str, endpoints: &[impl Display]) -> String {
    let endpoints: Vec<_> = endpoints.iter().map(|ip| format!("{{addresses: ['{ip}']}}")).collect();
    format!(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-1, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}
