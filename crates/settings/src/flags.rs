//! The command line, parsed as pflag parses it.
//!
//! One [table](table) describes every flag for the parser, `--help`, the `FLAG:` lines of the log and `/flagz`. The values
//! are stored in [`Flags`], most of them in the configuration object that it contains.

#[cfg(test)]
mod chapters;
mod help;
mod table;
mod value;

use std::collections::BTreeSet;

use crate::config::KubeProxyConfiguration;
use crate::config::defaults::{HEALTHZ_PORT, METRICS_PORT};
use crate::duration::Duration;
use crate::go::quote;
use crate::logs::PLAIN;
use crate::version::VersionFlag;

pub use help::{help, usage};
pub use table::TABLE;
pub use value::FlagValue;

/// The default of `--audit-interval`.
const AUDIT_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);

/// The values of all flags.
#[derive(Clone, Debug)]
pub struct Flags {
    /// The configuration that the flags yield; ignored if `--config` names a file.
    pub config: KubeProxyConfiguration,
    pub config_file: String,
    pub write_config_to: String,
    pub cleanup: bool,
    pub init_only: bool,
    pub help: bool,
    pub version: VersionFlag,
    pub master: String,
    pub manifests: String,
    pub audit_interval: Duration,
    pub connection_metrics: bool,
    pub hostname_override: String,
    pub cluster_cidr: String,
    pub masquerade_all: bool,
    pub iptables_sync_period: Duration,
    pub iptables_min_sync_period: Duration,
    pub ipvs_sync_period: Duration,
    pub ipvs_min_sync_period: Duration,
    pub healthz_port: i32,
    pub metrics_port: i32,
    // Accepted for compatibility: upstream ignores them as well.
    boot_id_file: String,
    machine_id_file: String,
    /// Names of the flags on the command line.
    given: BTreeSet<&'static str>,
}

impl Default for Flags {
    fn default() -> Self {
        let config = KubeProxyConfiguration::with_defaults();
        Self {
            // Upstream uses the iptables defaults for the ipvs flags, too.
            iptables_sync_period: config.iptables.sync_period,
            iptables_min_sync_period: config.iptables.min_sync_period,
            ipvs_sync_period: config.iptables.sync_period,
            ipvs_min_sync_period: config.iptables.min_sync_period,
            config,
            config_file: String::new(),
            write_config_to: String::new(),
            cleanup: false,
            init_only: false,
            help: false,
            version: VersionFlag::default(),
            master: String::new(),
            manifests: String::new(),
            audit_interval: Duration::from(AUDIT_INTERVAL),
            connection_metrics: false,
            hostname_override: String::new(),
            cluster_cidr: String::new(),
            masquerade_all: false,
            healthz_port: HEALTHZ_PORT,
            metrics_port: METRICS_PORT,
            boot_id_file: "/proc/sys/kernel/random/boot_id".to_owned(),
            machine_id_file: "/etc/machine-id,/var/lib/dbus/machine-id".to_owned(),
            given: BTreeSet::new(),
        }
    }
}

#[derive(Debug)]
pub struct Flag {
    pub name: &'static str,
    pub shorthand: Option<char>,
    pub help: &'static str,
    /// What to use instead. A deprecated flag is not listed by `--help`.
    pub deprecated: Option<&'static str>,
    /// Where the value is stored.
    pub value: fn(&mut Flags) -> FlagValue<'_>,
}

impl Flag {
    /// The name that pflag's errors print.
    fn title(&self) -> String {
        match self.shorthand {
            Some(short) => format!("-{short}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }
}

impl Flags {
    /// Parses the arguments and returns the positional ones. Calls `warn` for every deprecated flag.
    pub fn parse(
        &mut self,
        arguments: impl IntoIterator<Item = String>,
        mut warn: impl FnMut(String),
    ) -> Result<Vec<String>, String> {
        let mut positional = Vec::new();
        let mut rest = arguments.into_iter();
        while let Some(argument) = rest.next() {
            if argument == "--" {
                positional.extend(rest);
                break;
            }
            if let Some(long) = argument.strip_prefix("--") {
                self.parse_long(long, &mut rest, &mut warn)?;
            } else if argument.len() > 1 && argument.starts_with('-') {
                self.parse_short(&argument, &mut rest, &mut warn)?;
            } else {
                positional.push(argument);
            }
        }
        Ok(positional)
    }

    fn parse_long(
        &mut self,
        argument: &str,
        rest: &mut impl Iterator<Item = String>,
        warn: &mut impl FnMut(String),
    ) -> Result<(), String> {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (argument, None),
        };
        if name.is_empty() || name.starts_with('-') {
            return Err(format!("bad flag syntax: --{argument}"));
        }
        let normalized = name.replace('_', "-");
        let flag = TABLE.iter().find(|flag| flag.name == normalized);
        let flag = flag.ok_or_else(|| format!("unknown flag: --{name}"))?;
        let value = value
            .or_else(|| (flag.value)(self).value_when_bare().map(str::to_owned))
            .or_else(|| rest.next())
            .ok_or_else(|| format!("flag needs an argument: --{name}"))?;
        self.set(flag, &value, warn)
    }

    /// Parses one or more shorthand letters after a dash. The first that takes a value takes the rest of the argument.
    fn parse_short(
        &mut self,
        argument: &str,
        rest: &mut impl Iterator<Item = String>,
        warn: &mut impl FnMut(String),
    ) -> Result<(), String> {
        let mut letters = argument.chars();
        letters.next();
        while let Some(letter) = letters.next() {
            let within = format!("-{letter}{}", letters.as_str());
            let flag = TABLE.iter().find(|flag| flag.shorthand == Some(letter));
            let flag = flag.ok_or_else(|| format!("unknown shorthand flag: {letter:?} in {within}"))?;
            let attached = letters.as_str();
            let value = match attached.strip_prefix('=') {
                // A lone `=` is a value, not a separator.
                Some(value) if !value.is_empty() => Some(value.to_owned()),
                _ => {
                    let bare = (flag.value)(self).value_when_bare();
                    if let Some(value) = bare {
                        self.set(flag, value, warn)?;
                        continue;
                    }
                    if attached.is_empty() { rest.next() } else { Some(attached.to_owned()) }
                }
            };
            let value = value.ok_or_else(|| format!("flag needs an argument: {letter:?} in {within}"))?;
            return self.set(flag, &value, warn);
        }
        Ok(())
    }

    /// Sets the value of a flag. Calls `warn` if the flag is deprecated.
    pub fn set(&mut self, flag: &Flag, value: &str, warn: &mut impl FnMut(String)) -> Result<(), String> {
        let append = self.given.contains(flag.name);
        (flag.value)(self).set(value, append).map_err(|error| {
            format!("invalid argument {} for {:?} flag: {error}", quote(value), flag.title())
        })?;
        self.given.insert(flag.name);
        if let Some(advice) = flag.deprecated {
            warn(format!("Flag --{} has been deprecated, {advice}", flag.name));
        }
        Ok(())
    }

    /// Whether the flag was on the command line.
    pub fn given(&self, name: &str) -> bool {
        self.given.contains(name)
    }

    /// Name and value of every flag, sorted by name.
    pub fn values(&self) -> Vec<(&'static str, String)> {
        let mut flags = self.clone();
        TABLE.iter().map(|flag| (flag.name, (flag.value)(&mut flags).text())).collect()
    }

    pub fn log(&self) {
        for (name, value) in self.values() {
            tracing::info!(target: PLAIN, v = 1, "FLAG: --{name}={}", quote(&value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<(Flags, Vec<String>), String> {
        let mut flags = Flags::default();
        let positional = flags.parse(arguments.iter().map(|&argument| argument.to_owned()), |_| ())?;
        Ok((flags, positional))
    }

    #[test]
    fn the_table_is_sorted_and_names_are_unique() {
        assert!(TABLE.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn every_notation_of_pflag_is_parsed() {
        for arguments in
            [&["--v=2"][..], &["--v", "2"], &["-v=2"], &["-v2"], &["-v", "2"], &["--v=7", "--v=2"], &["-hv2"]]
        {
            assert_eq!(parse(arguments).unwrap().0.config.logging.verbosity, 2, "{arguments:?}");
        }
        for (arguments, want) in [
            (&["--cleanup"][..], true),
            (&["--cleanup=T"], true),
            (&["--cleanup=false"], false),
            (&["--cleanup", "--cleanup=0"], false),
        ] {
            assert_eq!(parse(arguments).unwrap().0.cleanup, want, "{arguments:?}");
        }
        assert_eq!(parse(&["--bind_address=::1"]).unwrap().0.config.bind_address, "::1");
    }

    #[test]
    fn a_boolean_does_not_take_the_next_argument() {
        let (flags, positional) = parse(&["--cleanup", "false", "", "-", "--", "--v=2"]).unwrap();
        assert!(flags.cleanup);
        assert_eq!(positional, ["false", "", "-", "--v=2"]);
    }
}
