//! Which crate may be built with which.

use crate::workspace::Workspace;

struct Layer {
    name: &'static str,
    /// Crates of the workspace that it may depend on.
    sees: &'static [&'static str],
    /// What nothing that it is built with may be.
    never: &'static [&'static str],
    why: &'static str,
}

/// What can block, or reach the kernel or the network.
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
    Layer { name: "model", sees: &[], never: BLOCKING, why: "it only decides" },
    Layer { name: "plan", sees: &["model"], never: BLOCKING, why: "it only decides" },
    Layer { name: "netlink", sees: &[], never: KUBERNETES, why: "it knows no Kubernetes" },
    Layer {
        name: "kernel",
        sees: &["model", "netlink", "plan"],
        never: &["k8s-openapi", "kube", "tokio"],
        why: "it only writes and reads",
    },
    Layer { name: "watch", sees: &["model"], never: COMMAND_LINE, why: "it runs in the server" },
    Layer {
        name: "settings",
        sees: &["model"],
        never: COMMAND_LINE,
        why: "flags are read as pflag reads them",
    },
    Layer {
        name: "proxy",
        sees: &["kernel", "model", "plan", "settings", "watch"],
        never: COMMAND_LINE,
        why: "the server knows nothing of subcommands",
    },
    Layer {
        name: "inspect",
        sees: &["kernel", "model", "plan", "proxy", "settings", "watch"],
        never: &[],
        why: "",
    },
    Layer { name: "kube-proxy", sees: &["inspect", "proxy", "settings"], never: &[], why: "" },
    // Tests and tools: the crates above may depend on these in their tests only.
    Layer { name: "testkit", sees: &["model", "netlink"], never: &[], why: "" },
    Layer {
        name: "tests",
        sees: &["kernel", "model", "netlink", "plan", "testkit", "watch"],
        never: &[],
        why: "",
    },
    Layer { name: "fuzz", sees: &["netlink", "plan", "proxy", "settings", "watch"], never: &[], why: "" },
    Layer { name: "layers", sees: &[], never: &[], why: "" },
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
            if !layer.sees.contains(&other.as_str()) {
                violations.push(format!("crate {member} must not depend on {other}"));
            }
        }
        for (other, user) in workspace.all_dependencies(member) {
            if layer.never.contains(&other) {
                violations.push(format!(
                    "crate {member} must not depend on {other} (by way of {user}): {}",
                    layer.why
                ));
            }
        }
    }
    violations
}
