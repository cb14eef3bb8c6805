//! Checks the dependencies of each crate.

use crate::workspace::Workspace;

struct Layer {
    name: &'static str,
    /// Crates of the workspace that it may depend on directly.
    allowed: &'static [&'static str],
    /// Crates that it must not depend on, directly or indirectly.
    forbidden: &'static [&'static str],
    /// Why they are forbidden.
    reason: &'static str,
}

/// Crates that can block, or access the kernel or the network.
const BLOCKING: &[&str] = &[
    "async-std",
    "crossbeam-channel",
    "hyper",
    "kube",
    "libc",
    "mio",
    "nix",
    "reqwest",
    "rustix",
    "signal-hook",
    "smol",
    "socket2",
    "tokio",
    "tracing",
    "ureq",
];
const KUBERNETES: &[&str] = &["k8s-openapi", "kube", "kube-client", "kube-core", "serde", "serde_json"];
const COMMAND_LINE: &[&str] =
    &["clap", "clap_builder", "clap_complete", "clap_mangen", "crossterm", "ratatui"];

const LAYERS: &[Layer] = &[
    Layer { name: "model", allowed: &[], forbidden: BLOCKING, reason: "it is pure" },
    Layer { name: "plan", allowed: &["model"], forbidden: BLOCKING, reason: "it is pure" },
    Layer {
        name: "netlink",
        allowed: &[],
        forbidden: KUBERNETES,
        reason: "it does not depend on Kubernetes",
    },
    Layer {
        name: "kernel",
        allowed: &["model", "netlink", "plan"],
        forbidden: &["k8s-openapi", "kube", "tokio"],
        reason: "it only reads and writes the kernel",
    },
    Layer { name: "watch", allowed: &["model"], forbidden: COMMAND_LINE, reason: "it is part of the server" },
    Layer {
        name: "settings",
        allowed: &["model"],
        forbidden: COMMAND_LINE,
        reason: "it parses flags as pflag does",
    },
    Layer {
        name: "proxy",
        allowed: &["kernel", "model", "plan", "settings", "watch"],
        forbidden: COMMAND_LINE,
        reason: "the server does not depend on the subcommands",
    },
    Layer {
        name: "inspect",
        allowed: &["kernel", "model", "plan", "proxy", "settings", "watch"],
        forbidden: &[],
        reason: "",
    },
    Layer { name: "kube-proxy", allowed: &["inspect", "proxy", "settings"], forbidden: &[], reason: "" },
    // Tests and tools. The crates above may use these as dev-dependencies only.
    Layer { name: "testkit", allowed: &["model", "netlink"], forbidden: &[], reason: "" },
    Layer {
        name: "tests",
        allowed: &["kernel", "model", "netlink", "plan", "proxy", "settings", "testkit", "watch"],
        forbidden: &[],
        reason: "",
    },
    Layer {
        name: "fuzz",
        allowed: &["netlink", "plan", "proxy", "settings", "watch"],
        forbidden: &[],
        reason: "",
    },
    Layer { name: "layers", allowed: &[], forbidden: &[], reason: "" },
];

pub fn check(workspace: &Workspace) -> Vec<String> {
    let mut violations = Vec::new();
    for member in &workspace.members {
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == member) else {
            violations
                .push(format!("crate {member} has no layer: add it to hack/layers/src/dependencies.rs"));
            continue;
        };
        let direct = workspace.dependencies.get(member).into_iter().flatten();
        for other in direct.filter(|other| workspace.members.contains(*other)) {
            if !layer.allowed.contains(&other.as_str()) {
                violations.push(format!("crate {member} must not depend on {other}"));
            }
        }
        for (other, user) in workspace.all_dependencies(member) {
            if layer.forbidden.contains(&other) {
                violations.push(format!(
                    "crate {member} must not depend on {other} (through {user}): {}",
                    layer.reason
                ));
            }
        }
    }
    violations
}
