//! `kube-proxy explain`: what would happen to a packet, and why.
//!
//! ```text
//!   question ─▶ the running proxy, or what manifests and the API server ask for ─▶ Explanation ─▶ text or JSON
//! ```

mod live;
mod text;

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command};
use kernel::interfaces;
use model::address::{Family, parse_ip};
use plan::explain::{self, Explanation};
use proxy::debug_api::packet_query::{self, PacketQuery, route_source};
use proxy::modes;
use proxy::run::Options;
use serde::Serialize;
use settings::config::Config;

use super::desired::{self, Desired};
use super::running;
use super::verify::{is_json, output};

const EXAMPLES: &str = "\
Examples:
  kube-proxy explain tcp 10.96.0.10:80
      from this node itself, as the proxy that runs here sees it
  kube-proxy explain --from 10.244.1.7 udp 10.96.0.10:53
      from a pod
  kube-proxy explain --from 203.0.113.9 tcp '[2001:db8::5]:443' -o json
      from a client elsewhere, for a program to read
  kube-proxy explain --live tcp 192.0.2.11:30080
      also looks whether the kernel holds what it should for this packet
  kube-proxy explain --manifests examples/demo --hostname-override demo-node tcp 10.96.0.10:80
      from a folder, with no proxy running

Unless --manifests, --kubeconfig or --master says where objects are to be read from, the proxy that runs on this node is
asked at --metrics-bind-address. Otherwise give the flags that the proxy runs with: the answer depends on them.";

pub fn command() -> Command {
    Command::new("explain")
        .about(
            "Tell what would happen to a packet: who would answer, whom they would see, or why nobody would",
        )
        .after_help(EXAMPLES)
        .arg(Arg::new("protocol").required(true).value_parser(ProtocolParser))
        .arg(
            Arg::new("destination")
                .required(true)
                .value_name("ADDRESS:PORT")
                .help("Where the packet is sent to, as the client says it"),
        )
        .arg(
            Arg::new("from")
                .long("from")
                .value_name("IP")
                .help("Where the packet comes from; unless given, from this node itself"),
        )
        .arg(Arg::new("interface").long("interface").value_name("NAME").help(
            "The interface of the node that the packet comes in by: needed where the proxy tells pods by it",
        ))
        .arg(output())
        .arg(
            Arg::new("live").long("live").action(ArgAction::SetTrue).help(
                "Also read the kernel, and say whether it would do the same; needs root, changes nothing",
            ),
        )
        .args(desired::arguments())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let question = question(matches)?;
    let reads_objects = desired::reads_objects(matches)?;
    let (config, options) = desired::configuration(matches)?;
    let (mut explanation, left_out) = if reads_objects {
        from_objects(&question, config, &options)?
    } else {
        (from_running(&question, config.metrics_bind_address)?, Vec::new())
    };
    if matches.get_flag("live") {
        explanation.live = Some(live::look(&explanation)?);
    }
    let said = if is_json(matches) {
        let answer = Answer { explanation: &explanation, left_out };
        serde_json::to_string_pretty(&answer).context("writing JSON")? + "\n"
    } else {
        text::of(&explanation)
    };
    super::print(&said);
    Ok(ExitCode::SUCCESS)
}

/// As JSON.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    /// See [`Desired::left_out`].
    #[serde(rename = "leftOut", skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
}

/// Tells shells and the help which protocols there are, and takes any: clap would propose tcp to who asks for icmp.
#[derive(Clone, Debug)]
pub struct ProtocolParser;

impl TypedValueParser for ProtocolParser {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(["tcp", "udp", "sctp"].into_iter().map(PossibleValue::new)))
    }
}

fn question(matches: &ArgMatches) -> anyhow::Result<PacketQuery> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let address = |text: &str| parse_ip(text).with_context(|| format!("--from: {text:?} is no IP address"));
    let name = text("protocol").unwrap_or_default();
    let protocol = packet_query::protocol(name).with_context(|| no_service_has(name))?;
    let to = text("destination").unwrap_or_default();
    let destination: SocketAddr = to.parse().with_context(|| {
        format!("{to:?} is no address with a port, such as 10.96.0.10:80 or [fd00::1]:80")
    })?;
    PacketQuery::new(text("from").map(address).transpose()?, protocol, destination, text("interface"))
}

fn no_service_has(protocol: &str) -> String {
    let is_ping = ["icmp", "icmpv6", "ping"].contains(&protocol.to_lowercase().as_str());
    let ping = if is_ping { "; whether an address answers ping says nothing about its service" } else { "" };
    format!("{protocol:?}: services have ports of tcp, udp and sctp, and handle no other protocol{ping}")
}

fn from_running(question: &PacketQuery, address: SocketAddr) -> anyhow::Result<Explanation> {
    let answer = running::ask(address, &format!("explain?{}", question.to_query()))?;
    serde_json::from_slice(&answer).context("reading what the proxy says")
}

/// Also returns [`Desired::left_out`].
fn from_objects(
    question: &PacketQuery,
    config: Config,
    options: &Options,
) -> anyhow::Result<(Explanation, Vec<String>)> {
    let Desired { config, node, mut clusters, left_out } = Desired::read(config, options)?;
    let family = Family::of(question.destination.ip());
    let mut cluster = clusters.remove(&family).with_context(|| format!("this kernel has no {family}"))?;
    // What is wanted is as good as written here.
    cluster.take_changes();
    let settings = modes::explain_settings(&config, family, &node)?;
    let own = interfaces::addresses().context("listing the addresses of this machine")?;
    let known_by = node.ips.of(node.ips.primary);
    let is_this_machine = known_by.is_loopback() || own.contains(&known_by);
    let addresses = node_addresses(own, node.ips.of(family));
    let packet = question.packet(&addresses, cluster.node_ip(), |destination| {
        if !is_this_machine {
            bail!(
                "node {:?} is known by no {family} address, and this is another machine: say with --from where the \
                 packet comes from",
                node.name
            );
        }
        route_source(destination)
    })?;
    Ok((explain::explain(&packet, &settings, &addresses, &cluster)?, left_out))
}

/// Those of this machine, and the one that the node is known by: it may be another machine.
fn node_addresses(mut own: Vec<IpAddr>, node_ip: IpAddr) -> Vec<IpAddr> {
    if !own.contains(&node_ip) {
        own.push(node_ip);
    }
    own
}
