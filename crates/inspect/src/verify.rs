//! `kube-proxy verify`: compares the kernel with the desired state, by querying the running proxy or by reading objects.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgMatches, Command};
use proxy::debug_api::VERIFY;
use proxy::debug_api::findings::{Findings, ServedFinding};

use super::arguments::{self, is_json, output};
use super::inputs::{FamilyInputs, desired_state};
use super::objects::ObjectSnapshot;
use super::running;

const EXAMPLES: &str = "\
Queries the proxy that runs on this node at --metrics-bind-address, unless --manifests, --kubeconfig or --master
names a source of objects. In that case it compares the kernel with these objects and needs no running proxy.
Exit code: 0 kernel and plan agree, 2 they differ, 1 error.

Examples:
  kube-proxy verify
  kube-proxy verify --config /var/lib/kube-proxy/config.conf
  kube-proxy verify --proxy-mode nftables --manifests examples/demo -o json";

pub fn command() -> Command {
    Command::new("verify")
        .about("Compare the kernel with the desired state; change nothing")
        .after_help(EXAMPLES)
        .args(arguments::of_subcommand())
        .arg(output())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let reads_objects = arguments::reads_objects(matches)?;
    let (config, options) = arguments::configuration(matches)?;
    let found: Vec<Findings> = if reads_objects {
        let (config, node, all) = FamilyInputs::of(ObjectSnapshot::read(config, &options)?)?;
        let mut found = Vec::new();
        for inputs in &all {
            if let Some(state) = desired_state(inputs, &config, &node)? {
                let rejected = inputs.rejected.clone();
                found.push(Findings { rejected, ..Findings::of(inputs.family, state)? });
            }
        }
        found
    } else {
        let answer = running::ask(config.metrics_bind_address, VERIFY)?;
        serde_json::from_slice(&answer).context("reading the answer of the proxy")?
    };
    let agree = found.iter().all(|found| found.differences.is_empty());
    let text = if is_json(matches) { serde_json::to_string_pretty(&found)? + "\n" } else { show(&found) };
    super::print(&text);
    Ok(if agree { ExitCode::SUCCESS } else { ExitCode::from(super::DIFFERENT) })
}

fn show(found: &[Findings]) -> String {
    let mut text = String::new();
    for Findings { family, objects, differences, served, .. } in found {
        // Writing to a string cannot fail.
        if differences.is_empty() {
            let _ = writeln!(text, "{family}: kernel and plan agree ({objects} objects)");
            continue;
        }
        let _ = writeln!(text, "{family}: {} of {objects} objects differ", differences.len());
        for difference in differences {
            let service = difference.service.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let _ = writeln!(text, "  {} {}{service}", difference.kind, difference.object);
        }
        if !served.is_empty() {
            let _ = writeln!(text, "{family}: effects on services:");
        }
        for ServedFinding { kind, what, service } in served {
            let service = service.as_deref().unwrap_or("(no service)");
            let _ = writeln!(text, "  {service}: {kind} {what}");
        }
    }
    text
}
