//! Which Kubernetes this proxy stands in for, and which build of ours it is.

use std::fmt;

use crate::go::{parse_bool, quote};

/// The release whose behaviour this proxy has.
pub const KUBERNETES: &str = "v1.36.3";

/// The release before it, whose hidden metrics may still be asked for.
pub const PREVIOUS_MINOR: &str = "1.35";

/// What is reported: the release, and ours as build metadata, which does not take part in comparisons.
const GIT_VERSION: &str = concat!("v1.36.3+sluice-", env!("CARGO_PKG_VERSION"));

/// `--version`, `--version=raw`, and `--version=vX.Y.Z…` to report another build of the same release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionFlag {
    ask: Ask,
    reported: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ask {
    #[default]
    No,
    Line,
    Raw,
}

impl VersionFlag {
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        if text == "raw" {
            self.ask = Ask::Raw;
        } else if text.starts_with('v') {
            check_override(text)?;
            self.reported = Some(text.to_owned());
        } else {
            self.ask = if parse_bool(text)? { Ask::Line } else { Ask::No };
        }
        Ok(())
    }

    /// What to print instead of running, if that was asked for.
    pub fn answer(&self) -> Option<String> {
        match self.ask {
            Ask::No => None,
            Ask::Line => Some(format!("Kubernetes {}", self.reported())),
            Ask::Raw => Some(raw(self.reported())),
        }
    }

    /// The version this process says it is.
    pub fn reported(&self) -> &str {
        self.reported.as_deref().unwrap_or(GIT_VERSION)
    }
}

impl fmt::Display for VersionFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.ask, &self.reported) {
            (Ask::Line, _) => "true",
            (Ask::Raw, _) => "raw",
            (Ask::No, Some(reported)) => reported,
            (Ask::No, None) => "false",
        })
    }
}

/// The struct as Go prints it, with the Rust compiler where Go's would be.
fn raw(git_version: &str) -> String {
    let platform = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let fields = [
        ("Major", "1"),
        ("Minor", "36"),
        ("EmulationMajor", ""),
        ("EmulationMinor", ""),
        ("MinCompatibilityMajor", ""),
        ("MinCompatibilityMinor", ""),
        ("GitVersion", git_version),
        ("GitCommit", env!("SLUICE_COMMIT")),
        ("GitTreeState", env!("SLUICE_TREE_STATE")),
        ("BuildDate", env!("SLUICE_BUILD_DATE")),
        ("GoVersion", env!("SLUICE_RUSTC")),
        ("Compiler", "rustc"),
        ("Platform", &format!("linux/{platform}")),
    ];
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}:{}", quote(value))).collect();
    format!("version.Info{{{}}}", fields.join(", "))
}

/// A semantic version of the same release; the errors are those of the reference.
fn check_override(text: &str) -> Result<(), String> {
    let quoted = quote(text);
    let body = text.strip_prefix('v').unwrap_or(text);
    let end = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
    let (numbers, suffix) = body.split_at(end);
    if numbers.is_empty() || numbers.contains("..") || numbers.starts_with('.') || numbers.ends_with('.') {
        return Err(format!("could not parse {quoted} as version"));
    }
    let parts: Vec<_> = numbers.split('.').collect();
    if parts.len() != 3 {
        return Err(format!("illegal version string {quoted}"));
    }
    if let Some(part) = parts.iter().find(|part| part.len() > 1 && part.starts_with('0')) {
        return Err(format!("illegal zero-prefixed version component {part:?} in {quoted}"));
    }
    if !suffix.is_empty() && !is_suffix(suffix) {
        return Err(format!("could not parse pre-release/metadata ({suffix}) in version {quoted}"));
    }
    if format!("v{numbers}") != KUBERNETES {
        return Err(format!(
            "version {quoted} must match major/minor/patch of default version {KUBERNETES:?}"
        ));
    }
    Ok(())
}

/// `-pre.release+meta.data`: either part, each made of dotted words.
fn is_suffix(suffix: &str) -> bool {
    let words = |text: &str| {
        text.split('.').all(|word| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
    };
    match (suffix.strip_prefix('-'), suffix.strip_prefix('+')) {
        (Some(rest), _) => match rest.split_once('+') {
            Some((release, metadata)) => words(release) && words(metadata),
            None => words(rest),
        },
        (None, Some(metadata)) => words(metadata),
        (None, None) => false,
    }
}
