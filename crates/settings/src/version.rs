//! The Kubernetes release that this proxy implements, and the version and build of this program.

use std::fmt;

use crate::go::{parse_bool, quote};

/// The release of kube-proxy whose behaviour this program implements.
pub const KUBERNETES: &str = "v1.36.3";

/// The only value that `--show-hidden-metrics-for-version` accepts.
pub const PREVIOUS_MINOR: &str = "1.35";

/// The version to report. Ours is build metadata, which version comparisons ignore.
const GIT_VERSION: &str = concat!("v1.36.3+sluice-", env!("CARGO_PKG_VERSION"));

/// `--version`, `--version=raw`, and `--version=vX.Y.Z…` to report another build of the same release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionFlag {
    print: Print,
    /// Set by `--version=vX.Y.Z…`.
    reported: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Print {
    #[default]
    Nothing,
    Line,
    Raw,
}

impl VersionFlag {
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        if text == "raw" {
            self.print = Print::Raw;
        } else if text.starts_with('v') {
            check_override(text)?;
            self.reported = Some(text.to_owned());
        } else {
            self.print = if parse_bool(text)? { Print::Line } else { Print::Nothing };
        }
        Ok(())
    }

    /// What to print before exiting; `None` to run.
    pub fn output(&self) -> Option<String> {
        match self.print {
            Print::Nothing => None,
            Print::Line => Some(format!("Kubernetes {}", self.reported())),
            Print::Raw => Some(raw(self.reported())),
        }
    }

    /// The version that this process reports.
    pub fn reported(&self) -> &str {
        self.reported.as_deref().unwrap_or(GIT_VERSION)
    }
}

impl fmt::Display for VersionFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.print, &self.reported) {
            (Print::Line, _) => "true",
            (Print::Raw, _) => "raw",
            (Print::Nothing, Some(reported)) => reported,
            (Print::Nothing, None) => "false",
        })
    }
}

/// This build. The fields are named after the labels of the metric `kubernetes_build_info`.
#[derive(Clone, Debug)]
pub struct Build {
    pub git_version: String,
    pub git_commit: &'static str,
    pub git_tree_state: &'static str,
    pub build_date: &'static str,
    /// The version of rustc: upstream has Go's here.
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

/// `version.Info` as Go's `%#v` prints it.
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

/// Accepts semantic versions with upstream's major, minor and patch; the errors are upstream's.
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

/// `-pre.release`, `+meta.data` or both; each is a list of dot-separated identifiers.
fn is_suffix(suffix: &str) -> bool {
    let is_list = |text: &str| {
        text.split('.').all(|identifier| {
            !identifier.is_empty()
                && identifier.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
    };
    match (suffix.strip_prefix('-'), suffix.strip_prefix('+')) {
        (Some(rest), _) => match rest.split_once('+') {
            Some((release, metadata)) => is_list(release) && is_list(metadata),
            None => is_list(rest),
        },
        (None, Some(metadata)) => is_list(metadata),
        (None, None) => false,
    }
}
