//! Embeds the commit and the compiler version in the binary. A source archive has no commit.

use std::path::Path;
use std::process::Command;

fn main() {
    // An unpacked archive may lie in a repository of something else: only our own counts.
    let git = |arguments| Path::new("../../.git").exists().then(|| run("git", arguments)).flatten();
    let commit = git(&["rev-parse", "HEAD"]);
    let tree_state = match (&commit, git(&["status", "--porcelain", "--untracked-files=no"]).as_deref()) {
        (Some(_), Some("")) => "clean",
        (Some(_), _) => "dirty",
        (None, _) => "archive",
    };
    // The date of the commit rather than today's, so that builds are reproducible.
    let date = git(&["log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"]);
    let rustc = std::env::var("RUSTC").ok().and_then(|rustc| run(&rustc, &["--version"]));

    println!("cargo::rustc-env=SLUICE_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=SLUICE_TREE_STATE={tree_state}");
    println!("cargo::rustc-env=SLUICE_BUILD_DATE={}", date.as_deref().unwrap_or("1970-01-01T00:00:00Z"));
    println!("cargo::rustc-env=SLUICE_RUSTC={}", rustc.as_deref().unwrap_or("rustc"));
    println!("cargo::rerun-if-changed=build.rs");
    for file in ["../../.git/logs/HEAD", "../../.git/index"] {
        if Path::new(file).exists() {
            println!("cargo::rerun-if-changed={file}");
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    // `git status` would update the index, which makes cargo run this script again.
    let environment = [("TZ", "UTC"), ("GIT_OPTIONAL_LOCKS", "0")];
    let output = Command::new(program).args(arguments).envs(environment).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
