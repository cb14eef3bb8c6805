//! The flags of the proxy as clap arguments, for subcommands, completions and manual pages.

use clap::{Arg, ArgAction, ArgMatches};
use settings::flags::{Flag, Flags, TABLE};
use settings::gates;

/// Every flag of the proxy as a clap argument.
pub fn arguments() -> Vec<Arg> {
    let mut defaults = Flags::default();
    // clap adds its own --help, which covers subcommands.
    TABLE.iter().filter(|flag| flag.name != "help").map(|flag| argument(flag, &mut defaults)).collect()
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

/// The flags of the proxy that were given to a subcommand.
pub fn from_matches(matches: &ArgMatches) -> Result<Flags, String> {
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
