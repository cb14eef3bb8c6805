//! kube-proxy as a process in the node's namespace. It cannot outlive the demo.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cluster::DemoCluster;

/// The first argument of the child process that becomes kube-proxy.
pub const EXEC_ARGUMENT: &str = "--exec-in-namespace";

/// A running kube-proxy, killed when dropped.
#[derive(Debug)]
pub struct DemoProxy(Child);

/// The flags of kube-proxy. None of them changes how it programs Services.
pub fn flags(manifests: &Path) -> Vec<String> {
    vec![
        format!("--manifests={}", manifests.display()),
        "--proxy-mode=nftables".into(),
        "--hostname-override=demo-node".into(),
        "--cluster-cidr=10.244.0.0/16".into(),
        // The limit applies to the whole machine, which the demo must not change.
        "--conntrack-max-per-core=0".into(),
    ]
}

/// The binary beside this one.
pub fn binary() -> PathBuf {
    std::env::current_exe().expect("the path of this executable").with_file_name("kube-proxy")
}

impl DemoProxy {
    /// Call it on the main thread: the kernel kills the child when the thread that started it ends.
    pub fn start(cluster: &DemoCluster) -> io::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(cluster.log_file())?;
        let child = Command::new(std::env::current_exe()?)
            .args([EXEC_ARGUMENT, &cluster.node().path(), &std::process::id().to_string()])
            .arg(binary())
            .args(flags(cluster.manifests.folder()))
            .stdout(log.try_clone()?)
            .stderr(log)
            // In its own process group, so that Ctrl-C reaches only the demo, which then ends kube-proxy.
            .process_group(0)
            .spawn()?;
        Ok(Self(child))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The exit status, or `None` while kube-proxy runs.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("kube-proxy is a child of this process")
    }

    pub fn wait_until(self, stopped: &AtomicBool) {
        while !stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for DemoProxy {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Enters a namespace and executes a command that dies with its parent.
pub fn exec_in_namespace(namespace: &str, parent: &str, command: &[&str]) -> ExitCode {
    let error = prepare(namespace, parent).err().unwrap_or_else(|| match command {
        [program, arguments @ ..] => Command::new(program).args(arguments).exec(),
        [] => io::ErrorKind::InvalidInput.into(),
    });
    eprintln!("starting {command:?}: {error}");
    ExitCode::FAILURE
}

fn prepare(namespace: &str, parent: &str) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the signal was set.
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().to_string() != parent) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    move_into_link_name_space(File::open(namespace)?.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}
