//! Runs the inputs that are kept for the fuzzer's targets, without the fuzzer.
//!
//! Each crate that decodes bytes from outside has a module `fuzz` with its targets. `make fuzz` searches for inputs that
//! make one of them panic, hang or use too much memory, and writes what it finds to `fuzz/corpus/<target>`. A unit
//! test of the crate calls [`run_corpus`], so that `make check` fails until such an input is handled, and ever after if it is
//! not.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The name of a target, which is also that of its folder in `fuzz/corpus`, and the function that the fuzzer calls.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// Calls each target with every input of its corpus.
///
/// # Errors
///
/// If a corpus is missing, empty or unreadable.
pub fn run_corpus(targets: &[FuzzTarget]) -> io::Result<()> {
    for (name, target) in targets {
        for (path, input) in corpus(name)? {
            eprintln!("{}", path.display());
            target(&input);
        }
    }
    Ok(())
}

/// The inputs of a target, with their files.
///
/// # Errors
///
/// If there are none, or one is unreadable.
pub fn corpus(target: &str) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let input = fs::read(&path)?;
        inputs.push((path, input));
    }
    if inputs.is_empty() {
        return Err(io::Error::other(format!("the corpus of {target} is empty")));
    }
    Ok(inputs)
}
