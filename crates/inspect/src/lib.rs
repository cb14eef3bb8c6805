//! The subcommands: `kube-proxy explain`, `plan`, `top` and others.
//!
//! ```text
//!   explain, top, verify          ─▶ running ─▶ debug API of the running proxy, at its metrics port
//!   explain, plan, render, verify ─▶ objects, read once ─▶ model ─▶ inputs ─▶ desired state (not for explain)
//! ```
//!
//! Every subcommand accepts the flags of the proxy, so that with the same command line it decides the same.
#![forbid(unsafe_code)]

mod arguments;
mod behaviour;
pub mod completion;
pub mod explain;
mod former_rules;
mod inputs;
pub mod mistyped;
mod objects;
pub mod plan;
pub mod render;
pub mod running;
#[cfg(feature = "top")]
pub mod top;
pub mod verify;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{ArgMatches, Command};

struct Subcommand {
    command: fn() -> Command,
    run: fn(&ArgMatches) -> anyhow::Result<ExitCode>,
}

const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand { command: completion::command, run: completion::run },
    Subcommand { command: explain::command, run: explain::run },
    Subcommand { command: plan::command, run: plan::run },
    Subcommand { command: render::command, run: render::run },
    #[cfg(feature = "top")]
    Subcommand { command: top::command, run: top::run },
    Subcommand { command: verify::command, run: verify::run },
];

/// The exit code of `plan` and `verify` if the kernel differs from the desired state.
const DIFFERENT: u8 = 2;

/// The whole command line: for completions, manual pages and the parsing of subcommands.
pub fn command() -> Command {
    let about = "A kube-proxy: makes the kernel forward connections to Services to the endpoints behind them";
    let command = Command::new("kube-proxy").about(about).args(arguments::of_proxy());
    SUBCOMMANDS.iter().fold(command, |command, subcommand| command.subcommand((subcommand.command)()))
}

/// The name and the description of each subcommand.
pub fn subcommands() -> Vec<(String, String)> {
    let commands = SUBCOMMANDS.iter().map(|subcommand| (subcommand.command)());
    let about = |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
    commands.map(|command| (command.get_name().to_owned(), about(&command))).collect()
}

/// Whether the first argument is a subcommand.
pub fn is_called(first: Option<&str>) -> bool {
    let called = |subcommand: &Subcommand| Some((subcommand.command)().get_name()) == first;
    first == Some("help") || SUBCOMMANDS.iter().any(called)
}

/// Runs a subcommand. It prints errors to standard error and exits with 1.
pub fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let arguments = std::iter::once("kube-proxy".to_owned()).chain(arguments);
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let called = matches.subcommand().and_then(|(name, matches)| {
        let subcommand = SUBCOMMANDS.iter().find(|subcommand| (subcommand.command)().get_name() == name)?;
        Some((subcommand.run)(matches))
    });
    match called {
        Some(Ok(code)) => code,
        Some(Err(error)) => {
            let _ = writeln!(std::io::stderr(), "Error: {error:#}");
            ExitCode::FAILURE
        }
        None => ExitCode::FAILURE,
    }
}

fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "Warning: {text}");
}

/// Ignores errors: a closed standard output is not an error of ours.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
