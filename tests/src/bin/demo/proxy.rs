//! The real kube-proxy as a process in the node's namespace. It cannot outlive us.

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

use crate::stage::Stage;

/// The argument that makes this program become the proxy.
pub const INSIDE: &str = "--inside";

/// Killed when dropped.
#[derive(Debug)]
pub struct Proxy(Child);

/// What the demo runs. None of the flags changes how services are programmed.
pub fn flags(manifests: &Path) -> Vec<String> {
    vec![
        format!("--manifests={}", manifests.display()),
        "--proxy-mode=nftables".into(),
        "--hostname-override=demo-node".into(),
        "--cluster-cidr=10.244.0.0/16".into(),
        // That limit is one for the whole machine, and not the demo's to set.
        "--conntrack-max-per-core=0".into(),
    ]
}

/// Built beside us.
pub fn binary() -> PathBuf {
    std::env::current_exe().expect("a program knows its file").with_file_name("kube-proxy")
}

impl Proxy {
    /// To be called on the main thread: the kernel takes the end of the starting thread for the end of the parent.
    pub fn start(stage: &Stage) -> io::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(stage.log_file())?;
        let child = Command::new(std::env::current_exe()?)
            .args([INSIDE, &stage.node().path(), &std::process::id().to_string()])
            .arg(binary())
            .args(flags(stage.manifests.folder()))
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for us; we end it in our own time.
            .process_group(0)
            .spawn()?;
        Ok(Self(child))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its status, if it has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("it is our child")
    }

    pub fn wait_until(self, stopped: &AtomicBool) {
        while !stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It fails if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Goes into a namespace and becomes a command that dies with its parent.
pub fn become_it(namespace: &str, parent: &str, command: &[&str]) -> ExitCode {
    let error = prepare(namespace, parent).err().unwrap_or_else(|| match command {
        [program, arguments @ ..] => Command::new(program).args(arguments).exec(),
        [] => io::ErrorKind::InvalidInput.into(),
    });
    eprintln!("starting {command:?}: {error}");
    ExitCode::FAILURE
}

fn prepare(namespace: &str, parent: &str) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before it was asked for.
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().to_string() != parent) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    move_into_link_name_space(File::open(namespace)?.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}
