//! The flags of the proxy as clap arguments, for subcommands, completions and manual pages, and what subcommands read from them.

use anyhow::bail;
use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use proxy::run::{self, RunOptions};
use settings::config::{self, Config};
use settings::flags::{Flag, Flags, TABLE};
use settings::gates;
use settings::logs::{LogSettings, Logs};

/// Flags of the proxy that have no meaning for subcommands.
const SERVER_ONLY: &[&str] = &["cleanup", "init-only", "write-config-to", "version"];

/// Flags that name a source of objects.
const SOURCES: &[&str] = &["manifests", "kubeconfig", "master"];

/// Flags that a subcommand accepts when it queries the running proxy, so that the proxy's command line can be reused; the
/// running proxy uses its own values. The logging flags are accepted, too.
const ACCEPTED_WITHOUT_OBJECTS: &[&str] =
    &["config", "metrics-bind-address", "hostname-override", "v", "vmodule"];

/// Every flag of the proxy as a clap argument.
pub fn of_proxy() -> Vec<Arg> {
    let mut defaults = Flags::default();
    // clap adds its own --help, which covers subcommands.
    TABLE.iter().filter(|flag| flag.name != "help").map(|flag| argument(flag, &mut defaults)).collect()
}

/// The flags of the proxy that a subcommand accepts.
pub fn of_subcommand() -> Vec<Arg> {
    of_proxy().into_iter().filter(|argument| !SERVER_ONLY.contains(&argument.get_id().as_str())).collect()
}

/// The output format, for subcommands that print text or JSON.
pub fn output() -> Arg {
    Arg::new("output")
        .short('o')
        .long("output")
        .value_name("format")
        .value_parser(PossibleValuesParser::new(["text", "json"]))
        .default_value("text")
        .help("Output format")
}

/// Whether [`output`] is JSON.
pub fn is_json(matches: &ArgMatches) -> bool {
    matches.get_one::<String>("output").is_some_and(|format| format == "json")
}

fn argument(flag: &Flag, defaults: &mut Flags) -> Arg {
    let value = (flag.value)(defaults);
    let mut help = flag.help.to_owned();
    if flag.name == "feature-gates" {
        help = format!("{help}\n{}", gates::help().join("\n"));
    }
    if let Some(text) = value.default_text() {
        help = format!("{help} (default {text})");
    }
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .help(help)
        .hide(flag.deprecated.is_some())
        .help_heading("Flags of the proxy");
    let argument = match flag.shorthand {
        Some(short) => argument.short(short),
        None => argument,
    };
    // clap takes the values as text: `FlagValue` parses them as pflag does.
    let argument = argument.action(ArgAction::Append).value_name(value.type_name().to_owned());
    match value.value_when_bare() {
        Some(bare) => {
            argument.num_args(0..=1).require_equals(true).default_missing_value(bare).value_name("true|false")
        }
        None => argument.num_args(1).allow_hyphen_values(true),
    }
}

/// Whether to read objects instead of querying the running proxy. With `--config` alone the running proxy is queried: the
/// file has its address. Flags that the running proxy would ignore are an error.
pub fn reads_objects(matches: &ArgMatches) -> anyhow::Result<bool> {
    let is_given = |flag: &str| matches.value_source(flag) == Some(ValueSource::CommandLine);
    if SOURCES.iter().any(|flag| is_given(flag)) {
        return Ok(true);
    }
    let arguments = of_subcommand();
    let names = arguments.iter().map(|argument| argument.get_id().as_str());
    let ignored = names.filter(|name| {
        !ACCEPTED_WITHOUT_OBJECTS.contains(name) && !name.starts_with("log") && is_given(name)
    });
    let ignored: Vec<String> = ignored.map(|name| format!("--{name}")).collect();
    if !ignored.is_empty() {
        bail!(
            "{}: the proxy that runs on this node is queried, and uses its own flags; omit this, or specify with \
             --manifests, --kubeconfig or --master where to read objects from",
            ignored.join(", ")
        );
    }
    Ok(false)
}

/// The configuration that the proxy would run with, given the same flags. Warnings and errors go to standard error.
pub fn configuration(matches: &ArgMatches) -> anyhow::Result<(Config, RunOptions)> {
    let mut flags = from_matches(matches).map_err(anyhow::Error::msg)?;
    let logs = Logs::install()?;
    // Without this, completing the configuration would log to the terminal.
    logs.apply(LogSettings { quiet: true, ..LogSettings::default() })?;
    let completed = config::complete(&mut flags)?;
    let mut settings = config::log_settings(&completed.config.logging, &completed.gates)?;
    settings.quiet = settings.verbosity == 0;
    logs.apply(settings)?;
    let config = run::validate(completed, &flags)?;
    Ok((config, RunOptions::new(&flags, logs)))
}

/// The flags of the proxy that were given to a subcommand.
fn from_matches(matches: &ArgMatches) -> Result<Flags, String> {
    let mut flags = Flags::default();
    for flag in TABLE {
        // A subcommand does not define flags that have no meaning for it.
        let given = matches.try_get_many::<String>(flag.name).ok().flatten();
        for value in given.into_iter().flatten() {
            flags.set(flag, value, &mut |_| ())?;
        }
    }
    Ok(flags)
}
