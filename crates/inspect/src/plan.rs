//! `kube-proxy plan`: what a proxy with this command line would change in the kernel, and the effects on clients.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use plan::difference::{Class, Difference, DifferenceKind};
use plan::served::{Contest, ServedChange};
use proxy::debug_api::findings::{Finding, compare, findings, name};
use proxy::node::LocalNode;
use serde::Serialize;
use settings::config::{Config, ProxyMode};

use super::arguments::{self, is_json, output};
use super::behaviour;
use super::former_rules::FormerRules;
use super::inputs::{FamilyInputs, desired_state};
use super::objects::ObjectSnapshot;

const EXAMPLES: &str = "\
Accepts the flags of the proxy, reads the objects once and compares the desired state with the kernel.
Changes nothing, and prints nothing if there are no differences. If the kernel has rules of another
mode, it also prints how the behaviour changes for clients.
Exit code: 0 no changes, 2 changes, 1 error.

Examples:
  kube-proxy plan --config /var/lib/kube-proxy/config.conf
  kube-proxy plan --proxy-mode nftables --manifests examples/demo
  kube-proxy plan --proxy-mode nftables --kubeconfig /var/lib/kube-proxy/kubeconfig.conf";

pub fn command() -> Command {
    let objects = Arg::new("objects")
        .long("objects")
        .action(ArgAction::SetTrue)
        .help("Also print every service and every kernel object that would be added (+) or removed (-)");
    Command::new("plan")
        .about("Print what the proxy would change in the kernel; change nothing")
        .after_help(EXAMPLES)
        .args(arguments::of_subcommand())
        .args([objects, output()])
}

/// When one mode takes over from another, more new services than this are counted instead of listed.
const MAX_LISTED_SERVICES: usize = 20;

/// More objects without a service port than this are counted instead of listed.
const MAX_LISTED_OBJECTS: usize = 10;

/// The result for one family.
#[derive(Debug, Serialize)]
struct Section {
    family: String,
    changes: Vec<ServiceChange>,
    /// Addresses that several services claim or claimed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contested: Vec<Contest>,
    /// The rules of another mode or program, if the kernel has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    takes_over_from: Option<String>,
    /// How the behaviour changes for clients when taking over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    behaviour: Vec<String>,
    add: usize,
    remove: usize,
    objects: Vec<Finding>,
    /// See [`ObjectSnapshot::rejected`].
    #[serde(rename = "left_out", skip_serializing_if = "Vec::is_empty")]
    rejected: Vec<String>,
}

/// The changes of one service port, or of objects without one.
#[derive(Debug, Serialize)]
struct ServiceChange {
    /// `+`, `-` or `~`.
    sign: char,
    /// `None` for objects that belong to no known service port.
    service: Option<String>,
    /// Each starts with its own sign.
    lines: Vec<String>,
    /// The number of kernel objects that change.
    objects: usize,
}

impl From<&ServedChange<'_>> for ServiceChange {
    fn from(change: &ServedChange<'_>) -> Self {
        let ServedChange { service, kind, facts, differences } = change;
        let mut lines = Vec::new();
        if service.is_none() {
            // The facts already cover the objects that serve frontends.
            let is_listed = |it: &&&Difference| facts.is_empty() || !it.object.serves();
            lines = list(&differences.iter().filter(is_listed).copied().collect::<Vec<_>>());
        }
        lines.extend(facts.iter().map(|fact| format!("{} {}", fact.kind.sign(), fact.text)));
        if lines.is_empty() {
            lines = differences.iter().map(|it| object(it)).collect();
        }
        let service = service.as_ref().map(ToString::to_string);
        Self { sign: kind.sign(), service, lines, objects: differences.len() }
    }
}

fn object(difference: &Difference) -> String {
    format!("{} {}", difference.kind.sign(), difference.text())
}

/// One line per object, or the number of objects of each class.
fn list(differences: &[&Difference]) -> Vec<String> {
    if differences.len() <= MAX_LISTED_OBJECTS {
        return differences.iter().map(|it| object(it)).collect();
    }
    let mut counts: BTreeMap<(DifferenceKind, Class), usize> = BTreeMap::new();
    differences.iter().for_each(|it| *counts.entry((it.kind, it.object.class())).or_default() += 1);
    let line = |((kind, class), count): (&(DifferenceKind, Class), &usize)| {
        let plural = if *count == 1 { "" } else { "s" };
        format!("{} {count} {class}{plural} without a service", kind.sign())
    };
    counts.iter().map(line).collect()
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let (config, options) = arguments::configuration(matches)?;
    let (config, node, all) = FamilyInputs::of(ObjectSnapshot::read(config, &options)?)?;
    let mut sections = Vec::new();
    for inputs in &all {
        sections.extend(Section::of(inputs, &config, &node)?);
    }
    let is_empty = sections.iter().all(Section::is_empty);
    let is_json = is_json(matches);
    sections.retain(|section| !section.is_empty() || (is_json && !section.rejected.is_empty()));
    if is_json {
        super::print(&(serde_json::to_string_pretty(&sections)? + "\n"));
    } else {
        let with_objects = matches.get_flag("objects");
        sections.iter().for_each(|section| super::print(&section.show(config.mode, with_objects)));
    }
    Ok(if is_empty { ExitCode::SUCCESS } else { ExitCode::from(super::DIFFERENT) })
}

impl Section {
    fn of(inputs: &FamilyInputs, config: &Config, node: &LocalNode) -> anyhow::Result<Option<Self>> {
        let family = inputs.family;
        let Some(state) = desired_state(inputs, config, node)? else { return Ok(None) };
        let comparison = compare(family, state)?;
        let before = FormerRules::read(family, config.mode)?;
        let behaviour = match &before {
            Some(before) => behaviour::changes(before, inputs, config, node)?,
            None => Vec::new(),
        };
        let count = |kind| {
            comparison
                .differences
                .iter()
                .filter(|it| it.kind == kind || it.kind == DifferenceKind::Changed)
                .count()
        };
        Ok(Some(Self {
            family: name(family),
            changes: comparison.changes().iter().map(ServiceChange::from).collect(),
            contested: comparison.contests(),
            takes_over_from: before.as_ref().map(FormerRules::describe),
            behaviour,
            add: count(DifferenceKind::Missing),
            remove: count(DifferenceKind::Unexpected),
            objects: findings(&comparison),
            rejected: inputs.rejected.clone(),
        }))
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.takes_over_from.is_none()
    }

    fn show(&self, mode: ProxyMode, with_objects: bool) -> String {
        let mut text = String::new();
        let family = &self.family;
        // When taking over every service is new, so a long list is not useful. Writing to a string cannot fail.
        let is_new = |change: &&ServiceChange| change.sign == '+' && change.service.is_some();
        let new = if self.takes_over_from.is_some() { self.changes.iter().filter(is_new).count() } else { 0 };
        let in_brief = new > MAX_LISTED_SERVICES && !with_objects;
        if in_brief {
            let _ = writeln!(text, "+ {family} {new} services");
        }
        for ServiceChange { sign, service, lines, .. } in &self.changes {
            if in_brief && *sign == '+' && service.is_some() {
                continue;
            }
            let service = service.as_deref().unwrap_or("(no service)");
            let _ = writeln!(text, "{sign} {family} {service}");
            lines.iter().for_each(|line| _ = writeln!(text, "    {line}"));
        }
        for contest in &self.contested {
            let _ = writeln!(text, "! {family} {contest}");
        }
        if with_objects && !self.objects.is_empty() {
            let _ = writeln!(text, "{family} objects:");
            for Finding { kind, object, .. } in &self.objects {
                let sign = match kind.as_str() {
                    "missing" => '+',
                    "unexpected" => '-',
                    _ => '~',
                };
                let _ = writeln!(text, "    {sign} {object}");
            }
        }
        if let Some(before) = &self.takes_over_from {
            let _ = writeln!(text, "{family}: takes over from {before}; changes in behaviour:");
            self.behaviour.iter().for_each(|line| _ = writeln!(text, "    {line}"));
        }
        let mode = match mode {
            ProxyMode::Iptables => "iptables",
            ProxyMode::Ipvs => "ipvs",
            ProxyMode::Nftables => "nftables",
        };
        let services = self.changes.iter().filter(|change| change.service.is_some()).count();
        let services =
            if services == 1 { "1 service changes".into() } else { format!("{services} services change") };
        let objects = if self.add == 1 { "1 object".into() } else { format!("{} objects", self.add) };
        let _ = writeln!(text, "{family} {mode}: {services}, {objects} to add, {} to remove", self.remove);
        text
    }
}
