//! `kube-proxy render`: the whole ruleset of a mode as text, from manifests or the API server. It neither reads nor writes
//! rules of the kernel, so it needs no privileges.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use ipnet::IpNet;
use kernel::nftables::{TABLE, TABLE_COMMENT};
use model::address::Family;
use plan::iptables::chains::{IptablesTable, Jump};
use plan::iptables::program::Abilities;
use plan::iptables::restore::whole;
use plan::iptables::rules::RuleUnit;
use plan::ipvs::desired::{DesiredServers, usable_node_ips};
use plan::ipvs::servers::INTERFACE;
use plan::nftables::desired::DesiredTable;
use plan::nftables::text::{self, SetContents};
use proxy::modes;
use proxy::node::LocalNode;
use settings::config::{Config, ProxyMode};

use super::arguments;
use super::inputs::FamilyInputs;
use super::objects::ObjectSnapshot;

const NOTES: &str = "\
The output is for `nft -f` in nftables mode, and for `iptables-restore --noflush` in iptables mode. In
ipvs mode it is for `nft -f`, `ip -batch` and `ipvsadm-restore`, each up to the next comment.
It has no iptables packet counters (the nfacct match), which not every kernel supports. Rules of
session affinity are printed as nft lists them, which `nft -f` rejects; without them the output loads.

Examples:
  kube-proxy render --proxy-mode nftables --manifests examples/demo
  kube-proxy render --proxy-mode iptables --manifests examples/demo --family ipv4";

pub fn command() -> Command {
    let family = Arg::new("family")
        .long("family")
        .value_name("family")
        .value_parser(PossibleValuesParser::new(["ipv4", "ipv6"]))
        .help("Print only this family");
    Command::new("render")
        .about("Print the whole ruleset of the mode as text; needs no privileges")
        .after_help(NOTES)
        .args(arguments::of_subcommand())
        .arg(family)
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let families = match matches.get_one::<String>("family").map(String::as_str) {
        Some("ipv4") => vec![Family::V4],
        Some("ipv6") => vec![Family::V6],
        _ => Family::BOTH.to_vec(),
    };
    let (config, options) = arguments::configuration(matches)?;
    let (config, node, all) = FamilyInputs::of(ObjectSnapshot::read_for(&families, config, &options)?)?;
    for inputs in &all {
        let text = match config.mode {
            ProxyMode::Nftables => table(&desired_table(inputs, &config, &node)?, inputs),
            ProxyMode::Iptables => iptables(inputs, &config, &node)?,
            ProxyMode::Ipvs => ipvs(inputs, &config, &node)?,
        };
        super::print(&text);
    }
    Ok(ExitCode::SUCCESS)
}

/// The table of the nftables or the ipvs mode.
fn desired_table(inputs: &FamilyInputs, config: &Config, node: &LocalNode) -> anyhow::Result<DesiredTable> {
    let settings =
        modes::nftables_settings(config, inputs.family, node, modes::can_hash(config, inputs.family))?;
    let mut desired = DesiredTable::new(settings);
    let routings = inputs.routings.iter();
    desired.accept(routings.map(|(name, routing)| (name.clone(), Some(routing.clone()))).collect());
    desired.replace_node_port_ips(inputs.node_port_ips(config, node));
    desired.replace_node_ips(usable_node_ips(&inputs.interfaces, inputs.family).collect());
    Ok(desired)
}

fn table(desired: &DesiredTable, inputs: &FamilyInputs) -> String {
    let content = SetContents {
        elements: &desired.elements(),
        service_cidrs: &inputs.service_cidrs,
        node_port_ips: desired.node_port_ips(),
    };
    text::table(TABLE, TABLE_COMMENT, &desired.program(), content)
}

fn ipvs(inputs: &FamilyInputs, config: &Config, node: &LocalNode) -> anyhow::Result<String> {
    let desired = desired_table(inputs, config, node)?;
    let settings = modes::server_settings(config, inputs.family);
    let servers = DesiredServers { table: &desired, settings: &settings };
    let mut text = table(&desired, inputs);
    text.push_str("# ip address\n");
    for ip in desired.bound_ips() {
        text.push_str(&format!("address add {} dev {INTERFACE}\n", IpNet::from(ip)));
    }
    text.push_str("# ipvsadm-restore\n");
    text.push_str(&plan::ipvs::text::servers(&servers.all()));
    Ok(text)
}

fn iptables(inputs: &FamilyInputs, config: &Config, node: &LocalNode) -> anyhow::Result<String> {
    let family = inputs.family;
    let abilities = Abilities { random_fully: true, ..Abilities::default() };
    let settings = modes::iptables_settings(config, family, node, abilities)?;
    let tail = settings.tail(&settings.node_port_ips(&inputs.interfaces).0);
    let comments = plan::iptables::plan::IptablesPlan::comments_for(inputs.endpoints);
    let units =
        inputs.routings.iter().map(|(name, routing)| RuleUnit::render(name, routing, &settings, comments));
    let mut restore = whole(&settings, &tail, units.collect(), &BTreeSet::new());
    let ours: Vec<&str> = settings.filter_chains().collect();
    let mut foreign: Vec<&str> = Vec::new();
    for jump in Jump::ALL {
        let section = restore.section(jump.table);
        // A chain of kubelet, which has to exist for the jump.
        if jump.table == IptablesTable::Filter && !ours.contains(&jump.to) && !foreign.contains(&jump.to) {
            foreign.push(jump.to);
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
