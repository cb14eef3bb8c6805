//! What clients notice when one mode takes over from another: the differences between the modes that affect services of
//! this cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::address::Family;
use model::names::ServicePortName;
use model::routing::{Routing, Traffic};
use plan::iptables::present::PresentRules;
use proxy::modes;
use proxy::node::LocalNode;
use settings::config::{Config, ProxyMode};

use super::former_rules::FormerRules;
use super::inputs::FamilyInputs;

/// One sentence for each change that clients notice.
pub fn changes(
    before: &FormerRules,
    inputs: &FamilyInputs,
    config: &Config,
    node: &LocalNode,
) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    node_ports(before, inputs, config, node, &mut lines)?;
    match (before, config.mode) {
        (FormerRules::Iptables(found), ProxyMode::Nftables) => to_nftables(found, inputs, &mut lines),
        (FormerRules::Nftables(_), ProxyMode::Iptables) => to_iptables(inputs, &mut lines),
        // From upstream's nftables mode to ours.
        _ => affinity(inputs, &mut lines),
    }
    Ok(lines)
}

fn node_ports(
    before: &FormerRules,
    inputs: &FamilyInputs,
    config: &Config,
    node: &LocalNode,
    lines: &mut Vec<String>,
) -> anyhow::Result<()> {
    let served: Vec<String> = inputs
        .routings
        .iter()
        .filter(|(_, routing)| routing.has_endpoints())
        .filter_map(|(name, routing)| {
            routing.node_port.map(|port| format!("node port {port}/{} ({name})", routing.protocol))
        })
        .collect();
    if served.is_empty() {
        return Ok(());
    }
    let abilities = plan::iptables::program::Abilities::default();
    let serves_localhost = config.mode == ProxyMode::Iptables
        && modes::iptables_settings(config, inputs.family, node, abilities)?.serves_localhost();
    match (before.serves_localhost(), serves_localhost) {
        (true, false) => {
            lines.extend(served.iter().map(|port| format!("{port} stops answering on 127.0.0.1")))
        }
        (false, true) => {
            lines.extend(served.iter().map(|port| format!("{port} starts answering on 127.0.0.1")))
        }
        (true, true) | (false, false) => {}
    }
    let is_everywhere = modes::node_port_addresses(config, inputs.family, node).match_all();
    let not_loopback = |ips: BTreeSet<IpAddr>| -> BTreeSet<IpAddr> {
        ips.into_iter().filter(|ip| !ip.is_loopback()).collect()
    };
    let after: Option<BTreeSet<IpAddr>> =
        (!is_everywhere).then(|| not_loopback(inputs.node_port_ips(config, node).into_iter().collect()));
    let before = before.node_port_ips().map(|ips| not_loopback(ips.clone()));
    if before != after {
        let all: BTreeSet<IpAddr> = inputs
            .interfaces
            .iter()
            .copied()
            .filter(|ip| Family::of(*ip) == inputs.family && !ip.is_loopback())
            .collect();
        let (old, new) = (before.unwrap_or_else(|| all.clone()), after.unwrap_or(all));
        let list = |ips: Vec<&IpAddr>| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (removed, added): (Vec<_>, Vec<_>) =
            (old.difference(&new).collect(), new.difference(&old).collect());
        for port in &served {
            if !removed.is_empty() {
                lines.push(format!("{port} stops answering on {}", list(removed.clone())));
            }
            if !added.is_empty() {
                lines.push(format!("{port} starts answering on {}", list(added.clone())));
            }
        }
    }
    Ok(())
}

fn to_nftables(found: &PresentRules, inputs: &FamilyInputs, lines: &mut Vec<String>) {
    if let Some((ip, name, more)) = cluster_ips(inputs) {
        lines.push(format!(
            "unused ports of cluster IPs are refused instead of routed to the network, for example of {ip} ({name}){more}"
        ));
    }
    for cidr in &inputs.service_cidrs {
        lines.push(format!(
            "packets to unused addresses of {cidr} are dropped instead of routed to the network"
        ));
    }
    for (name, routing) in unserved(inputs) {
        for ip in external(routing) {
            lines.push(format!(
                "connections from this node to {ip} ({name}), which has no endpoints, are refused instead of routed to the network"
            ));
        }
    }
    if found.forward_drops && !inputs.routings.is_empty() {
        lines.push(
            "the policy of the iptables FORWARD chain is DROP, and this mode has no rules there: traffic to and from \
             pods needs a rule that accepts it"
                .into(),
        );
    } else if !inputs.routings.is_empty() {
        lines.push("forwarded service traffic is no longer accepted ahead of other rules in FORWARD".into());
    }
    for port in health_checks(inputs) {
        lines.push(format!("{port} is no longer accepted ahead of other rules in INPUT"));
    }
    if found.drops_invalid {
        lines.push(
            "forwarded packets that belong to no connection (ct state invalid) are no longer dropped".into(),
        );
    }
    affinity(inputs, lines);
}

fn to_iptables(inputs: &FamilyInputs, lines: &mut Vec<String>) {
    if let Some((ip, name, more)) = cluster_ips(inputs) {
        lines.push(format!(
            "unused ports of cluster IPs are routed to the network instead of refused, for example of {ip} ({name}){more}"
        ));
    }
    for cidr in &inputs.service_cidrs {
        lines.push(format!(
            "packets to unused addresses of {cidr} are routed to the network instead of dropped"
        ));
    }
    for (name, routing) in unserved(inputs) {
        for ip in external(routing) {
            lines.push(format!(
                "connections from this node to {ip} ({name}), which has no endpoints, are routed to the network instead of refused"
            ));
        }
    }
    if !inputs.routings.is_empty() {
        lines.push("forwarded service traffic is accepted ahead of other rules in FORWARD".into());
    }
    for port in health_checks(inputs) {
        lines.push(format!("{port} is accepted ahead of other rules in INPUT"));
    }
    lines.push("forwarded packets that belong to no connection (ct state INVALID) are dropped".into());
    affinity(inputs, lines);
}

/// A cluster IP, its service port, and a suffix with the number of further cluster IPs.
fn cluster_ips(inputs: &FamilyInputs) -> Option<(IpAddr, &ServicePortName, String)> {
    let ips: BTreeSet<IpAddr> =
        inputs.routings.iter().map(|(_, routing)| routing.addresses.cluster_ip).collect();
    let (name, routing) = inputs.routings.first()?;
    let more = ips.len().saturating_sub(1);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    Some((routing.addresses.cluster_ip, name, more))
}

fn unserved(inputs: &FamilyInputs) -> impl Iterator<Item = (&ServicePortName, &Routing)> {
    let all = inputs.routings.iter().map(|(name, routing)| (name, &**routing));
    all.filter(|(_, routing)| routing.external == Traffic::RejectNoEndpoints)
}

fn external(routing: &Routing) -> impl Iterator<Item = String> {
    let addresses = &routing.addresses;
    let ips = addresses.external_ips.iter().chain(&addresses.load_balancer_ips);
    ips.map(|ip| format!("{}/{}", model::address::host_port(*ip, routing.port.get()), routing.protocol))
}

/// A set, because the ports of a Service share one health check node port.
fn health_checks(inputs: &FamilyInputs) -> BTreeSet<String> {
    let ports = inputs.routings.iter().filter_map(|(name, routing)| {
        routing.health_check_node_port.map(|port| format!("health check node port {port} ({})", name.service))
    });
    ports.collect()
}

fn affinity(inputs: &FamilyInputs, lines: &mut Vec<String>) {
    for (name, routing) in inputs.routings.iter().filter(|(_, routing)| routing.affinity.is_some()) {
        let seconds = routing.affinity.unwrap_or_default();
        lines.push(format!(
            "clients of {name} (session affinity {seconds}s) may be sent to another endpoint once"
        ));
    }
}
