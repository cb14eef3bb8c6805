//! The inputs of the rules of one IP family, and the desired state that a mode computes from them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use kernel::inspection::DesiredState;
use kernel::{interfaces, iptables, ipvs, nftables};
use model::address::Family;
use model::names::ServicePortName;
use model::routing::Routing;
use plan::ipvs::desired::usable_node_ips;
use proxy::modes;
use proxy::node::LocalNode;
use settings::config::{Config, ProxyMode};

use super::objects::ObjectSnapshot;

/// Everything that the rules of one family are computed from.
#[derive(Debug)]
pub struct FamilyInputs {
    pub family: Family,
    /// Sorted by name.
    pub routings: Vec<(ServicePortName, Arc<Routing>)>,
    pub service_cidrs: Vec<IpNet>,
    /// The number of endpoints of all service ports, usable or not.
    pub endpoints: usize,
    /// All addresses of this machine.
    pub interfaces: Vec<IpAddr>,
    /// See [`ObjectSnapshot::rejected`].
    pub rejected: Vec<String>,
}

impl FamilyInputs {
    /// The inputs of each family, and the configuration and node that they share.
    pub fn of(objects: ObjectSnapshot) -> anyhow::Result<(Config, LocalNode, Vec<Self>)> {
        let ObjectSnapshot { config, node, clusters, rejected } = objects;
        let interfaces = interfaces::addresses().context("listing the node's addresses")?;
        let mut all = Vec::new();
        for (family, cluster) in clusters {
            let routings = cluster.routings().into_iter();
            let routings: BTreeMap<_, _> =
                routings.map(|(name, routing)| (name.clone(), routing.clone())).collect();
            all.push(Self {
                family,
                routings: routings.into_iter().collect(),
                service_cidrs: cluster.service_cidrs(),
                endpoints: cluster.counts().endpoints,
                interfaces: interfaces.clone(),
                rejected: rejected.clone(),
            });
        }
        Ok((config, node, all))
    }

    /// The addresses that serve node ports. A mode whose rules do not list them ignores them.
    pub fn node_port_ips(&self, config: &Config, node: &LocalNode) -> Vec<IpAddr> {
        let serving = modes::node_port_addresses(config, self.family, node).among(&self.interfaces);
        match config.mode {
            ProxyMode::Ipvs => usable_node_ips(&serving, self.family).collect(),
            ProxyMode::Nftables | ProxyMode::Iptables => serving,
        }
    }
}

/// The desired state of the kernel; `None` for a family that the mode does not support on this node.
pub fn desired_state(
    inputs: &FamilyInputs,
    config: &Config,
    node: &LocalNode,
) -> anyhow::Result<Option<DesiredState>> {
    let family = inputs.family;
    match config.mode {
        ProxyMode::Nftables => {
            Ok(Some(DesiredState::Nftables(Box::new(table_snapshot(inputs, config, node)?))))
        }
        ProxyMode::Iptables => {
            let access = match iptables::Rules::open(family) {
                Ok(access) => access,
                // The proxy then serves the primary family only.
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
                inputs.routings.clone(),
                inputs.endpoints,
                &inputs.interfaces,
            )))))
        }
        ProxyMode::Ipvs => {
            let table = table_snapshot(inputs, config, node)?;
            let settings = modes::server_settings(config, family);
            let snapshot = ipvs::ServersSnapshot::new(table, settings, &inputs.interfaces);
            Ok(Some(DesiredState::Ipvs(Box::new(snapshot))))
        }
    }
}

/// The desired table of the nftables or the ipvs mode.
fn table_snapshot(
    inputs: &FamilyInputs,
    config: &Config,
    node: &LocalNode,
) -> anyhow::Result<nftables::TableSnapshot> {
    let can_hash = modes::can_hash(config, inputs.family);
    let settings = modes::nftables_settings(config, inputs.family, node, can_hash)?;
    let routings = inputs.routings.iter();
    Ok(nftables::TableSnapshot::new(
        settings,
        routings.map(|(name, routing)| (name.clone(), Some(routing.clone()))).collect(),
        inputs.service_cidrs.clone(),
        inputs.node_port_ips(config, node),
    ))
}
