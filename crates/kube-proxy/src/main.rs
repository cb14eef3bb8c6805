//! The kube-proxy binary: runs a subcommand, or starts the server phase by phase.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::iter::Peekable;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};

use proxy::run::{self, RunOptions};
use settings::config::{self, Completed, Config};
use settings::flags::{self, Flags};
use settings::go::{os_error, quote_list};
use settings::logs::Logs;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let mut arguments =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).peekable();
    if inspect::is_called(arguments.peek().map(String::as_str)) {
        inspect::run(arguments)
    } else {
        serve(arguments)
    }
}

/// Errors that occur before logging starts are printed to standard error; later ones are logged.
fn serve(mut arguments: Peekable<impl Iterator<Item = String>>) -> ExitCode {
    let mut flags = Flags::default();
    let first = arguments.peek().cloned();
    let positional = match flags.parse(arguments, |notice| print_error(&notice)) {
        Ok(positional) => positional,
        Err(error) => {
            print_error(&flags::usage());
            return fail_with_hint(&error, first.as_deref());
        }
    };
    if flags.help {
        return print(&flags::help(&inspect::subcommands()));
    }
    if positional.iter().any(|argument| !argument.is_empty()) {
        let got = quote_list(&positional);
        let error = format!("\"kube-proxy\" does not take any arguments, got {got}");
        return fail_with_hint(&error, positional.first().map(String::as_str));
    }
    if let Some(output) = flags.version.output() {
        return print(&format!("{output}\n"));
    }
    let logs = match Logs::install() {
        Ok(logs) => logs,
        Err(error) => return fail_early(&error.to_string()),
    };
    let outcome = start(flags, &logs);
    if let Err(error) = &outcome {
        tracing::error!(err = format!("{error:#}"), "command failed");
    }
    logs.flush();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fail_early(error: &str) -> ExitCode {
    print_error(&format!("Error: {error}"));
    ExitCode::FAILURE
}

/// Adds a hint if `word`, which may have caused the error, resembles the name of a subcommand.
fn fail_with_hint(error: &str, word: Option<&str>) -> ExitCode {
    let code = fail_early(error);
    if let Some(hint) = word.and_then(inspect::mistyped::hint) {
        print_error(&hint);
    }
    code
}

// A closed standard error or output is not an error of ours, here and in `print`.
fn print_error(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn start(mut flags: Flags, logs: &Logs) -> anyhow::Result<()> {
    let completed = config::complete(&mut flags).context("failed complete")?;
    apply_logging(&completed, logs).context("initialize logging")?;
    flags.log();
    let config = run::validate(completed, &flags).context("failed validate")?;
    let outcome = write_or_run(config, flags, logs);
    if let Err(error) = &outcome {
        tracing::error!(err = format!("{error:#}"), "Error running ProxyServer");
    }
    outcome
}

fn apply_logging(completed: &Completed, logs: &Logs) -> anyhow::Result<()> {
    let settings = config::log_settings(&completed.config.logging, &completed.gates)?;
    logs.apply(settings).context("starting to flush")
}

fn write_or_run(config: Config, flags: Flags, logs: &Logs) -> anyhow::Result<()> {
    if !flags.write_config_to.is_empty() {
        return write_config(&config, &flags.write_config_to);
    }
    run::run(config, RunOptions::new(&flags, logs.clone()))
}

fn write_config(config: &Config, path: &str) -> anyhow::Result<()> {
    let text = config.versioned.to_yaml().map_err(anyhow::Error::msg)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(path)
        .map_err(|error| anyhow!("open {path}: {}", os_error(&error)))?;
    file.write_all(text.as_bytes()).map_err(|error| anyhow!("write {path}: {}", os_error(&error)))?;
    tracing::info!(file = path, "Wrote configuration");
    Ok(())
}
