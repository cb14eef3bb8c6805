//! Kernel settings that are files in `/proc/sys`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The settings in `/proc/sys`, or in a folder that a test uses instead.
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

    /// Reads a number. Names have slashes, as upstream writes them.
    pub fn read(&self, name: &str) -> io::Result<u64> {
        read_number(&self.root.join(name))
    }

    /// Writes a number unless the file has it, and returns whether it wrote. So a process that may not write succeeds where
    /// an operator has set the value.
    pub fn ensure(&self, name: &str, value: u64) -> io::Result<bool> {
        ensure_number(&self.root.join(name), value)
    }
}

/// Reads a file that holds a number.
pub fn read_number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim()
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is not a number")))
}

fn ensure_number(path: &Path, value: u64) -> io::Result<bool> {
    // A value that cannot be read counts as different.
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
    fn a_value_is_written_only_if_it_differs() {
        let root = tempfile::tempdir().unwrap();
        let sysctls = Sysctls::at(root.path());
        fs::write(root.path().join("ttl"), "64\n").unwrap();
        assert!(!sysctls.ensure("ttl", 64).unwrap());
        assert!(sysctls.ensure("ttl", 65).unwrap());
        assert_eq!(sysctls.read("ttl").unwrap(), 65);
        assert!(sysctls.ensure("net/no-such-file", 1).is_err());
    }
}
