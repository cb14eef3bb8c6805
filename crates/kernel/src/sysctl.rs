//! Kernel settings that are files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A tree of settings: `/proc/sys`, or a folder that stands in for it.
#[derive(Clone, Debug)]
pub struct Sysctls {
    root: PathBuf,
}

impl Default for Sysctls {
    fn default() -> Self {
        Self { root: "/proc/sys".into() }
    }
}

impl Sysctls {
    pub fn at(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// Reads a number; names are written with slashes, as upstream writes them.
    pub fn read(&self, name: &str) -> io::Result<u64> {
        read_number(&self.root.join(name))
    }

    /// Writes a number unless it is there already: who may not write can still run where someone else did before.
    /// Returns whether it had to.
    pub fn ensure(&self, name: &str, value: u64) -> io::Result<bool> {
        ensure_number(&self.root.join(name), value)
    }
}

/// Reads a file that holds a number.
pub fn read_number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim()
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number")))
}

fn ensure_number(path: &Path, value: u64) -> io::Result<bool> {
    // What cannot be read counts as different.
    if read_number(path).is_ok_and(|found| found == value) {
        return Ok(false);
    }
    fs::write(path, value.to_string())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_there_is_not_written_again() {
        netlink::testing::in_fresh_netns(|| {
            let sysctls = Sysctls::default();
            let name = "net/ipv4/ip_default_ttl";
            let before = sysctls.read(name).unwrap();
            assert!(!sysctls.ensure(name, before).unwrap());
            assert!(sysctls.ensure(name, before + 1).unwrap());
            assert_eq!(sysctls.read(name).unwrap(), before + 1);
            assert!(sysctls.ensure("net/ipv4/no_such_thing", 1).is_err());
        });
    }
}
