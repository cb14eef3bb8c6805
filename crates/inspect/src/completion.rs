//! `kube-proxy completion`: what a shell needs to complete our flags and subcommands; and the manual pages.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

const MANUAL: &str = "man";

pub fn command() -> Command {
    let shells = ["bash", "elvish", "fish", "powershell", "zsh", MANUAL];
    Command::new("completion")
        .about("Print the completions for a shell, or a page of the manual")
        .after_help(
            "For bash: kube-proxy completion bash > /etc/bash_completion.d/kube-proxy\n\
             The page of a subcommand: kube-proxy completion man explain | man -l -",
        )
        .arg(Arg::new("for").required(true).value_parser(PossibleValuesParser::new(shells)))
        .arg(Arg::new("subcommand").help("Whose page of the manual, if not the main one"))
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let wanted = matches.get_one::<String>("for").map(String::as_str).unwrap_or_default();
    let subcommand = matches.get_one::<String>("subcommand");
    let text = match subcommand {
        None if wanted == MANUAL => page(super::command())?,
        None => script(wanted)?,
        Some(name) if wanted == MANUAL => page_of(name)?,
        Some(name) => bail!("completions for {wanted} hold all subcommands: leave out {name:?}"),
    };
    super::print(&text);
    Ok(ExitCode::SUCCESS)
}

fn script(shell: &str) -> anyhow::Result<String> {
    let shell: Shell = shell.parse().map_err(anyhow::Error::msg)?;
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "kube-proxy", &mut text);
    // clap_complete takes the dash in our name for one between two subcommands, in one of two places.
    Ok(String::from_utf8_lossy(&text).replace("kube__subcmd__proxy", "kube__proxy"))
}

fn page_of(name: &str) -> anyhow::Result<String> {
    let mut whole = super::command();
    // Only then does it know what it is called as a part of the whole.
    whole.build();
    let command = whole.find_subcommand(name).with_context(|| format!("there is no subcommand {name:?}"))?;
    let title = command.get_display_name().unwrap_or(name).to_owned();
    page(command.clone().name(title))
}

fn page(command: Command) -> anyhow::Result<String> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).context("writing the manual page")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
