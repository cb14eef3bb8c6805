//! The binary in the node of a lab, serving a folder of manifests.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use model::address::Family;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::lab::Lab;
use tests::manifests::{Service, write};

/// A proxy in the node of a lab, killed when dropped.
pub struct Stage {
    pub lab: Lab,
    pub family: Family,
    dir: TempDir,
    proxy: Option<Child>,
    /// What is started next.
    pub mode: &'static str,
    pub program: PathBuf,
    flags: Vec<&'static str>,
    /// Where it finds programs, if not where we do.
    path: Option<String>,
}

impl Stage {
    pub fn new(mode: &'static str, family: Family) -> Self {
        Self::told(mode, family, &[])
    }

    /// With the legacy iptables, and more flags.
    pub fn legacy(family: Family, flags: &[&'static str]) -> Self {
        let mut stage = Self::empty("iptables", family, flags);
        let programs = stage.dir.path().join("programs");
        fs::create_dir(&programs).unwrap();
        for name in ["iptables", "ip6tables"] {
            for what in ["", "-save", "-restore"] {
                let found =
                    ["/usr/sbin", "/sbin"].map(|dir| PathBuf::from(format!("{dir}/{name}-legacy{what}")));
                let program =
                    found.iter().find(|path| path.exists()).expect("`make setup` installs iptables");
                symlink(program, programs.join(format!("{name}{what}"))).unwrap();
            }
        }
        stage.path = Some(format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
        stage.start();
        stage
    }

    fn told(mode: &'static str, family: Family, flags: &[&'static str]) -> Self {
        let mut stage = Self::empty(mode, family, flags);
        stage.start();
        stage
    }

    /// A node where no proxy runs yet.
    pub fn empty(mode: &'static str, family: Family, flags: &[&'static str]) -> Self {
        let program = env!("CARGO_BIN_EXE_kube-proxy").into();
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("manifests")).unwrap();
        Self { lab: Lab::new(), family, dir, proxy: None, mode, program, flags: flags.to_vec(), path: None }
    }

    pub fn start(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut command = Command::new(&self.program);
        command
            .args([
                "--proxy-mode",
                self.mode,
                "--hostname-override=node-1",
                "--iptables-min-sync-period=0",
                "-v=4",
            ])
            .args(["--conntrack-max-per-core=0", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"])
            .args(["--nodeport-addresses=192.0.2.0/24,2001:db8:2::/64", "--manifests"])
            .arg(self.manifests())
            .args(&self.flags)
            .envs(self.path.iter().map(|path| ("PATH", path)))
            .stderr(Stdio::from(log));
        self.proxy = Some(self.lab.network.node.spawn(&mut command).unwrap());
    }

    /// As a container is stopped: by a signal that it may hear.
    pub fn end(&mut self) {
        if let Some(mut proxy) = self.proxy.take() {
            kill_process(Pid::from_child(&proxy), Signal::TERM).unwrap();
            let _ = proxy.wait();
        }
    }

    /// At once, wherever it is.
    pub fn stop(&mut self) {
        if let Some(mut proxy) = self.proxy.take() {
            let _ = proxy.kill();
            let _ = proxy.wait();
        }
    }

    fn manifests(&self) -> PathBuf {
        self.dir.path().join("manifests")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Makes this service all there is.
    pub fn hold(&self, service: Service) {
        self.hold_text(&write(&[service.into()], self.family));
    }

    /// Makes these manifests all there is.
    pub fn hold_text(&self, manifests: &str) {
        let next = self.dir.path().join("next");
        fs::write(&next, manifests).unwrap();
        fs::rename(next, self.manifests().join("all.yaml")).unwrap();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the log of the proxy in {} mode:\n{}", self.mode, self.log());
        }
        self.stop();
    }
}
