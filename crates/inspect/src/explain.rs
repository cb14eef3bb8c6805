//! `kube-proxy explain`: what happens to a packet, and why.
//!
//! ```text
//!   packet query ─▶ the running proxy, or the objects of manifests or the API server ─▶ Explanation ─▶ text or JSON
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
use model::address::Family;
use plan::explain::{self, Explanation};
use proxy::debug_api::EXPLAIN;
use proxy::debug_api::packet_query::{self, PacketQuery, route_source};
use proxy::modes;
use proxy::run::RunOptions;
use serde::Serialize;
use settings::config::Config;

use super::arguments::{self, is_json, output};
use super::objects::ObjectSnapshot;
use super::running;

const EXAMPLES: &str = "\
Examples:
  kube-proxy explain tcp 10.96.0.10:80
      from this node itself, answered by the running proxy
  kube-proxy explain --from 10.244.1.7 udp 10.96.0.10:53
      from a pod
  kube-proxy explain --from 203.0.113.9 tcp '[2001:db8::5]:443' -o json
      from a client outside the cluster, as JSON
  kube-proxy explain --live tcp 192.0.2.11:30080
      also check whether the kernel would do the same with this packet
  kube-proxy explain --manifests examples/demo --hostname-override demo-node tcp 10.96.0.10:80
      from a folder, without a running proxy

Queries the proxy that runs on this node at --metrics-bind-address, unless --manifests, --kubeconfig or --master names a
source of objects. In that case use the flags of the proxy: the answer depends on them.";

pub fn command() -> Command {
    Command::new("explain")
        .about(
            "Explain what happens to a packet: which endpoints may get it, which source address they see, or why none does",
        )
        .after_help(EXAMPLES)
        .arg(Arg::new("protocol").required(true).value_parser(ProtocolParser))
        .arg(
            Arg::new("destination")
                .required(true)
                .value_name("ADDRESS:PORT")
                .help("Destination of the packet, as the client sends it"),
        )
        .arg(
            Arg::new("from")
                .long("from")
                .value_name("IP[:PORT]")
                .help("Source of the packet; by default this node itself. The port matters only if it is hashed"),
        )
        .arg(Arg::new("interface").long("interface").value_name("NAME").help(
            "The interface of the node that the packet arrives on; required if --detect-local-mode recognizes pods by interface",
        ))
        .arg(output())
        .arg(
            Arg::new("live").long("live").action(ArgAction::SetTrue).help(
                "Also read the kernel and report whether it would do the same; needs root, changes nothing",
            ),
        )
        .args(arguments::of_subcommand())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let query = packet_query(matches)?;
    let reads_objects = arguments::reads_objects(matches)?;
    let (config, options) = arguments::configuration(matches)?;
    let (mut explanation, rejected) = if reads_objects {
        from_objects(&query, config, &options)?
    } else {
        (from_running(&query, config.metrics_bind_address)?, Vec::new())
    };
    if matches.get_flag("live") {
        explanation.live = Some(live::read(&explanation)?);
    }
    let text = if is_json(matches) {
        let output = JsonOutput { explanation: &explanation, rejected };
        serde_json::to_string_pretty(&output).context("writing JSON")? + "\n"
    } else {
        text::of(&explanation)
    };
    super::print(&text);
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct JsonOutput<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    /// See [`ObjectSnapshot::rejected`].
    #[serde(rename = "leftOut", skip_serializing_if = "Vec::is_empty")]
    rejected: Vec<String>,
}

/// Lists the protocols for completions and help, but accepts any value: for `icmp` clap would suggest `tcp`, while
/// [`unsupported_protocol`] explains.
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

fn packet_query(matches: &ArgMatches) -> anyhow::Result<PacketQuery> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let source = |text: &str| {
        packet_query::parse_source(text).with_context(|| format!("--from: {text:?} is not an IP address"))
    };
    let name = text("protocol").unwrap_or_default();
    let protocol = packet_query::protocol(name).with_context(|| unsupported_protocol(name))?;
    let to = text("destination").unwrap_or_default();
    let destination: SocketAddr = to.parse().with_context(|| {
        format!("{to:?} is not an address with a port, such as 10.96.0.10:80 or [fd00::1]:80")
    })?;
    PacketQuery::new(text("from").map(source).transpose()?, protocol, destination, text("interface"))
}

fn unsupported_protocol(protocol: &str) -> String {
    let is_ping = ["icmp", "icmpv6", "ping"].contains(&protocol.to_lowercase().as_str());
    let ping = if is_ping { "; a reply to ping does not depend on the service" } else { "" };
    format!("{protocol:?}: services support only tcp, udp and sctp{ping}")
}

fn from_running(query: &PacketQuery, address: SocketAddr) -> anyhow::Result<Explanation> {
    let answer = running::ask(address, &format!("{EXPLAIN}?{}", query.to_url_query()))?;
    serde_json::from_slice(&answer).context("reading the answer of the proxy")
}

/// Also returns [`ObjectSnapshot::rejected`].
fn from_objects(
    query: &PacketQuery,
    config: Config,
    options: &RunOptions,
) -> anyhow::Result<(Explanation, Vec<String>)> {
    let ObjectSnapshot { config, node, mut clusters, rejected } = ObjectSnapshot::read(config, options)?;
    let family = Family::of(query.destination.ip());
    let cluster =
        clusters.remove(&family).with_context(|| format!("this kernel does not support {family}"))?;
    let settings = modes::explain_settings(&config, family, &node)?;
    let own = interfaces::addresses().context("listing the addresses of this machine")?;
    let node_ip = node.ips.of(node.ips.primary);
    let is_this_machine = node_ip.is_loopback() || own.contains(&node_ip);
    let addresses = node_addresses(own, node.ips.of(family));
    let packet = query.packet(&addresses, cluster.node_ip(), |destination| {
        if !is_this_machine {
            bail!(
                "node {:?} has no {family} address and is not this machine: specify the source with --from",
                node.name
            );
        }
        route_source(destination)
    })?;
    Ok((explain::explain(&packet, &settings, &addresses, &cluster)?, rejected))
}

/// The addresses of this machine and the node's IP, since the node may be another machine.
fn node_addresses(mut own: Vec<IpAddr>, node_ip: IpAddr) -> Vec<IpAddr> {
    if !own.contains(&node_ip) {
        own.push(node_ip);
    }
    own
}
