//! What the desired state of a node follows from, and what a mode makes of it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use kernel::inspection::DesiredState;
use kernel::{interfaces, iptables, nftables};
use model::address::Family;
use model::names::ServicePortName;
use model::routing::Routing;
use proxy::modes;
use proxy::node::Node;
use settings::config::{Config, ProxyMode};

use super::desired::Desired;

/// Everything that one family's rules follow from.
#[derive(Debug)]
pub struct Rulings {
    pub family: Family,
    /// In the order of their names.
    pub routings: Vec<(ServicePortName, Arc<Routing>)>,
    pub service_cidrs: Vec<IpNet>,
    /// Of all service ports, usable or not.
    pub endpoints: usize,
    /// All addresses of the node.
    pub interfaces: Vec<IpAddr>,
    /// See [`Desired::left_out`].
    pub left_out: Vec<String>,
}

impl Rulings {
    /// For each family, and with it what else was read.
    pub fn of(desired: Desired) -> anyhow::Result<(Config, Node, Vec<Self>)> {
        let Desired { config, node, clusters, left_out } = desired;
        let interfaces = interfaces::addresses().context("listing the node's addresses")?;
        let mut all = Vec::new();
        for (family, mut cluster) in clusters {
            cluster.take_changes();
            let routings = cluster.routings().into_iter();
            let routings: BTreeMap<_, _> =
                routings.map(|(name, routing)| (name.clone(), routing.clone())).collect();
            all.push(Self {
                family,
                routings: routings.into_iter().collect(),
                service_cidrs: cluster.service_cidrs(),
                endpoints: cluster.counts().endpoints,
                interfaces: interfaces.clone(),
                left_out: left_out.clone(),
            });
        }
        Ok((config, node, all))
    }

    /// The addresses that serve node ports; none where all do.
    pub fn node_port_ips(&self, config: &Config, node: &Node) -> Vec<IpAddr> {
        let addresses = modes::node_port_addresses(config, self.family, node);
        if addresses.match_all() { Vec::new() } else { addresses.among(&self.interfaces) }
    }

    /// The same for the mode in which loopback can't serve them.
    pub fn node_port_ips_for_nftables(&self, config: &Config, node: &Node) -> Vec<IpAddr> {
        self.node_port_ips(config, node).into_iter().filter(|ip| !ip.is_loopback()).collect()
    }
}

/// What the kernel should hold; nothing for a family that the mode cannot serve here.
pub fn desired_state(
    rulings: &Rulings,
    config: &Config,
    node: &Node,
) -> anyhow::Result<Option<DesiredState>> {
    let family = rulings.family;
    match config.mode {
        ProxyMode::Nftables => {
            let settings = modes::nftables_settings(config, family, node)?;
            let routings = rulings.routings.iter();
            Ok(Some(DesiredState::Nftables(Box::new(nftables::TableSnapshot::new(
                settings,
                routings.map(|(name, routing)| (name.clone(), Some(routing.clone()))).collect(),
                rulings.service_cidrs.clone(),
                rulings.node_port_ips_for_nftables(config, node),
            )))))
        }
        ProxyMode::Iptables => {
            let access = match iptables::Rules::open(family) {
                Ok(access) => access,
                // As the proxy does, which serves the other family then.
                Err(error) if family != node.ips.primary => {
                    tracing::info!(ipFamily = %family, err = %error, "No iptables support for family");
                    return Ok(None);
                }
                Err(error) => bail!("iptables is not available on this host: {error}"),
            };
            let settings = modes::iptables_settings(config, family, node, access.abilities())?;
            Ok(Some(DesiredState::Iptables(Box::new(iptables::RulesSnapshot::new(
                &access,
                settings,
                rulings.routings.clone(),
                rulings.endpoints,
                &rulings.interfaces,
            )))))
        }
        ProxyMode::Ipvs => {
            bail!("the ipvs mode is not available yet, use --proxy-mode nftables or iptables")
        }
    }
}
