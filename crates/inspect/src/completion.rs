//! `kube-proxy completion`: shell completions for flags and subcommands, and the manual pages.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

const MANUAL: &str = "man";

pub fn command() -> Command {
    let shells = ["bash", "elvish", "fish", "powershell", "zsh", MANUAL];
    Command::new("completion")
        .about("Print the completion script of a shell, or a manual page")
        .after_help(
            "For bash: kube-proxy completion bash > /etc/bash_completion.d/kube-proxy\n\
             Manual page of a subcommand: kube-proxy completion man explain | man -l -",
        )
        .arg(Arg::new("for").required(true).value_parser(PossibleValuesParser::new(shells)))
        .arg(Arg::new("subcommand").help("The subcommand whose manual page to print"))
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let format = matches.get_one::<String>("for").map(String::as_str).unwrap_or_default();
    let subcommand = matches.get_one::<String>("subcommand");
    let text = match subcommand {
        None if format == MANUAL => page(super::command())?,
        None => script(format)?,
        Some(name) if format == MANUAL => page_of(name)?,
        Some(name) => bail!("the completions of {format} contain all subcommands: omit {name:?}"),
    };
    super::print(&text);
    Ok(ExitCode::SUCCESS)
}

fn script(shell: &str) -> anyhow::Result<String> {
    let shell: Shell = shell.parse().map_err(anyhow::Error::msg)?;
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "kube-proxy", &mut text);
    // In one of two places clap_complete mistakes the dash in our name for one between two subcommands.
    Ok(String::from_utf8_lossy(&text).replace("kube__subcmd__proxy", "kube__proxy"))
}

fn page_of(name: &str) -> anyhow::Result<String> {
    let mut whole = super::command();
    // `build` sets the display names of subcommands.
    whole.build();
    let command = whole.find_subcommand(name).with_context(|| format!("unknown subcommand {name:?}"))?;
    let title = command.get_display_name().unwrap_or(name).to_owned();
    page(command.clone().name(title))
}

fn page(command: Command) -> anyhow::Result<String> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).context("writing the manual page")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
