//! `kube-proxy plan`: what a proxy with this command line would change in the kernel, and what clients would notice.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use plan::difference::{Class, Difference, Kind};
use plan::served::{Contest, ServedChange};
use proxy::debug_api::findings::{Finding, compare, findings, name};
use proxy::node::LocalNode;
use serde::Serialize;
use settings::config::{Config, ProxyMode};

use super::behaviour::{self, FormerRules};
use super::desired::{self, Desired};
use super::rulings::{Rulings, desired_state};
use super::verify::{is_json, output};

const EXAMPLES: &str = "\
Takes the flags of the proxy, reads the objects once and compares what they ask for with what the
kernel holds. Nothing is written, and nothing is printed if there is nothing to do. Where rules of
another mode are in the kernel, it says what clients will notice of the change.
Exit code: 0 nothing to change, 2 changes, 1 it could not be found out.

Examples:
  kube-proxy plan --config /var/lib/kube-proxy/config.conf
  kube-proxy plan --proxy-mode nftables --manifests examples/demo
  kube-proxy plan --proxy-mode nftables --kubeconfig /var/lib/kube-proxy/kubeconfig.conf";

pub fn command() -> Command {
    let objects = Arg::new("objects").long("objects").action(ArgAction::SetTrue).help(
        "Also print every service and every object of the kernel that would be added (+) or removed (-)",
    );
    Command::new("plan")
        .about("Print what would change in the kernel; change nothing")
        .after_help(EXAMPLES)
        .args(desired::arguments())
        .args([objects, output()])
}

/// More services than this are only counted where a mode takes over.
const MANY: usize = 20;

/// If more objects than these belong to no service port, they are only counted.
const MAX_LISTED: usize = 10;

/// Of one family.
#[derive(Debug, Serialize)]
struct Section {
    family: String,
    changes: Vec<ServiceChange>,
    /// Addresses that several services ask for or asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contested: Vec<Contest>,
    /// What clients notice of a change of modes.
    #[serde(skip_serializing_if = "Option::is_none")]
    takes_over_from: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    behaviour: Vec<String>,
    add: usize,
    remove: usize,
    objects: Vec<Finding>,
    /// What of a folder was not understood; see `Desired::left_out`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
}

/// What happens to one service port, or to what belongs to no service port.
#[derive(Debug, Serialize)]
struct ServiceChange {
    /// `+`, `-` or `~`.
    sign: char,
    /// None for what belongs to no service port that is known.
    service: Option<String>,
    /// Each with its own sign.
    lines: Vec<String>,
    /// How many objects of the kernel that takes.
    objects: usize,
}

impl From<&ServedChange<'_>> for ServiceChange {
    fn from(change: &ServedChange<'_>) -> Self {
        let ServedChange { service, kind, facts, differences } = change;
        let mut lines = Vec::new();
        if service.is_none() {
            // What serves frontends that go is said by these.
            let is_told = |it: &&&Difference| facts.is_empty() || !it.object.serves();
            lines = list(&differences.iter().filter(is_told).copied().collect::<Vec<_>>());
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

/// The objects, or how many there are of each class.
fn list(differences: &[&Difference]) -> Vec<String> {
    if differences.len() <= MAX_LISTED {
        return differences.iter().map(|it| object(it)).collect();
    }
    let mut counts: BTreeMap<(Kind, Class), usize> = BTreeMap::new();
    differences.iter().for_each(|it| *counts.entry((it.kind, it.object.class())).or_default() += 1);
    let line = |((kind, class), count): (&(Kind, Class), &usize)| {
        let plural = if *count == 1 { "" } else { "s" };
        format!("{} {count} {class}{plural} of no service", kind.sign())
    };
    counts.iter().map(line).collect()
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let (config, options) = desired::configuration(matches)?;
    let (config, node, all) = Rulings::of(Desired::read(config, &options)?)?;
    let mut sections = Vec::new();
    for rulings in &all {
        sections.extend(Section::of(rulings, &config, &node)?);
    }
    let is_empty = sections.iter().all(Section::is_empty);
    let is_json = is_json(matches);
    sections.retain(|section| !section.is_empty() || (is_json && !section.left_out.is_empty()));
    if is_json {
        super::print(&(serde_json::to_string_pretty(&sections)? + "\n"));
    } else {
        let with_objects = matches.get_flag("objects");
        sections.iter().for_each(|section| super::print(&section.show(config.mode, with_objects)));
    }
    Ok(if is_empty { ExitCode::SUCCESS } else { ExitCode::from(super::DIFFERENT) })
}

impl Section {
    fn of(rulings: &Rulings, config: &Config, node: &LocalNode) -> anyhow::Result<Option<Self>> {
        let family = rulings.family;
        let Some(state) = desired_state(rulings, config, node)? else { return Ok(None) };
        let comparison = compare(family, state)?;
        let before = FormerRules::read(family, config.mode)?;
        let behaviour = match &before {
            Some(before) => behaviour::changes(before, rulings, config, node)?,
            None => Vec::new(),
        };
        let count = |kind| {
            comparison.differences.iter().filter(|it| it.kind == kind || it.kind == Kind::Changed).count()
        };
        Ok(Some(Self {
            family: name(family),
            changes: comparison.changes().iter().map(ServiceChange::from).collect(),
            contested: comparison.contests(),
            takes_over_from: before.as_ref().map(FormerRules::describe),
            behaviour,
            add: count(Kind::Missing),
            remove: count(Kind::Unexpected),
            objects: findings(&comparison),
            left_out: rulings.left_out.clone(),
        }))
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.takes_over_from.is_none()
    }

    fn show(&self, mode: ProxyMode, with_objects: bool) -> String {
        let mut text = String::new();
        let family = &self.family;
        // Another mode writes every service anew, which says little. Writing to a string cannot fail.
        let anew = |change: &&ServiceChange| change.sign == '+' && change.service.is_some();
        let anew = if self.takes_over_from.is_some() { self.changes.iter().filter(anew).count() } else { 0 };
        let in_brief = anew > MANY && !with_objects;
        if in_brief {
            let _ = writeln!(text, "+ {family} {anew} services");
        }
        for ServiceChange { sign, service, lines, .. } in &self.changes {
            if in_brief && *sign == '+' && service.is_some() {
                continue;
            }
            let service = service.as_deref().unwrap_or("of no service");
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
            let _ = writeln!(text, "{family}: takes over from {before}; behaviour that changes:");
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
