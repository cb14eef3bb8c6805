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

/// What is known about this build. Names are those of the metric `kubernetes_build_info`.
#[derive(Clone, Debug)]
pub struct Build {
    pub git_version: String,
    pub git_commit: &'static str,
    pub git_tree_state: &'static str,
    pub build_date: &'static str,
    /// The Rust compiler where Go's would be.
    pub go_version: &'static str,
    pub platform: String,
}

pub const MAJOR: &str = "1";
pub const MINOR: &str = "36";
pub const COMPILER: &str = "rustc";

impl Build {
    pub fn reported_as(git_version: &str) -> Self {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            git_version: git_version.to_owned(),
            git_commit: env!("SLUICE_COMMIT"),
            git_tree_state: env!("SLUICE_TREE_STATE"),
            build_date: env!("SLUICE_BUILD_DATE"),
            go_version: env!("SLUICE_RUSTC"),
            platform: format!("linux/{arch}"),
        }
    }
}

/// The struct as Go prints it.
fn raw(git_version: &str) -> String {
    let build = Build::reported_as(git_version);
    let fields = [
        ("Major", MAJOR),
        ("Minor", MINOR),
        ("EmulationMajor", ""),
        ("EmulationMinor", ""),
        ("MinCompatibilityMajor", ""),
        ("MinCompatibilityMinor", ""),
        ("GitVersion", &build.git_version),
        ("GitCommit", build.git_commit),
        ("GitTreeState", build.git_tree_state),
        ("BuildDate", build.build_date),
        ("GoVersion", build.go_version),
        ("Compiler", COMPILER),
        ("Platform", &build.platform),
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
