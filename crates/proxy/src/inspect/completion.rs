//! `kube-proxy completion`: what a shell needs to complete our flags and subcommands; and the manual page.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

const MANUAL: &str = "man";

pub fn command() -> Command {
    let shells = ["bash", "elvish", "fish", "powershell", "zsh", MANUAL];
    Command::new("completion")
        .about("Print the completions for a shell, or the manual page")
        .after_help("For bash: kube-proxy completion bash > /etc/bash_completion.d/kube-proxy")
        .arg(Arg::new("for").required(true).value_parser(PossibleValuesParser::new(shells)))
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let wanted = matches.get_one::<String>("for").map(String::as_str).unwrap_or_default();
    let mut text = Vec::new();
    if wanted == MANUAL {
        clap_mangen::Man::new(super::command()).render(&mut text).context("writing the manual page")?;
    } else {
        let shell: Shell = wanted.parse().map_err(anyhow::Error::msg)?;
        clap_complete::generate(shell, &mut super::command(), "kube-proxy", &mut text);
    }
    // clap_complete takes the dash in our name for one between two subcommands, in one of two places.
    super::print(&String::from_utf8_lossy(&text).replace("kube__subcmd__proxy", "kube__proxy"));
    Ok(ExitCode::SUCCESS)
}
