//! Renders the chart and the overlays with the tools that users have.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tests::cluster::manifests::parse;
use tests::cluster::test_cluster::TestCluster;

use super::packaging;

/// A tool that `hack/packaging-tools` downloads.
pub fn tool(name: &str) -> PathBuf {
    let folder = std::env::var("SLUICE_PACKAGING_TOOLS").expect("`make e2e` sets SLUICE_PACKAGING_TOOLS");
    Path::new(&folder).join(name)
}

/// The objects of the chart with these values.
pub fn chart(values: &Value) -> Vec<Value> {
    parse(&success(helm(&["template", "sluice"], values)))
}

pub fn lint(values: &Value) {
    success(helm(&["lint", "--strict"], values));
}

/// The error of the chart for these values.
pub fn refusal(values: &Value) -> String {
    let output = helm(&["template", "sluice"], values);
    assert!(!output.status.success(), "the chart accepts {values}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn helm(command: &[&str], values: &Value) -> Output {
    let mut helm = Command::new(tool("helm"));
    helm.args(command).arg(packaging().join("helm/sluice"));
    helm.args(["--namespace", "kube-system", "--kube-version", "v1.36.3", "--values", "-"]);
    output(&mut helm, &values.to_string())
}

/// An installed chart, uninstalled when dropped.
#[derive(Debug)]
pub struct Release<'a>(&'a TestCluster);

impl<'a> Release<'a> {
    /// Installs the chart, which takes over existing objects.
    pub fn install(cluster: &'a TestCluster, values: &Value) -> Self {
        let mut helm = in_cluster(cluster, "install");
        helm.arg(packaging().join("helm/sluice"));
        helm.args(["--take-ownership", "--force-conflicts", "--values", "-"]);
        let installed = cluster.control_plane().namespace.enter(|| output(&mut helm, &values.to_string()));
        assert!(success(installed).contains("is Sluice"), "no notes");
        Self(cluster)
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let mut helm = in_cluster(self.0, "uninstall");
        let removed = self.0.control_plane().namespace.enter(|| output(&mut helm, ""));
        if !std::thread::panicking() {
            success(removed);
        }
    }
}

fn in_cluster(cluster: &TestCluster, command: &str) -> Command {
    let mut helm = Command::new(tool("helm"));
    helm.args([command, "sluice", "--namespace", "kube-system", "--kubeconfig"]);
    helm.arg(cluster.control_plane().folder.join("admin.kubeconfig"));
    // Keeps the machine's own Helm folders untouched.
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        helm.env(variable, cluster.folder().join("helm"));
    }
    helm
}

/// The objects of an overlay.
pub fn overlay(name: &str) -> Vec<Value> {
    build(&packaging().join("kustomize/overlays").join(name))
}

/// The objects of an overlay whose ConfigMap is replaced by these files.
pub fn kustomized(folder: &Path, name: &str, files: &[(&str, &str)]) -> Vec<Value> {
    let own = folder.join("overlay");
    std::fs::create_dir_all(&own).unwrap();
    for (name, content) in files {
        std::fs::write(own.join(name), content).unwrap();
    }
    let names = files.iter().map(|(name, _)| format!("  - {name}\n")).collect::<String>();
    // kustomize refuses absolute paths.
    let up = "../".repeat(own.canonicalize().unwrap().components().count() - 1);
    let base = packaging().join("kustomize/overlays").join(name);
    let base = format!("{up}{}", base.strip_prefix("/").unwrap().display());
    let kustomization = format!(
        "resources:\n- {base}\nconfigMapGenerator:\n- name: kube-proxy\n  namespace: kube-system\n  behavior: merge\n  files:\n{names}"
    );
    std::fs::write(own.join("kustomization.yaml"), kustomization).unwrap();
    build(&own)
}

fn build(folder: &Path) -> Vec<Value> {
    let mut kustomize = Command::new(tool("kustomize"));
    parse(&success(output(kustomize.arg("build").arg(folder), "")))
}

/// Runs a command with `text` as its standard input.
pub fn output(command: &mut Command, text: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The output of a command that must succeed.
pub fn success(output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stderr}\n{stdout}");
    stdout
}
