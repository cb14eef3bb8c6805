//! What clients notice when one mode takes over from another: where the modes differ on purpose, and on which services of
//! this cluster it shows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kernel::iptables;
use kernel::nftables::{self, PresentTable};
use model::address::Family;
use model::names::ServicePortName;
use model::routing::{Routing, Traffic};
use plan::iptables::present::PresentRules;
use proxy::modes;
use proxy::node::LocalNode;
use settings::config::{Config, ProxyMode};

use super::rulings::Rulings;

/// The rules in the kernel that another mode or a foreign writer wrote.
#[derive(Debug)]
pub enum FormerRules {
    Iptables(PresentRules),
    Nftables(PresentTable),
}

impl FormerRules {
    /// Nothing if there are no rules but those of the mode and of this program.
    pub fn read(family: Family, mode: ProxyMode) -> anyhow::Result<Option<Self>> {
        Ok(match mode {
            ProxyMode::Nftables => match iptables::present(family)? {
                Some(found) => Some(Self::Iptables(found)),
                None => nftables::present(family)?.filter(|found| !found.is_ours).map(Self::Nftables),
            },
            ProxyMode::Iptables => nftables::present(family)?.map(Self::Nftables),
            ProxyMode::Ipvs => None,
        })
    }

    pub fn describe(&self) -> String {
        let (Self::Iptables(PresentRules { objects, .. }) | Self::Nftables(PresentTable { objects, .. })) =
            self;
        format!("{} ({objects} objects go)", self.name())
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Iptables(_) => "the iptables mode",
            Self::Nftables(found) if found.is_ours => "the nftables mode of this program",
            Self::Nftables(_) => "a table kube-proxy that is not this program's",
        }
    }

    fn node_port_ips(&self) -> Option<&BTreeSet<IpAddr>> {
        match self {
            Self::Iptables(found) => found.node_port_ips.as_ref(),
            Self::Nftables(found) => found.node_port_ips.as_ref(),
        }
    }

    fn serves_localhost(&self) -> bool {
        matches!(self, Self::Iptables(found) if found.serves_localhost)
    }
}

/// What changes for clients, in sentences.
pub fn changes(
    before: &FormerRules,
    rulings: &Rulings,
    config: &Config,
    node: &LocalNode,
) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    node_ports(before, rulings, config, node, &mut lines)?;
    match (before, config.mode) {
        (FormerRules::Iptables(found), ProxyMode::Nftables) => to_nftables(found, rulings, &mut lines),
        (FormerRules::Nftables(_), ProxyMode::Iptables) => to_iptables(rulings, &mut lines),
        // From upstream's nftables mode to ours.
        _ => affinity(rulings, &mut lines),
    }
    Ok(lines)
}

fn node_ports(
    before: &FormerRules,
    rulings: &Rulings,
    config: &Config,
    node: &LocalNode,
    lines: &mut Vec<String>,
) -> anyhow::Result<()> {
    let served: Vec<String> = rulings
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
        && modes::iptables_settings(config, rulings.family, node, abilities)?.serves_localhost();
    match (before.serves_localhost(), serves_localhost) {
        (true, false) => {
            lines.extend(served.iter().map(|port| format!("{port} stops answering on 127.0.0.1")))
        }
        (false, true) => {
            lines.extend(served.iter().map(|port| format!("{port} starts to answer on 127.0.0.1")))
        }
        (true, true) | (false, false) => {}
    }
    let is_everywhere = modes::node_port_addresses(config, rulings.family, node).match_all();
    let not_loopback = |ips: BTreeSet<IpAddr>| -> BTreeSet<IpAddr> {
        ips.into_iter().filter(|ip| !ip.is_loopback()).collect()
    };
    let after: Option<BTreeSet<IpAddr>> =
        (!is_everywhere).then(|| not_loopback(rulings.node_port_ips(config, node).into_iter().collect()));
    let before = before.node_port_ips().map(|ips| not_loopback(ips.clone()));
    if before != after {
        let all: BTreeSet<IpAddr> = rulings
            .interfaces
            .iter()
            .copied()
            .filter(|ip| Family::of(*ip) == rulings.family && !ip.is_loopback())
            .collect();
        let (old, new) = (before.unwrap_or_else(|| all.clone()), after.unwrap_or(all));
        let list = |ips: Vec<&IpAddr>| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (gone, come): (Vec<_>, Vec<_>) = (old.difference(&new).collect(), new.difference(&old).collect());
        for port in &served {
            if !gone.is_empty() {
                lines.push(format!("{port} stops answering on {}", list(gone.clone())));
            }
            if !come.is_empty() {
                lines.push(format!("{port} starts to answer on {}", list(come.clone())));
            }
        }
    }
    Ok(())
}

fn to_nftables(found: &PresentRules, rulings: &Rulings, lines: &mut Vec<String>) {
    if let Some((ip, name, more)) = cluster_ips(rulings) {
        lines.push(format!(
            "ports that no service has at a cluster IP are refused instead of sent to the network, as at {ip} ({name}){more}"
        ));
    }
    for cidr in &rulings.service_cidrs {
        lines
            .push(format!("addresses of {cidr} that no service has go unanswered instead of to the network"));
    }
    for (name, routing) in unserved(rulings) {
        for ip in external(routing) {
            lines.push(format!(
                "{ip} ({name}), which has no endpoints, is refused to this node itself, too, instead of sent to the network"
            ));
        }
    }
    if found.forward_drops && !rulings.routings.is_empty() {
        lines.push(
            "the FORWARD chain of iptables drops what no rule accepts, and this mode accepts nothing there: traffic to \
             and from pods needs a rule of its own"
                .into(),
        );
    } else if !rulings.routings.is_empty() {
        lines.push("forwarded service traffic is no longer accepted ahead of other rules in FORWARD".into());
    }
    for port in health_checks(rulings) {
        lines.push(format!("{port} is no longer accepted ahead of other rules in INPUT"));
    }
    if found.drops_invalid {
        lines.push(
            "forwarded packets that belong to no connection (ct state invalid) are no longer dropped".into(),
        );
    }
    affinity(rulings, lines);
}

fn to_iptables(rulings: &Rulings, lines: &mut Vec<String>) {
    if let Some((ip, name, more)) = cluster_ips(rulings) {
        lines.push(format!(
            "ports that no service has at a cluster IP are sent to the network instead of refused, as at {ip} ({name}){more}"
        ));
    }
    for cidr in &rulings.service_cidrs {
        lines.push(format!("what goes to addresses of {cidr} that no service has is sent to the network"));
    }
    for (name, routing) in unserved(rulings) {
        for ip in external(routing) {
            lines.push(format!(
                "what this node itself sends to {ip} ({name}), which has no endpoints, goes to the network instead of being refused"
            ));
        }
    }
    if !rulings.routings.is_empty() {
        lines.push("forwarded service traffic is accepted ahead of other rules in FORWARD".into());
    }
    for port in health_checks(rulings) {
        lines.push(format!("{port} is accepted ahead of other rules in INPUT"));
    }
    lines.push("forwarded packets that belong to no connection (ct state INVALID) are dropped".into());
    affinity(rulings, lines);
}

/// One of them, whose it is, and how many more there are.
fn cluster_ips(rulings: &Rulings) -> Option<(IpAddr, &ServicePortName, String)> {
    let ips: BTreeSet<IpAddr> =
        rulings.routings.iter().map(|(_, routing)| routing.addresses.cluster_ip).collect();
    let (name, routing) = rulings.routings.first()?;
    let more = ips.len().saturating_sub(1);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    Some((routing.addresses.cluster_ip, name, more))
}

fn unserved(rulings: &Rulings) -> impl Iterator<Item = (&ServicePortName, &Routing)> {
    let all = rulings.routings.iter().map(|(name, routing)| (name, &**routing));
    all.filter(|(_, routing)| routing.external == Traffic::RejectNoEndpoints)
}

fn external(routing: &Routing) -> impl Iterator<Item = String> {
    let addresses = &routing.addresses;
    let ips = addresses.external_ips.iter().chain(&addresses.load_balancer_ips);
    ips.map(|ip| format!("{}/{}", model::address::host_port(*ip, routing.port.get()), routing.protocol))
}

/// Each once: the ports of a Service share theirs.
fn health_checks(rulings: &Rulings) -> BTreeSet<String> {
    let ports = rulings.routings.iter().filter_map(|(name, routing)| {
        routing.health_check_node_port.map(|port| format!("health check node port {port} ({})", name.service))
    });
    ports.collect()
}

fn affinity(rulings: &Rulings, lines: &mut Vec<String>) {
    for (name, routing) in rulings.routings.iter().filter(|(_, routing)| routing.affinity.is_some()) {
        let seconds = routing.affinity.unwrap_or_default();
        lines.push(format!("clients of {name} (session affinity {seconds}s) are balanced once more"));
    }
}
