//! Which features the installed iptables has, according to its version.

use super::error::Error;
use super::exec::Exec;
use super::runner::Names;

/// How the commands write rules into the kernel. The texts are the same, but their costs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Each change reads and writes a whole table under a lock.
    Legacy,
    /// On top of nf_tables. Changes are transactions, and the kernel notifies of them.
    Nft,
}

/// The features that depend on the version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    pub variant: Variant,
    /// Whether `-C` exists.
    pub check: bool,
    pub random_fully: bool,
    /// The arguments that make `iptables` wait for the lock.
    pub wait: &'static [&'static str],
    /// The same for `iptables-restore`. Empty if we have to take the lock ourselves.
    pub restore_wait: &'static [&'static str],
}

impl Features {
    /// A version that cannot be parsed has no features. An error if the command could not run, since the result holds until this
    /// process exits, and a busy command must not pass for an old one.
    pub fn detect(exec: &dyn Exec, names: Names) -> Result<Self, Error> {
        let output = exec.run(names.iptables, &["--version"], &[])?.output();
        let version = parse(&output).unwrap_or_default();
        let is_at_least = |minimum: &[u32]| version.as_slice() >= minimum;
        let has_restore_wait = is_at_least(&[1, 6, 2]);
        Ok(Self {
            variant: if output.contains("nf_tables") { Variant::Nft } else { Variant::Legacy },
            check: is_at_least(&[1, 4, 11]),
            random_fully: is_at_least(&[1, 6, 2]),
            wait: match () {
                () if is_at_least(&[1, 4, 22]) => &["-w", "5"],
                () if is_at_least(&[1, 4, 20]) => &["-w"],
                () => &[],
            },
            restore_wait: match () {
                () if has_restore_wait => &["-w", "5"],
                () if has_backported_wait(exec, names) => &["-w"],
                () => &[],
            },
        })
    }
}

/// Distributions backported the option to wait to old versions of `iptables-restore`, together with `--version`. A version without
/// either ignores the option and reads rules, so its input has to be empty.
fn has_backported_wait(exec: &dyn Exec, names: Names) -> bool {
    let finished = exec.run(names.restore, &["--version"], &[]);
    finished.is_ok_and(|finished| parse(&finished.output()).is_some())
}

/// The numbers after the first `v` that is followed by at least two of them.
fn parse(output: &str) -> Option<Vec<u32>> {
    output.split('v').skip(1).find_map(|after| {
        let end = after.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(after.len());
        let numbers = after.get(..end)?.trim_end_matches('.').split('.');
        let numbers: Option<Vec<u32>> = numbers.map(|number| number.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() >= 2)
    })
}

#[cfg(test)]
mod tests {
    use model::address::Family;

    use super::*;
    use crate::iptables::fake::Script;

    #[test]
    fn versions_are_found_in_the_output() {
        for (output, want) in [
            ("iptables v1.8.9 (nf_tables)\n", Some(vec![1, 8, 9])),
            ("iptables v1.4.7", Some(vec![1, 4, 7])),
            ("ip6tables v1.10", Some(vec![1, 10])),
            ("valid, v2", None),
            ("total nonsense", None),
            ("", None),
        ] {
            assert_eq!(parse(output), want, "{output}");
        }
    }

    // Upstream's TestNew, TestGetIPTablesHasCheckCommand, TestIPTablesWaitFlag and TestGetIPTablesRestoreWaitFlag.
    #[test]
    fn features_follow_from_the_version() {
        type Flags = &'static [&'static str];
        let old: Flags = &[];
        for (version, check, random_fully, wait, restore_wait) in [
            ("1.4.0", false, false, old, old),
            ("1.4.10", false, false, old, old),
            ("1.4.11", true, false, old, old),
            ("1.4.19.1", true, false, old, old),
            ("1.4.20", true, false, &["-w"][..], old),
            ("1.4.21", true, false, &["-w"], old),
            ("1.4.22", true, false, &["-w", "5"], old),
            ("1.5.0", true, false, &["-w", "5"], old),
            ("1.6.1", true, false, &["-w", "5"], old),
            ("1.6.2", true, true, &["-w", "5"], &["-w", "5"][..]),
            ("1.8.9 (legacy)", true, true, &["-w", "5"], &["-w", "5"]),
            ("2.0.0", true, true, &["-w", "5"], &["-w", "5"]),
        ] {
            let script = Script::default().prints("iptables --version", &format!("iptables v{version}"));
            let script = script.fails("iptables-restore --version", 1, "unrecognized option");
            let features = Features::detect(&script, Names::of(Family::V4)).unwrap();
            let want = Features { variant: Variant::Legacy, check, random_fully, wait, restore_wait };
            assert_eq!(features, want, "{version}");
        }
    }

    #[test]
    fn a_restore_that_prints_its_version_can_wait() {
        let script = Script::default()
            .prints("iptables --version", "iptables v1.4.21")
            .prints("iptables-restore --version", "iptables-restore v1.4.21");
        assert_eq!(Features::detect(&script, Names::of(Family::V4)).unwrap().restore_wait, ["-w"]);
    }

    #[test]
    fn a_command_that_does_not_run_is_an_error_rather_than_an_old_version() {
        let error = Features::detect(&Script::default(), Names::of(Family::V6)).unwrap_err();
        assert!(error.is_missing(), "{error}");
    }

    #[test]
    fn the_variant_is_in_parentheses() {
        for (output, want) in [
            ("iptables v1.8.9 (nf_tables)", Variant::Nft),
            ("iptables v1.8.9 (legacy)", Variant::Legacy),
            ("iptables v1.6.0", Variant::Legacy),
        ] {
            let script = Script::default().prints("ip6tables --version", output);
            assert_eq!(Features::detect(&script, Names::of(Family::V6)).unwrap().variant, want, "{output}");
        }
    }
}
