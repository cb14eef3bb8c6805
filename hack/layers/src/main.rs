//! Checks that the workspace follows ARCHITECTURE.md. `make check` runs it.
//!
//! ```text
//!   cargo metadata ─▶ dependencies   which crate may depend on which
//!   source files   ─▶ modules        no cycle of more than three modules
//!                  ─▶ names          no two public types with the same name, except those in names.txt
//! ```
//!
//! `layers --shrink` removes names from `names.txt` that are no longer shared.

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

/// The violations in the workspace at `root`, one message each.
fn check(root: &Path, shrink: bool) -> anyhow::Result<Vec<String>> {
    let workspace = Workspace::read(root)?;
    let mut violations = dependencies::check(&workspace);
    let mut types = Vec::new();
    for target in &workspace.targets {
        let modules = source::read(root, &target.file).with_context(|| format!("reading {}", target.name))?;
        violations.extend(modules::check(&modules));
        if target.is_library {
            types.extend(modules.into_iter().flat_map(|module| module.types));
        }
    }
    let file: PathBuf = root.join("hack/layers/names.txt");
    let list = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let names = names::Names::of(&types);
    if shrink {
        std::fs::write(&file, names.shrunk(&list)).with_context(|| format!("writing {}", file.display()))?;
    } else {
        violations.extend(names.check(&list));
    }
    Ok(violations)
}

#[cfg(test)]
mod tests;
