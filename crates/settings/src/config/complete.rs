//! From flags and file to one configuration: which of the two counts, and what the platform adds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;

use anyhow::{anyhow, bail};

use super::defaults::add_port;
use super::v1alpha1::{Decoded, KubeProxyConfiguration, LoggingConfiguration};
use crate::duration::Duration;
use crate::flags::Flags;
use crate::gates::{self, Gates};
use crate::go::os_error;

/// The configuration with nothing left open, still unchecked.
#[derive(Debug)]
pub struct Completed {
    pub config: KubeProxyConfiguration,
    /// Apart from `config.cluster_cidr` because an empty flag is one empty range, and an empty field none.
    pub cluster_cidrs: Vec<String>,
    pub gates: Gates,
    /// Nobody asked for a pause between syncs: a mode that knows a better one may use it.
    pub min_sync_is_default: bool,
}

/// With `--config` the file is everything, except for logging and the host name. Without it, the flags are.
///
/// Values that change on the way change in `flags` too, so that they show what is in force.
pub fn complete(flags: &mut Flags) -> anyhow::Result<Completed> {
    if flags.config_file.is_empty() && flags.write_config_to.is_empty() {
        apply_port_flags(flags);
    }
    let Source { mut config, cluster_cidrs, min_sync_is_default } =
        if flags.config_file.is_empty() { from_flags(flags) } else { from_file(flags)? };
    if let Some(hostname) = hostname_override(&flags.hostname_override)? {
        config.hostname_override = hostname;
    }
    let gates = resolve_gates(&config.feature_gates)?;
    Ok(Completed { config, cluster_cidrs, gates, min_sync_is_default })
}

/// What the flags say, or what the file says.
struct Source {
    config: KubeProxyConfiguration,
    cluster_cidrs: Vec<String>,
    min_sync_is_default: bool,
}

/// The deprecated way to move or switch off the two servers.
fn apply_port_flags(flags: &mut Flags) {
    for (address, port) in [
        (&mut flags.config.healthz_bind_address, flags.healthz_port),
        (&mut flags.config.metrics_bind_address, flags.metrics_port),
    ] {
        match port {
            0 => address.clear(),
            _ => add_port(address, port),
        }
    }
}

fn from_flags(flags: &mut Flags) -> Source {
    apply_platform_defaults(&mut flags.config);
    let mut config = flags.config.clone();
    // In nftables mode too it is the iptables flags that count: there are no others.
    let (sync, min_sync, min_sync_flag) = if config.mode == "ipvs" {
        (flags.ipvs_sync_period, flags.ipvs_min_sync_period, "ipvs-min-sync-period")
    } else {
        (flags.iptables_sync_period, flags.iptables_min_sync_period, "iptables-min-sync-period")
    };
    config.keep_section_of_mode(Shared { sync, min_sync, masquerade_all: flags.masquerade_all });
    let cluster_cidrs = if flags.given("cluster-cidr") { split(&flags.cluster_cidr) } else { Vec::new() };
    config.cluster_cidr = cluster_cidrs.join(",");
    Source { config, cluster_cidrs, min_sync_is_default: !flags.given(min_sync_flag) }
}

fn from_file(flags: &Flags) -> anyhow::Result<Source> {
    let path = &flags.config_file;
    let text = read(path)?;
    let Decoded { mut config, strict_error } =
        KubeProxyConfiguration::decode(&text).map_err(|error| anyhow!("failed to decode: {error}"))?;
    if let Some(err) = strict_error {
        tracing::info!(err, "Using lenient decoding as strict decoding failed");
    }
    let min_sync_is_default = config.section_of_mode().min_sync == Duration::ZERO;
    config.apply_defaults();
    copy_logging_flags(flags, &mut config.logging);
    apply_platform_defaults(&mut config);
    let shared = config.section_of_mode();
    config.keep_section_of_mode(shared);
    config.port_range.clear();
    let cluster_cidrs = if config.cluster_cidr.is_empty() { Vec::new() } else { split(&config.cluster_cidr) };
    Ok(Source { config, cluster_cidrs, min_sync_is_default })
}

fn read(path: &str) -> anyhow::Result<String> {
    let mut file = File::open(path).map_err(|error| anyhow!("open {path}: {}", os_error(&error)))?;
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(|error| anyhow!("read {path}: {}", os_error(&error)))?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// The only flags besides `--hostname-override` that a file does not silence, and only if they were given.
fn copy_logging_flags(flags: &Flags, logging: &mut LoggingConfiguration) {
    let from = &flags.config.logging;
    let given = |name| flags.given(name);
    if given("v") {
        logging.verbosity = from.verbosity;
    }
    if given("vmodule") {
        // The first pattern that matches counts, so those of the command line go first.
        logging.vmodule.splice(..0, from.vmodule.clone());
    }
    if given("logging-format") {
        logging.format.clone_from(&from.format);
    }
    if given("log-flush-frequency") {
        logging.flush_frequency = from.flush_frequency;
    }
    if given("log-text-split-stream") {
        logging.options.text.split_stream = from.options.text.split_stream;
    }
    if given("log-text-info-buffer-size") {
        logging.options.text.info_buffer_size = from.options.text.info_buffer_size;
    }
    if given("log-json-split-stream") {
        logging.options.json.split_stream = from.options.json.split_stream;
    }
    if given("log-json-info-buffer-size") {
        logging.options.json.info_buffer_size = from.options.json.info_buffer_size;
    }
}

/// What Linux makes of values left empty.
fn apply_platform_defaults(config: &mut KubeProxyConfiguration) {
    if config.mode.is_empty() {
        tracing::info!("Using iptables proxy");
        "iptables".clone_into(&mut config.mode);
    }
    if config.mode == "nftables" && config.node_port_addresses.as_ref().is_none_or(Vec::is_empty) {
        config.node_port_addresses = Some(vec!["primary".to_owned()]);
    }
    if config.detect_local_mode.is_empty() {
        "ClusterCIDR".clone_into(&mut config.detect_local_mode);
    }
}

/// What each mode has a section of its own for, though only one of them can be meant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    pub(super) sync: Duration,
    pub(super) min_sync: Duration,
    pub(super) masquerade_all: bool,
}

impl KubeProxyConfiguration {
    pub(super) fn section_of_mode(&self) -> Shared {
        let (iptables, ipvs, nftables) = (&self.iptables, &self.ipvs, &self.nftables);
        let (sync, min_sync, masquerade_all) = match self.mode.as_str() {
            "ipvs" => (ipvs.sync_period, ipvs.min_sync_period, iptables.masquerade_all),
            "nftables" => (nftables.sync_period, nftables.min_sync_period, nftables.masquerade_all),
            _ => (iptables.sync_period, iptables.min_sync_period, iptables.masquerade_all),
        };
        Shared { sync, min_sync, masquerade_all }
    }

    /// Writes the values to the section of the mode and clears them in the others: so the reference shows them.
    fn keep_section_of_mode(&mut self, shared: Shared) {
        let Self { iptables, ipvs, nftables, .. } = self;
        for period in [
            &mut iptables.sync_period,
            &mut iptables.min_sync_period,
            &mut ipvs.sync_period,
            &mut ipvs.min_sync_period,
            &mut nftables.sync_period,
            &mut nftables.min_sync_period,
        ] {
            *period = Duration::ZERO;
        }
        (iptables.masquerade_all, nftables.masquerade_all) = (false, false);
        let (sync, min_sync, masquerade_all) = match self.mode.as_str() {
            "ipvs" => (&mut ipvs.sync_period, &mut ipvs.min_sync_period, &mut iptables.masquerade_all),
            "nftables" => {
                (&mut nftables.sync_period, &mut nftables.min_sync_period, &mut nftables.masquerade_all)
            }
            _ => (&mut iptables.sync_period, &mut iptables.min_sync_period, &mut iptables.masquerade_all),
        };
        (*sync, *min_sync, *masquerade_all) = (shared.sync, shared.min_sync, shared.masquerade_all);
    }
}

fn hostname_override(flag: &str) -> anyhow::Result<Option<String>> {
    if flag.is_empty() {
        return Ok(None);
    }
    let name = flag.trim().to_lowercase();
    if name.is_empty() {
        bail!("empty hostname-override is invalid");
    }
    Ok(Some(name))
}

fn resolve_gates(wanted: &BTreeMap<String, bool>) -> anyhow::Result<Gates> {
    let gates = Gates::resolve(wanted)?;
    for (name, value) in wanted {
        if let Some(warning) = gates::known(name).and_then(|gate| gate.warning()) {
            tracing::info!(featureGate = name, value, "{warning}");
        }
    }
    Ok(gates)
}

fn split(cidrs: &str) -> Vec<String> {
    cidrs.split(',').map(str::to_owned).collect()
}
