//! The workspace, as `cargo metadata` describes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

#[derive(Debug)]
pub struct Workspace {
    /// Names of the workspace's own crates.
    pub members: BTreeSet<String>,
    /// The direct dependencies of each crate, without dev- and build-dependencies.
    pub dependencies: BTreeMap<String, BTreeSet<String>>,
    pub targets: Vec<Target>,
}

/// A library or a binary of a member.
#[derive(Debug)]
pub struct Target {
    pub name: String,
    pub file: PathBuf,
    pub is_library: bool,
}

impl Workspace {
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // One platform, so that the result does not depend on the host.
        let arguments = ["metadata", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"];
        let output = Command::new(cargo)
            .args(arguments)
            .current_dir(root)
            .output()
            .context("running cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        Self::parse(&serde_json::from_slice(&output.stdout)?)
            .context("cargo metadata has an unexpected format")
    }

    fn parse(metadata: &Value) -> Option<Self> {
        let packages = metadata["packages"].as_array()?;
        let name_of: BTreeMap<&str, &str> = packages
            .iter()
            .filter_map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)))
            .collect();
        let ids: BTreeSet<&str> =
            metadata["workspace_members"].as_array()?.iter().filter_map(Value::as_str).collect();
        let mut dependencies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in metadata["resolve"]["nodes"].as_array()? {
            let direct = dependencies.entry((*name_of.get(node["id"].as_str()?)?).to_owned()).or_default();
            for dependency in node["deps"].as_array()? {
                let is_normal = |kind: &Value| kind["kind"].is_null();
                if dependency["dep_kinds"].as_array()?.iter().any(is_normal) {
                    direct.insert((*name_of.get(dependency["pkg"].as_str()?)?).to_owned());
                }
            }
        }
        let mut targets = Vec::new();
        for package in
            packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| ids.contains(id)))
        {
            for target in package["targets"].as_array()? {
                let kinds: Vec<&str> = target["kind"].as_array()?.iter().filter_map(Value::as_str).collect();
                let is_library = kinds.contains(&"lib");
                if is_library || kinds.contains(&"bin") {
                    let (name, file) =
                        (target["name"].as_str()?.to_owned(), target["src_path"].as_str()?.into());
                    targets.push(Target { name, file, is_library });
                }
            }
        }
        let members = ids.iter().filter_map(|id| name_of.get(id)).map(|name| (*name).to_owned()).collect();
        Some(Self { members, dependencies, targets })
    }

    /// The direct and indirect dependencies of a crate, each with a crate that depends on it directly.
    pub fn all_dependencies(&self, name: &str) -> BTreeMap<&str, &str> {
        let mut found: BTreeMap<&str, &str> = BTreeMap::new();
        let Some((name, _)) = self.dependencies.get_key_value(name) else { return found };
        let mut open = vec![name.as_str()];
        while let Some(user) = open.pop() {
            for used in self.dependencies.get(user).into_iter().flatten() {
                if !found.contains_key(used.as_str()) {
                    found.insert(used, user);
                    open.push(used);
                }
            }
        }
        found
    }
}
