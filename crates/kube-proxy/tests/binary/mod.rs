//! Runs the binary to completion: every call fails early or ends with `--write-config-to`.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

pub const DEFAULT: &str = include_str!("../fixtures/default.yaml");

pub const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// The result of a run.
pub struct RunResult {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    /// The file of `--write-config-to`.
    pub written: Option<String>,
}

/// Runs with `--write-config-to` and these flags.
pub fn run(flags: &[&str]) -> RunResult {
    run_with(None, flags)
}

/// Runs with `--write-config-to`, `--config` and these flags.
pub fn run_with_config(content: &str, flags: &[&str]) -> RunResult {
    run_with(Some(content), flags)
}

/// Runs with `flags` only; for calls that end by themselves.
pub fn run_bare(flags: &[&str]) -> RunResult {
    outcome(kube_proxy(flags).output().unwrap(), None)
}

fn run_with(config: Option<&str>, flags: &[&str]) -> RunResult {
    let directory = TempDir::new().unwrap();
    let target = directory.path().join("written.yaml");
    let mut command = kube_proxy(&["--write-config-to", target.to_str().unwrap()]);
    if let Some(content) = config {
        let path = directory.path().join("config.yaml");
        fs::write(&path, content).unwrap();
        command.arg("--config").arg(path);
    }
    let output = command.args(flags).output().unwrap();
    outcome(output, fs::read_to_string(target).ok())
}

fn kube_proxy(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
    command.args(flags).env("TZ", "UTC");
    command
}

fn outcome(output: Output, written: Option<String>) -> RunResult {
    RunResult {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        written,
    }
}

impl RunResult {
    /// The log lines as severity and message, without the rest of the header.
    pub fn log(&self) -> Vec<String> {
        let severity = |line: &str| line.chars().next().unwrap_or(' ');
        let lines = self.stderr.lines().filter(|line| line.contains("] "));
        lines.map(|line| format!("{} {}", severity(line), line.split_once("] ").unwrap().1)).collect()
    }

    /// The error of the last log line, `"command failed"`.
    pub fn failure(&self) -> String {
        assert_eq!(self.code, 1, "{}", self.stderr);
        let prefix = r#"E "command failed" err="#;
        let last = self.log().last().cloned().unwrap_or_default();
        let quoted = last.strip_prefix(prefix).unwrap_or_else(|| panic!("no failure in:\n{}", self.stderr));
        unquote(quoted)
    }

    pub fn written(&self) -> &str {
        self.written.as_deref().unwrap_or_else(|| panic!("no configuration was written:\n{}", self.stderr))
    }
}

/// Decodes Go's quoting, which equals JSON's for the strings of these tests.
pub fn unquote(quoted: &str) -> String {
    serde_json::from_str(quoted).unwrap_or_else(|_| panic!("not a quoted string: {quoted}"))
}

/// The differences from the default configuration, as `path: value`.
pub fn changes(written: &str) -> Vec<String> {
    let defaults = flatten(DEFAULT);
    let changed = flatten(written);
    assert!(defaults.keys().all(|path| changed.contains_key(path)), "a key is missing from:\n{written}");
    changed
        .into_iter()
        .filter(|(path, value)| defaults.get(path) != Some(value))
        .map(|(path, value)| format!("{path}: {value}"))
        .collect()
}

/// `a:\n  b: 1` becomes `a.b` → `1`; lists keep their lines as one value.
fn flatten(yaml: &str) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let mut parents: Vec<&str> = Vec::new();
    let mut in_list = false;
    for line in yaml.lines() {
        let depth = (line.len() - line.trim_start().len()) / 2;
        in_list = line.trim_start().starts_with("- ") || (in_list && depth >= parents.len());
        if in_list {
            let value: &mut String = values.entry(parents.join(".")).or_default();
            value.push_str(line.trim_start());
            value.push(' ');
            continue;
        }
        parents.truncate(depth);
        let (key, value) = line.trim_start().split_once(':').unwrap();
        parents.push(key);
        if !value.is_empty() {
            values.insert(parents.join("."), value.trim_start().to_owned());
        }
    }
    values.into_iter().map(|(path, value)| (path, value.trim_end().to_owned())).collect()
}
