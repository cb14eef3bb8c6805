//! What an operator asks: `kube-proxy explain`, `plan`, `top` and the like.
//!
//! ```text
//!   explain, top, verify ─▶ running ─▶ the proxy of this node answers at its metrics port
//!   explain, plan, render, verify ─▶ desired ─▶ the objects are read once, and the model is asked
//! ```
//!
//! Every subcommand takes every flag of the proxy, so that it can be given the same command line and decides the same.
#![forbid(unsafe_code)]

mod arguments;
mod behaviour;
pub mod completion;
pub mod desired;
pub mod explain;
pub mod mistyped;
pub mod plan;
pub mod render;
mod rulings;
pub mod running;
#[cfg(feature = "top")]
pub mod top;
pub mod verify;
pub use std::io::Write as _;
use std::process::ExitCode;

use clap::{ArgMatches, Command};

/// One subcommand.
struct Tool {
    command: fn() -> Command,
    run: fn(&ArgMatches) -> anyhow::Result<ExitCode>,
}

const TOOLS: &[Tool] = &[
    Tool { command: completion::command, run: completion::run },
    Tool { command: explain::command, run: explain::run },
    Tool { command: plan::command, run: plan::run },
    Tool { command: render::command, run: render::run },
    #[cfg(feature = "top")]
    Tool { command: top::command, run: top::run },
    Tool { command: verify::command, run: verify::run },
];

/// The answer to "does it differ?" if it does.
const DIFFERENT: u8 = 2;

/// The whole command line: for completions, the manual, and to read what subcommands are given.
pub fn command() -> Command {
    let about = "A kube-proxy: makes the kernel forward connections to Services to the endpoints behind them";
    let command = Command::new("kube-proxy").about(about).args(arguments::arguments());
    TOOLS.iter().fold(command, |command, tool| command.subcommand((tool.command)()))
}

/// Each subcommand's name and what it is for.
pub fn subcommands() -> Vec<(String, String)> {
    let commands = TOOLS.iter().map(|tool| (tool.command)());
    let about = |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
    commands.map(|command| (command.get_name().to_owned(), about(&command))).collect()
}

/// Whether the first argument calls for one of the subcommands.
pub fn is_called(first: Option<&str>) -> bool {
    let called = |tool: &Tool| Some((tool.command)().get_name()) == first;
    first == Some("help") || TOOLS.iter().any(called)
}

/// Runs the subcommand that the arguments call for. What it has to say goes to standard output, what goes wrong to
/// standard error; 1 is the answer to everything that went wrong.
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
        let tool = TOOLS.iter().find(|tool| (tool.command)().get_name() == name)?;
        Some((tool.run)(matches))
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

/// A reader that has gone away is no error of ours.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
