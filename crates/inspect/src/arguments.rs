//! The table as clap knows it: for subcommands, completions and the manual page.

use clap::{Arg, ArgAction, ArgMatches};
use settings::flags::{Flag, Flags, TABLE};
use settings::gates;

/// Every flag as an argument that any subcommand may take as well.
pub fn arguments() -> Vec<Arg> {
    let mut defaults = Flags::default();
    // That of clap knows about subcommands.
    TABLE.iter().filter(|flag| flag.name != "help").map(|flag| argument(flag, &mut defaults)).collect()
}

fn argument(flag: &Flag, defaults: &mut Flags) -> Arg {
    let slot = (flag.slot)(defaults);
    let mut help = flag.help.to_owned();
    if flag.name == "feature-gates" {
        help = format!("{help}\n{}", gates::help().join("\n"));
    }
    if let Some(text) = slot.default_text() {
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
    // Values are read by the slots themselves: they know how pflag does it.
    let argument = argument.action(ArgAction::Append).value_name(slot.type_name().to_owned());
    match slot.value_when_bare() {
        Some(value) => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(value)
            .value_name("true|false"),
        None => argument.num_args(1).allow_hyphen_values(true),
    }
}

/// What a subcommand was given of them.
pub fn from_matches(matches: &ArgMatches) -> Result<Flags, String> {
    let mut flags = Flags::default();
    for flag in TABLE {
        // A subcommand leaves out what would mean nothing to it.
        let given = matches.try_get_many::<String>(flag.name).ok().flatten();
        for value in given.into_iter().flatten() {
            flags.set(flag, value, &mut |_| ())?;
        }
    }
    Ok(flags)
}
