//! The kube-proxy binary on the node of a lab, with manifests that a test replaces while it runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::address::Family;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::lab::Lab;
use crate::manifests::{ServiceManifest, write};
use crate::proxy::StandaloneProxy;

/// A lab whose node runs kube-proxy. Restarts share one log and one folder of manifests.
#[derive(Debug)]
pub struct LabProxy {
    pub lab: Lab,
    pub family: Family,
    /// The mode, the program and the flags apply from the next [`Self::start`] on.
    pub mode: &'static str,
    pub program: PathBuf,
    flags: Vec<&'static str>,
    /// `PATH` of kube-proxy, if it differs from ours.
    path: Option<String>,
    proxy: Option<StandaloneProxy>,
    folder: TempDir,
}

impl LabProxy {
    /// A lab in which kube-proxy does not run yet. `program` is its binary.
    pub fn stopped(program: &str, mode: &'static str, family: Family, flags: &[&'static str]) -> Self {
        Self::stopped_in(Lab::new(), program, mode, family, flags)
    }

    pub fn stopped_in(
        lab: Lab,
        program: &str,
        mode: &'static str,
        family: Family,
        flags: &[&'static str],
    ) -> Self {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("manifests")).unwrap();
        Self {
            lab,
            family,
            mode,
            program: program.into(),
            flags: flags.to_vec(),
            path: None,
            proxy: None,
            folder,
        }
    }

    /// Starts kube-proxy, which serves no object yet.
    pub fn new(program: &str, mode: &'static str, family: Family) -> Self {
        let mut proxy = Self::stopped(program, mode, family, &[]);
        proxy.start();
        proxy
    }

    /// Starts kube-proxy with the legacy variant of iptables.
    pub fn legacy(program: &str, family: Family, flags: &[&'static str]) -> Self {
        let mut proxy = Self::stopped(program, "iptables", family, flags);
        proxy.use_iptables("legacy");
        proxy.start();
        proxy
    }

    /// Makes this variant of iptables, `legacy` or `nft`, the one that kube-proxy finds.
    pub fn use_iptables(&mut self, variant: &str) {
        let programs = self.folder.path().join("programs");
        fs::create_dir(&programs).unwrap();
        link_iptables(variant, &programs);
        self.path = Some(format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
    }

    /// Removes all rules that kube-proxy may have left.
    pub fn clean_up(&self) {
        let output = self.lab.network.node.enter(|| self.command().arg("--cleanup").output()).unwrap();
        assert!(output.status.success(), "--cleanup: {output:?}");
    }

    /// The program, without flags.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.envs(self.path.iter().map(|path| ("PATH", path)));
        command
    }

    pub fn start(&mut self) {
        let command = self.command();
        let mut flags = vec![
            "--proxy-mode",
            self.mode,
            "-v=4",
            "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
            "--nodeport-addresses=192.0.2.0/24,2001:db8:2::/64",
        ];
        flags.extend(&self.flags);
        let (manifests, log) = (self.manifests(), self.log_file());
        let start = || StandaloneProxy::start(command, &manifests, &flags, &log);
        self.proxy = Some(self.lab.network.node.enter(start));
    }

    /// Sends SIGTERM, as a container runtime does, and waits for the end.
    pub fn terminate(&mut self) {
        if let Some(mut proxy) = self.proxy.take() {
            proxy.signal(Signal::TERM);
            proxy.wait();
        }
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.proxy = None;
    }

    fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Replaces all manifests by this Service.
    pub fn apply(&self, service: ServiceManifest) {
        self.apply_text(&write(&[service.into()], self.family));
    }

    /// Replaces all manifests.
    pub fn apply_text(&self, manifests: &str) {
        let next = self.folder.path().join("next");
        fs::write(&next, manifests).unwrap();
        fs::rename(next, self.manifests().join("all.yaml")).unwrap();
    }
}

/// Fills `folder` with links that make `iptables` and its kin those of one variant, `legacy` or `nft`.
pub fn link_iptables(variant: &str, folder: &Path) {
    for name in ["iptables", "ip6tables"] {
        for tool in ["", "-save", "-restore"] {
            let found =
                ["/usr/sbin", "/sbin"].map(|dir| PathBuf::from(format!("{dir}/{name}-{variant}{tool}")));
            let program = found.iter().find(|path| path.exists()).expect("`make setup` installs iptables");
            symlink(program, folder.join(format!("{name}{tool}"))).unwrap();
        }
    }
}
