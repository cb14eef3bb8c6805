//! The life of the proxy server once its configuration is settled: cleaning up, building it, running it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kernel::nftables::{Access, Table};
use kernel::version;
use model::address::Family;
use model::cluster::Here;
use model::event::Event;
use model::local::{FromPod, NodePortAddresses};
use model::node::{NodeIps, host_ips};
use model::{address, api};
use plan::nftables::program::Settings;
use plan::nftables::words::Mark;
use watch::manifests::Manifests;

use crate::config::{self, Config, DetectLocal, ProxyMode};
use crate::family::{Line, Message, Periods, Start};
use crate::gates::Gate;
use crate::logs::Logs;
use crate::tuning;

/// What the command line asks for beyond the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file, to be watched for changes.
    pub config_file: Option<String>,
    /// Overrides the API server of the kubeconfig file.
    pub master: Option<String>,
    /// Serve from these files; excludes every way to name an API server.
    pub manifests: Option<String>,
    pub cleanup: bool,
    pub init_only: bool,
    /// The version to report.
    pub version: String,
    /// Every flag with its value, by name: `/flagz`.
    pub flags: Vec<(&'static str, String)>,
    pub logs: Logs,
}

/// Returns only when there is nothing left to do, or with the reason to stop.
pub fn run(config: Config, options: Options) -> anyhow::Result<()> {
    if options.cleanup {
        return clean_up();
    }
    match config.mode {
        ProxyMode::Nftables => {}
        ProxyMode::Iptables => bail!("the iptables mode is not available yet, use --proxy-mode nftables"),
        ProxyMode::Ipvs => bail!("the ipvs mode is not available yet, use --proxy-mode nftables"),
    }
    tuning::set_up_conntrack(&config.conntrack)?;
    require_kernel()?;
    let mut kernels = BTreeMap::new();
    for family in supported_families() {
        let what = match family {
            Family::V4 => "unable to create proxier: unable to create ipv4 proxier",
            Family::V6 => "unable to create proxier: unable to create ipv6 proxier",
        };
        kernels.insert(family, Access::open(family).context(what)?);
    }
    tracing::info!("Using nftables Proxier");
    if options.init_only {
        tracing::info!("System initialized and --init-only specified");
        return Ok(());
    }
    let Some(manifests) = &options.manifests else {
        bail!("following an API server is not available yet, use --manifests to serve from a folder");
    };
    tracing::info!(version = options.version, "Version info");
    tuning::set_oom_score(config.oom_score_adj);
    serve(&config, Path::new(manifests), kernels)
}

/// Removes what any mode may have left. Goes on past a failure, so that as much as possible is gone.
fn clean_up() -> anyhow::Result<()> {
    let mut failed = false;
    for family in Family::BOTH {
        if let Err(error) = Table::remove(family) {
            tracing::error!(ipFamily = %family, err = format!("{:#}", anyhow::Error::from(error)), "Error cleaning up nftables rules");
            failed = true;
        }
    }
    if failed { bail!("encountered an error while tearing down rules") } else { Ok(()) }
}

/// Follows the folder for ever. Families hear of everything from the start, and begin to act once this node is known.
fn serve(config: &Config, folder: &Path, kernels: BTreeMap<Family, Access>) -> anyhow::Result<()> {
    let node_name = node_name(config)?;
    let mut lines = BTreeMap::new();
    for family in kernels.keys() {
        let here = Here {
            family: *family,
            node_name: node_name.clone(),
            node_ip: family.loopback(),
            serve_external_ips: config.gates.enabled(Gate::AllowServiceExternalIPs),
            started: Timestamp::now(),
        };
        lines.insert(*family, Line::spawn(here).context("starting a thread")?);
    }
    let shown = folder.display();
    let mut source =
        Manifests::open(folder, &node_name).with_context(|| format!("reading manifests in {shown}"))?;
    let mut node = None;
    let mut hear = |event: Event| {
        if let Event::NodeApplied(applied) = &event {
            node.get_or_insert_with(|| applied.clone());
        }
        tell(&lines, event);
    };
    source.list(&mut hear).with_context(|| format!("reading manifests in {shown}"))?;
    start(config, node.as_deref(), kernels, &lines)?;
    follow_addresses(lines.values().cloned().collect())?;
    loop {
        source
            .follow(None, &mut |event| tell(&lines, event))
            .with_context(|| format!("following manifests in {shown}"))?;
    }
}

/// Tells every family what it needs to know about this node.
fn start(
    config: &Config,
    node: Option<&api::Node>,
    kernels: BTreeMap<Family, Access>,
    lines: &BTreeMap<Family, SyncSender<Message>>,
) -> anyhow::Result<()> {
    let host_ips = match node {
        Some(node) => host_ips(node),
        None => default_route_ips(),
    };
    let ips = NodeIps::new(&host_ips, Some(config.bind_address));
    if host_ips.is_empty() && ips.of(ips.primary).is_loopback() {
        tracing::info!(
            "Can't determine this node's IP, assuming loopback; if this is incorrect, please set the --bind-address flag"
        );
    } else {
        tracing::info!(NodeIPs = ?[ips.v4, ips.v6], "Successfully retrieved NodeIPs");
    }
    if !lines.contains_key(&ips.primary) {
        bail!("no support for primary IP family {:?}", ips.primary.to_string());
    }
    if lines.len() > 1 {
        tracing::info!("primary ipFamily" = %ips.primary, "kube-proxy running in dual-stack mode");
    } else {
        tracing::info!(ipFamily = %ips.primary, "kube-proxy running in single-stack mode");
    }
    for (family, kernel) in kernels {
        let node_port_addresses = node_port_addresses(config, family, &ips);
        let settings = settings(config, family, node, &node_port_addresses)?;
        let start = Start {
            node_ip: ips.of(family),
            table: Table::new(kernel, settings),
            node_port_addresses,
            periods: Periods { min_sync: config.min_sync_period, sync: config.sync_period },
        };
        let line = lines.get(&family).context("every family has a line")?;
        line.send(Message::Start(Box::new(start))).context("a family's thread has ended")?;
    }
    Ok(())
}

fn tell(lines: &BTreeMap<Family, SyncSender<Message>>, event: Event) {
    let event = Arc::new(event);
    for line in lines.values() {
        // A family's thread ends only with the process.
        let _ = line.send(Message::Event(event.clone()));
    }
}

/// `--hostname-override`, or the host's name.
fn node_name(config: &Config) -> anyhow::Result<String> {
    let host;
    let name = if config.hostname_override.is_empty() {
        host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        &host
    } else {
        &config.hostname_override
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        bail!("empty hostname is invalid");
    }
    Ok(name)
}

/// Older kernels lack things we rely on, and some crash. Who knows better may say so in the environment.
fn require_kernel() -> anyhow::Result<()> {
    let skip = std::env::var_os("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK");
    if skip.is_some_and(|value| !value.is_empty()) {
        return Ok(());
    }
    let release = version::release().context("could not check kernel version")?;
    match version::parse_release(&release) {
        Some(found) if found >= (5, 13) => Ok(()),
        Some(_) => bail!("kube-proxy in nftables mode requires kernel 5.13 or later"),
        None => bail!("could not check kernel version: {release:?} is none"),
    }
}

/// IPv6 counts only where the kernel has it and it is not switched off.
fn supported_families() -> Vec<Family> {
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

/// Without a Node object: the addresses this host speaks from by default.
fn default_route_ips() -> Vec<IpAddr> {
    let found =
        Family::BOTH.into_iter().filter_map(|family| match kernel::interfaces::default_address(family) {
            Ok(address) => address,
            Err(error) => {
                tracing::error!(ipFamily = %family, err = %error, "Failed to look up the default route");
                None
            }
        });
    found.collect()
}

/// `primary` stands for the node's own address; where that is not known, for all.
fn node_port_addresses(config: &Config, family: Family, ips: &NodeIps) -> NodePortAddresses {
    match &config.node_port_addresses {
        config::NodePortAddresses::Cidrs(cidrs) => NodePortAddresses::new(family, cidrs),
        config::NodePortAddresses::Primary => {
            let known = [ips.v4, ips.v6].into_iter().filter(|ip| !ip.is_loopback());
            NodePortAddresses::new(family, &known.map(Into::into).collect::<Vec<_>>())
        }
    }
}

fn settings(
    config: &Config,
    family: Family,
    node: Option<&api::Node>,
    node_port_addresses: &NodePortAddresses,
) -> anyhow::Result<Settings> {
    let mark = Mark::from_bit(config.masquerade_bit.into()).context("masquerade bit outside 0-31")?;
    let from_pod = match &config.detect_local {
        DetectLocal::ClusterCidr(cidrs) => FromPod::by_source(cidrs, family),
        DetectLocal::NodeCidr => {
            let texts = node.into_iter().flat_map(|node| &node.spec.pod_cidrs).map(String::as_str);
            FromPod::by_source(&address::cidrs_of_family(family, texts).0, family)
        }
        DetectLocal::BridgeInterface(name) => Some(FromPod::Interface(name.clone())),
        DetectLocal::InterfaceNamePrefix(prefix) => Some(FromPod::InterfacePrefix(prefix.clone())),
    };
    Ok(Settings {
        family,
        mark,
        masquerade_all: config.masquerade_all,
        from_pod,
        node_ports_everywhere: node_port_addresses.match_all(),
    })
}

/// Lets every family know when the node's addresses change.
fn follow_addresses(lines: Vec<SyncSender<Message>>) -> anyhow::Result<()> {
    let tell = move || lines.iter().all(|line| line.send(Message::Moved).is_ok());
    let follow = move || {
        if let Err(error) = kernel::interfaces::on_change(tell) {
            tracing::error!(err = %error, "Failed to follow the node's addresses");
        }
    };
    std::thread::Builder::new().name("addresses".into()).spawn(follow).context("starting a thread")?;
    Ok(())
}
