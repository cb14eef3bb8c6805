//! The drawing in ARCHITECTURE.md, as a check: `make check` runs it over the workspace.
//!
//! ```text
//!   cargo metadata ─▶ dependencies   which crate may depend on which
//!   source files   ─▶ modules        no cycle of more than three modules
//!                  ─▶ names          no two public types with one name, but for those in names.txt
//! ```
//!
//! `layers --shrink` takes out of `names.txt` what is no longer so.

mod dependencies;
mod modules;
mod names;
mod source;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use workspace::Workspace;

fn main() -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let shrink = std::env::args().any(|argument| argument == "--shrink");
    let violations = check(&root, shrink)?;
    for violation in &violations {
        eprintln!("layers: {violation}");
    }
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Each violation in the workspace at `root`, as text for its author.
fn check(root: &Path, shrink: bool) -> anyhow::Result<Vec<String>> {
    let workspace = Workspace::read(root)?;
    let mut violations = dependencies::check(&workspace);
    let mut types = Vec::new();
    for target in &workspace.targets {
        let found = source::read(root, &target.file).with_context(|| format!("reading {}", target.name))?;
        violations.extend(modules::check(&found));
        if target.is_library {
            types.extend(found.into_iter().flat_map(|module| module.types));
        }
    }
    let list: PathBuf = root.join("hack/layers/names.txt");
    let known = std::fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let names = names::Names::of(&types);
    if shrink {
        std::fs::write(&list, names.shrunk(&known)).with_context(|| format!("writing {}", list.display()))?;
    } else {
        violations.extend(names.check(&known));
    }
    Ok(violations)
}

#[cfg(test)]
mod tests;
