//! What the installed iptables can do, by its version.

use super::error::Error;
use super::exec::Exec;
use super::runner::Names;

/// How rules get into the kernel. The texts are the same, the costs are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Every change reads and writes a whole table, under a lock.
    Legacy,
    /// On top of nf_tables: changes are transactions, and the kernel tells of them.
    Nft,
}

/// What depends on the version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    pub variant: Variant,
    /// `-C`.
    pub check: bool,
    pub random_fully: bool,
    /// What makes `iptables` wait for the lock.
    pub wait: &'static [&'static str],
    /// The same for `iptables-restore`; empty if we have to take the lock for it.
    pub restore_wait: &'static [&'static str],
}

impl Features {
    /// Of a version that cannot be understood nothing is assumed. An error if it could not be asked for: to take a
    /// command that was busy for an old one would last as long as we do.
    pub fn detect(exec: &dyn Exec, names: Names) -> Result<Self, Error> {
        let said = exec.run(names.iptables, &["--version"], &[])?.said();
        let version = parse(&said).unwrap_or_default();
        let is_at_least = |wanted: &[u32]| version.as_slice() >= wanted;
        let has_restore_wait = is_at_least(&[1, 6, 2]);
        Ok(Self {
            variant: if said.contains("nf_tables") { Variant::Nft } else { Variant::Legacy },
            check: is_at_least(&[1, 4, 11]),
            random_fully: is_at_least(&[1, 6, 2]),
            wait: match () {
                () if is_at_least(&[1, 4, 22]) => &["-w", "5"],
                () if is_at_least(&[1, 4, 20]) => &["-w"],
                () => &[],
            },
            restore_wait: match () {
                () if has_restore_wait => &["-w", "5"],
                () if can_wait_anyway(exec, names) => &["-w"],
                () => &[],
            },
        })
    }
}

/// Distributions gave old versions of `iptables-restore` the option to wait, and `--version` along with it. Those that
/// know neither take the option for nothing and read rules; they must find none.
fn can_wait_anyway(exec: &dyn Exec, names: Names) -> bool {
    let said = exec.run(names.restore, &["--version"], &[]);
    said.is_ok_and(|finished| parse(&finished.said()).is_some())
}

/// The numbers after the first `v` that is followed by at least two of them.
fn parse(said: &str) -> Option<Vec<u32>> {
    said.split('v').skip(1).find_map(|after| {
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
    fn versions_are_found_in_what_iptables_says() {
        for (said, want) in [
            ("iptables v1.8.9 (nf_tables)\n", Some(vec![1, 8, 9])),
            ("iptables v1.4.7", Some(vec![1, 4, 7])),
            ("ip6tables v1.10", Some(vec![1, 10])),
            ("valid, v2", None),
            ("total nonsense", None),
            ("", None),
        ] {
            assert_eq!(parse(said), want, "{said}");
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
            let script = Script::default().says("iptables --version", &format!("iptables v{version}"));
            let script = script.fails("iptables-restore --version", 1, "unrecognized option");
            let features = Features::detect(&script, Names::of(Family::V4)).unwrap();
            let want = Features { variant: Variant::Legacy, check, random_fully, wait, restore_wait };
            assert_eq!(features, want, "{version}");
        }
    }

    #[test]
    fn a_restore_that_tells_its_version_can_wait() {
        let script = Script::default()
            .says("iptables --version", "iptables v1.4.21")
            .says("iptables-restore --version", "iptables-restore v1.4.21");
        assert_eq!(Features::detect(&script, Names::of(Family::V4)).unwrap().restore_wait, ["-w"]);
    }

    #[test]
    fn a_version_that_cannot_be_asked_for_is_not_an_old_one() {
        let error = Features::detect(&Script::default(), Names::of(Family::V6)).unwrap_err();
        assert!(error.is_missing(), "{error}");
    }

    #[test]
    fn the_variant_is_in_parentheses() {
        for (said, want) in [
            ("iptables v1.8.9 (nf_tables)", Variant::Nft),
            ("iptables v1.8.9 (legacy)", Variant::Legacy),
            ("iptables v1.6.0", Variant::Legacy),
        ] {
            let script = Script::default().says("ip6tables --version", said);
            assert_eq!(Features::detect(&script, Names::of(Family::V6)).unwrap().variant, want, "{said}");
        }
    }
}
