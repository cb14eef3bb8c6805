//! From configuration to backends: which families the configured mode can serve on this machine, and with which settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use kernel::sysctl::Sysctls;
use kernel::{iptables, ipvs, nftables, version};
use model::address::{Family, cidrs_of_family};
use model::local::{FromPod, NodePortAddresses};
use plan::explain;
use plan::iptables::program::Abilities;
use plan::ipvs::desired::{HASH_SCHEDULER, ServerSettings};
use plan::ipvs::plan::IpvsPlan;
use plan::mark::Mark;
use plan::mode::Mode;
use plan::nftables::sets::Balancer;
use settings::config::{Config, DetectLocalMode, ProxyMode};

use crate::backend::{Backend, Iptables, Ipvs, Nftables};
use crate::metrics::Metrics;
use crate::node::LocalNode;

/// Access to the kernel for the configured mode, by family that it can serve.
#[derive(Debug)]
pub enum Access {
    Nftables(BTreeMap<Family, nftables::KernelTable>),
    Iptables(BTreeMap<Family, iptables::Rules>),
    Ipvs(BTreeMap<Family, IpvsAccess>),
}

/// Access to the kernel for the ipvs mode, and the schedulers that it has besides the configured one.
#[derive(Debug)]
pub struct IpvsAccess {
    table: nftables::KernelTable,
    servers: ipvs::KernelServers,
    can_weigh: bool,
    can_hash: bool,
}

impl Access {
    /// Changes nothing, except that IPVS gets a virtual server for a moment to load the scheduler. A mode that is not available is an
    /// error: there is no fallback to another one.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        match config.mode {
            ProxyMode::Nftables => open_nftables(),
            ProxyMode::Iptables => open_iptables(),
            ProxyMode::Ipvs => open_ipvs(scheduler(config)).context("can't use the IPVS proxier"),
        }
    }

    pub fn families(&self) -> Vec<Family> {
        match self {
            Self::Nftables(tables) => tables.keys().copied().collect(),
            Self::Iptables(rules) => rules.keys().copied().collect(),
            Self::Ipvs(accesses) => accesses.keys().copied().collect(),
        }
    }

    /// Whether clients can be hashed to endpoints.
    pub fn can_hash(&self, family: Family) -> bool {
        let can_hash = match self {
            Self::Nftables(tables) => tables.get(&family).map(|table| table.abilities().hashing),
            Self::Iptables(_) => None,
            Self::Ipvs(accesses) => accesses.get(&family).map(|access| access.can_hash),
        };
        can_hash.unwrap_or(false)
    }

    /// Sets up the machine, and returns the backend of each family.
    pub fn into_backends(
        self,
        config: &Config,
        node: &LocalNode,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<BTreeMap<Family, BackendParts>> {
        let mut backends = BTreeMap::new();
        match self {
            Self::Nftables(accesses) => {
                tracing::info!("Using nftables Proxier");
                for (family, access) in accesses {
                    let addresses = node_port_addresses(config, family, node);
                    let settings = nftables_settings(config, family, node, access.abilities().hashing)?;
                    let backend = Box::new(Nftables::new(access, settings, metrics.clone()));
                    let explain_settings = explain_settings(config, family, node)?;
                    backends.insert(
                        family,
                        BackendParts { backend, node_port_addresses: addresses, explain_settings },
                    );
                }
            }
            Self::Iptables(accesses) => {
                tracing::info!("Using iptables Proxier");
                for (family, access) in accesses {
                    let addresses = node_port_addresses(config, family, node);
                    let settings = iptables_settings(config, family, node, access.abilities())?;
                    iptables::set_up(&settings, &Sysctls::default()).with_context(|| create_error(family))?;
                    let backend =
                        Box::new(Iptables::new(access, settings, config.sync_period, metrics.clone()));
                    let explain_settings = explain_settings(config, family, node)?;
                    backends.insert(
                        family,
                        BackendParts { backend, node_port_addresses: addresses, explain_settings },
                    );
                }
            }
            Self::Ipvs(accesses) => {
                tracing::info!("Using ipvs Proxier");
                for (family, access) in accesses {
                    let IpvsAccess { table, mut servers, can_weigh, .. } = access;
                    set_up_ipvs(&config.ipvs, &Sysctls::default(), &mut servers)
                        .with_context(|| create_error(family))?;
                    let program = nftables_settings(config, family, node, false)?;
                    let mut settings = server_settings(config, family);
                    if !can_weigh {
                        settings.weighted_scheduler = settings.scheduler.clone();
                    }
                    let plan = IpvsPlan::new(program, settings);
                    let backend = Box::new(Ipvs::new(plan, table, servers, metrics));
                    let node_port_addresses = node_port_addresses(config, family, node);
                    let explain_settings = explain_settings(config, family, node)?;
                    backends.insert(family, BackendParts { backend, node_port_addresses, explain_settings });
                }
            }
        }
        Ok(backends)
    }
}

/// The backend of one family, and what depends on the same settings.
#[derive(Debug)]
pub struct BackendParts {
    pub backend: Box<dyn Backend>,
    pub node_port_addresses: NodePortAddresses,
    pub explain_settings: explain::ExplainSettings,
}

/// What the path of packets depends on in the configured mode.
pub fn explain_settings(
    config: &Config,
    family: Family,
    node: &LocalNode,
) -> anyhow::Result<explain::ExplainSettings> {
    let node_port_addresses = node_port_addresses(config, family, node);
    let mode = match config.mode {
        ProxyMode::Nftables => Mode::Nftables,
        ProxyMode::Iptables => Mode::Iptables,
        ProxyMode::Ipvs => Mode::Ipvs,
    };
    Ok(explain::ExplainSettings {
        mode,
        mark: mark(config)?,
        masquerade_all: config.masquerade_all,
        from_pod: from_pod(config, family, node),
        serves_localhost: mode == Mode::Iptables
            && config.localhost_node_ports
            && family == Family::V4
            && node_port_addresses.contain_ipv4_loopback,
        node_port_addresses,
    })
}

fn create_error(family: Family) -> &'static str {
    match family {
        Family::V4 => "unable to create proxier: unable to create ipv4 proxier",
        Family::V6 => "unable to create proxier: unable to create ipv6 proxier",
    }
}

fn open_nftables() -> anyhow::Result<Access> {
    require_kernel()?;
    let mut accesses = BTreeMap::new();
    for family in families_of_kernel() {
        accesses.insert(family, nftables::KernelTable::open(family).context(create_error(family))?);
    }
    Ok(Access::Nftables(accesses))
}

fn open_ipvs(scheduler: &str) -> anyhow::Result<Access> {
    let mut accesses = BTreeMap::new();
    tracing::info!(scheduler, "Using IPVS scheduler");
    for family in families_of_kernel() {
        let mut servers = ipvs::KernelServers::open(family)?;
        servers.check_scheduler(scheduler)?;
        let weighted = ServerSettings::new(scheduler, Vec::new()).weighted_scheduler;
        let weighing = servers.check_scheduler(&weighted);
        if let Err(error) = &weighing {
            tracing::warn!(scheduler = %weighted, err = %error, "Ignoring the weights of endpoints");
        }
        let can_hash = servers.check_scheduler(HASH_SCHEDULER).is_ok();
        let table = nftables::KernelTable::open(family).context(create_error(family))?;
        accesses.insert(family, IpvsAccess { table, servers, can_weigh: weighing.is_ok(), can_hash });
    }
    Ok(Access::Ipvs(accesses))
}

/// Sets the kernel parameters of the ipvs mode. They hold for both families.
pub fn set_up_ipvs(
    settings: &settings::config::IpvsSettings,
    sysctls: &Sysctls,
    servers: &mut ipvs::KernelServers,
) -> anyhow::Result<()> {
    let strict_arp = [("net/ipv4/conf/all/arp_ignore", 1), ("net/ipv4/conf/all/arp_announce", 2)];
    let always = [
        ("net/ipv4/vs/conntrack", 1),
        ("net/ipv4/vs/expire_nodest_conn", 1),
        ("net/ipv4/vs/expire_quiescent_template", 1),
        ("net/ipv4/ip_forward", 1),
    ];
    // From then on, the kernel's default delays no connection from a port that was used a moment ago.
    let is_old = version::parse_release(&version::release()?).is_some_and(|found| found < (5, 9));
    let reuse = is_old.then_some(("net/ipv4/vs/conn_reuse_mode", 0));
    let strict_arp = strict_arp.into_iter().filter(|_| settings.strict_arp);
    for (name, value) in always.into_iter().chain(reuse).chain(strict_arp) {
        sysctls.ensure(name, value).with_context(|| format!("can't set sysctl {name} to {value}"))?;
    }
    let settings::config::IpvsSettings { tcp_timeout, tcp_fin_timeout, udp_timeout, .. } = settings;
    let [tcp, tcp_fin, udp] = [tcp_timeout, tcp_fin_timeout, udp_timeout]
        .map(|timeout| u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
    if [tcp, tcp_fin, udp] == [0; 3] {
        return Ok(());
    }
    if let Err(error) = servers.set_timeouts(ipvs::IpvsTimeouts { tcp, tcp_fin, udp }) {
        tracing::error!(err = %error, "Failed to configure IPVS timeouts");
    }
    Ok(())
}

/// What the virtual servers of the ipvs mode depend on.
pub fn server_settings(config: &Config, family: Family) -> ServerSettings {
    let exclude_cidrs = config.ipvs.exclude_cidrs.iter().copied();
    let exclude_cidrs = exclude_cidrs.filter(|cidr| Family::of_net(*cidr) == family).collect();
    ServerSettings::new(scheduler(config), exclude_cidrs)
}

fn scheduler(config: &Config) -> &str {
    match config.ipvs.scheduler.as_str() {
        "" => "rr",
        given => given,
    }
}

fn open_iptables() -> anyhow::Result<Access> {
    let mut accesses = BTreeMap::new();
    let mut first_error = None;
    for family in families_of_kernel() {
        match iptables::Rules::open(family) {
            Ok(access) => drop(accesses.insert(family, access)),
            // This does not mean that the family is unsupported, and a proxy that serves only the other one would be worse than none.
            Err(error) if error.is_contention() => {
                bail!(
                    "cannot determine whether iptables works on this host, another process holds its lock: {error}"
                )
            }
            Err(error) => {
                tracing::info!(ipFamily = %family, err = %error, "No iptables support for family");
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if accesses.is_empty() => bail!("iptables is not available on this host : {error}"),
        _ => Ok(Access::Iptables(accesses)),
    }
}

/// The oldest kernel that `make vm` tests. Before 5.6, sets have no ranges in concatenations; 5.8 passes the tests, too, but is no
/// longer maintained.
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// The oldest kernel of upstream's nftables mode, since nodes with an older one may have an `nft` before 1.0.1: it reads all tables
/// of the node whatever it is to do, and may fail on those of other programs.
const OLDEST_UPSTREAM_KERNEL: (u32, u32) = (5, 13);

/// Operators can skip the check by an environment variable, as in upstream.
fn require_kernel() -> anyhow::Result<()> {
    let skip = std::env::var_os("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK");
    if skip.is_some_and(|value| !value.is_empty()) {
        return Ok(());
    }
    let release = version::release().context("could not check kernel version")?;
    match version::parse_release(&release) {
        Some(found) if found >= OLDEST_UPSTREAM_KERNEL => Ok(()),
        Some(found) if found >= OLDEST_KERNEL => {
            tracing::warn!(
                release,
                "Kernel is older than 5.13: an nft program before 1.0.1 on this node may fail because of our table"
            );
            Ok(())
        }
        Some(_) => bail!("kube-proxy in nftables mode requires kernel 5.10 or later"),
        None => bail!("could not check kernel version: unexpected release {release:?}"),
    }
}

/// Includes IPv6 only if the kernel supports it and it is not disabled.
pub fn families_of_kernel() -> Vec<Family> {
    let mut families = vec![Family::V4];
    let disabled = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    if !Path::new("/proc/net/if_inet6").exists() {
        tracing::info!(ipFamily = %Family::V6, "No kernel support for family");
    } else if disabled.is_ok_and(|value| value.trim() == "1") {
        tracing::info!(ipFamily = %Family::V6, "Kernel support disabled for family");
    } else {
        families.push(Family::V6);
    }
    families
}

/// Whether the mode and the kernel can hash clients, for a process that does not program the kernel.
pub fn can_hash(config: &Config, family: Family) -> bool {
    match config.mode {
        // Without privileges it is not known.
        ProxyMode::Nftables => nftables::can_hash(family).unwrap_or(true),
        ProxyMode::Iptables => false,
        // To find out, one has to add a virtual server.
        ProxyMode::Ipvs => true,
    }
}

/// What the rules of the nftables and the ipvs mode depend on.
pub fn nftables_settings(
    config: &Config,
    family: Family,
    node: &LocalNode,
    can_hash: bool,
) -> anyhow::Result<plan::nftables::program::ProgramSettings> {
    Ok(plan::nftables::program::ProgramSettings {
        family,
        balancer: if config.mode == ProxyMode::Ipvs { Balancer::Ipvs } else { Balancer::Slots },
        mark: mark(config)?,
        masquerade_all: config.masquerade_all,
        from_pod: from_pod(config, family, node),
        node_ports_everywhere: node_port_addresses(config, family, node).match_all(),
        can_hash,
    })
}

/// What the rules of the iptables mode depend on.
pub fn iptables_settings(
    config: &Config,
    family: Family,
    node: &LocalNode,
    abilities: Abilities,
) -> anyhow::Result<plan::iptables::program::RuleSettings> {
    Ok(plan::iptables::program::RuleSettings {
        family,
        mark: mark(config)?,
        masquerade_all: config.masquerade_all,
        from_pod: from_pod(config, family, node),
        localhost_node_ports: config.localhost_node_ports,
        node_port_addresses: node_port_addresses(config, family, node),
        abilities,
    })
}

/// Where node ports are served.
pub fn node_port_addresses(config: &Config, family: Family, node: &LocalNode) -> NodePortAddresses {
    NodePortAddresses::new(family, &node.node_port_cidrs(config))
}

fn mark(config: &Config) -> anyhow::Result<Mark> {
    Mark::from_bit(config.masquerade_bit.into()).context("masquerade bit outside 0-31")
}

/// How traffic of this node's pods is distinguished from other traffic; `None` if that is not known.
fn from_pod(config: &Config, family: Family, node: &LocalNode) -> Option<FromPod> {
    let is_primary = family == node.ips.primary;
    match &config.detect_local {
        DetectLocalMode::ClusterCidr(cidrs) => {
            let found = FromPod::by_source(cidrs, family);
            if found.is_none() && is_primary {
                tracing::info!(ipFamily = %family, clusterCIDRs = ?config.cluster_cidrs, "Detect-local-mode set to ClusterCIDR, but no cluster CIDR specified for primary IP family");
            }
            found
        }
        DetectLocalMode::NodeCidr => {
            let texts = node.pod_cidrs.iter().map(String::as_str);
            let found = FromPod::by_source(&cidrs_of_family(family, texts).0, family);
            if found.is_none() && is_primary {
                tracing::info!(ipFamily = %family, podCIDRs = ?node.pod_cidrs, "Detect-local-mode set to NodeCIDR, but no PodCIDR defined at node for primary IP family");
            }
            found
        }
        DetectLocalMode::BridgeInterface(name) => Some(FromPod::Interface(name.clone())),
        DetectLocalMode::InterfaceNamePrefix(prefix) => Some(FromPod::InterfacePrefix(prefix.clone())),
    }
}
