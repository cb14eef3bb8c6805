//! `--help`, and the usage that is printed before a parse error, in pflag's layout.

use super::{Flag, Flags, TABLE};
use crate::gates;

const DESCRIPTION: &str = "\
Sluice is a kube-proxy: it runs on every node of a Kubernetes cluster and makes the
kernel forward connections to Services to the endpoints behind them, following the
Service and EndpointSlice objects of the API server. It takes the flags and the
configuration file of the kube-proxy it replaces.
";

/// The output of `--help`. `subcommands` are pairs of name and description.
pub fn help(subcommands: &[(String, String)]) -> String {
    let mut commands = String::from("Commands (see kube-proxy COMMAND --help):\n");
    for (name, about) in subcommands {
        commands.push_str(&format!("  kube-proxy {name:<11} {about}\n"));
    }
    format!("{DESCRIPTION}\n{commands}\n{}", usage())
}

/// One line per flag, with the flags in the first column and their help in the second.
pub fn usage() -> String {
    let mut defaults = Flags::default();
    let visible = TABLE.iter().filter(|flag| flag.deprecated.is_none());
    let lines: Vec<_> = visible.map(|flag| (left(flag, &mut defaults), right(flag, &mut defaults))).collect();
    let width = lines.iter().map(|(left, _)| left.len()).max().unwrap_or_default();
    let mut text = String::from("Usage:\n  kube-proxy [flags]\n\nFlags:\n");
    for (left, right) in lines {
        let right = right.replace('\n', &format!("\n{:width$}   ", ""));
        text.push_str(&format!("{left:width$}   {right}\n"));
    }
    text
}

fn left(flag: &Flag, defaults: &mut Flags) -> String {
    let names = match flag.shorthand {
        Some(short) => format!("  -{short}, --{}", flag.name),
        None => format!("      --{}", flag.name),
    };
    let type_name = (flag.value)(defaults).type_name();
    if type_name.is_empty() { names } else { format!("{names} {type_name}") }
}

fn right(flag: &Flag, defaults: &mut Flags) -> String {
    let default = (flag.value)(defaults).default_text().map(|text| format!(" (default {text})"));
    let options =
        if flag.name == "feature-gates" { format!("\n{}", gates::help().join("\n")) } else { String::new() };
    format!("{}{options}{}", flag.help, default.unwrap_or_default())
}
