//! `kube-proxy render`: the whole ruleset of a mode as text, from manifests or the API server. The kernel is not asked
//! and nothing is written to it, so it takes no privileges.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::bail;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use kernel::nftables::{TABLE, TABLE_COMMENT};
use model::address::Family;
use plan::iptables::chains::{Jump, Table};
use plan::iptables::program::Abilities;
use plan::iptables::restore::whole;
use plan::iptables::rules::Unit;
use plan::nftables::desired::DesiredTable;
use plan::nftables::text::{self, Content};
use proxy::modes;
use proxy::node::Node;
use settings::config::{Config, ProxyMode};

use super::desired::{self, Desired};
use super::rulings::Rulings;

const NOTES: &str = "\
The nftables mode is printed as for `nft -f`, the iptables mode as for `iptables-restore --noflush`.
The text has no packet counters of iptables, which not every kernel has. Rules of session affinity
are printed as nft prints them, which it cannot read: without these the text loads.

Examples:
  kube-proxy render --proxy-mode nftables --manifests examples/demo
  kube-proxy render --proxy-mode iptables --manifests examples/demo --family ipv4";

pub fn command() -> Command {
    let family = Arg::new("family")
        .long("family")
        .value_name("family")
        .value_parser(PossibleValuesParser::new(["ipv4", "ipv6"]))
        .help("Only this one; both otherwise");
    Command::new("render")
        .about("Print the whole ruleset of the mode as text; needs no privileges")
        .after_help(NOTES)
        .args(desired::arguments())
        .arg(family)
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let families = match matches.get_one::<String>("family").map(String::as_str) {
        Some("ipv4") => vec![Family::V4],
        Some("ipv6") => vec![Family::V6],
        _ => Family::BOTH.to_vec(),
    };
    let (config, options) = desired::configuration(matches)?;
    let (config, node, all) = Rulings::of(Desired::read_for(&families, config, &options)?)?;
    for rulings in &all {
        let text = match config.mode {
            ProxyMode::Nftables => nftables(rulings, &config, &node)?,
            ProxyMode::Iptables => iptables(rulings, &config, &node)?,
            ProxyMode::Ipvs => {
                bail!("the ipvs mode is not available yet, use --proxy-mode nftables or iptables")
            }
        };
        super::print(&text);
    }
    Ok(ExitCode::SUCCESS)
}

fn nftables(rulings: &Rulings, config: &Config, node: &Node) -> anyhow::Result<String> {
    let settings = modes::nftables_settings(config, rulings.family, node)?;
    let mut desired = DesiredTable::new(settings);
    let routings = rulings.routings.iter();
    desired.accept(routings.map(|(name, routing)| (name.clone(), Some(routing.clone()))).collect());
    let program = desired.program();
    let content = Content {
        elements: &desired.elements(),
        service_cidrs: &rulings.service_cidrs,
        node_port_ips: &rulings.node_port_ips_for_nftables(config, node),
    };
    Ok(text::table(TABLE, TABLE_COMMENT, &program, content))
}

fn iptables(rulings: &Rulings, config: &Config, node: &Node) -> anyhow::Result<String> {
    let family = rulings.family;
    let abilities = Abilities { random_fully: true, ..Abilities::default() };
    let settings = modes::iptables_settings(config, family, node, abilities)?;
    let tail = settings.tail(&settings.node_port_ips(&rulings.interfaces).0);
    let comments = plan::iptables::plan::Plan::comments_for(rulings.endpoints);
    let units =
        rulings.routings.iter().map(|(name, routing)| Unit::render(name, routing, &settings, comments));
    let mut restore = whole(&settings, &tail, units.collect(), &BTreeSet::new());
    let made: Vec<&str> = settings.filter_chains().collect();
    let mut more: Vec<&str> = Vec::new();
    for jump in Jump::ALL {
        let section = restore.section(jump.table);
        // The kubelet's, which we have no rule for here.
        if jump.table == Table::Filter && !made.contains(&jump.to) && !more.contains(&jump.to) {
            more.push(jump.to);
            section.chain(jump.to);
        }
        section.insert(jump.from, 1, &jump.rule());
    }
    let name = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    Ok(format!("# {name}-restore --noflush\n{restore}"))
}
