//! Builds one configuration from the flags or the file, and fills in what upstream defaults per platform.

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

/// A configuration with all defaults applied, not yet validated.
#[derive(Debug)]
pub struct Completed {
    pub config: KubeProxyConfiguration,
    /// `config.cluster_cidr` cannot hold this: an empty flag means one empty range, an empty field means none.
    pub cluster_cidrs: Vec<String>,
    pub gates: Gates,
    /// Whether `min_sync_period` was left at its default, so that a mode may choose its own pause between syncs.
    pub min_sync_is_default: bool,
}

/// With `--config` only the file counts, except for logging and the host name; without it, only the flags count.
///
/// Values that are filled in here are also set in `flags`, so that the `FLAG:` lines of the log and `/flagz` show the
/// effective values.
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

/// What is read from the flags, or from the file.
struct Source {
    config: KubeProxyConfiguration,
    cluster_cidrs: Vec<String>,
    min_sync_is_default: bool,
}

/// The deprecated `--healthz-port` and `--metrics-port`: a port of 0 disables the server.
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
    // The nftables mode has no flags of its own and uses those of the iptables mode, as upstream does.
    let (sync, min_sync, min_sync_flag) = if config.mode == "ipvs" {
        (flags.ipvs_sync_period, flags.ipvs_min_sync_period, "ipvs-min-sync-period")
    } else {
        (flags.iptables_sync_period, flags.iptables_min_sync_period, "iptables-min-sync-period")
    };
    config.set_mode_settings(ModeSettings { sync, min_sync, masquerade_all: flags.masquerade_all });
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
    let min_sync_is_default = config.mode_settings().min_sync == Duration::ZERO;
    config.apply_defaults();
    copy_logging_flags(flags, &mut config.logging);
    apply_platform_defaults(&mut config);
    let settings = config.mode_settings();
    config.set_mode_settings(settings);
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

/// The logging flags override the file if they are given.
fn copy_logging_flags(flags: &Flags, logging: &mut LoggingConfiguration) {
    let from = &flags.config.logging;
    let given = |name| flags.given(name);
    if given("v") {
        logging.verbosity = from.verbosity;
    }
    if given("vmodule") {
        // The first match wins, so the patterns of the command line go first.
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

/// The defaults that upstream applies per operating system, here those of Linux.
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

/// Settings that each mode has in a section of its own; only those of the configured mode apply.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModeSettings {
    pub(super) sync: Duration,
    pub(super) min_sync: Duration,
    pub(super) masquerade_all: bool,
}

impl KubeProxyConfiguration {
    pub(super) fn mode_settings(&self) -> ModeSettings {
        let (iptables, ipvs, nftables) = (&self.iptables, &self.ipvs, &self.nftables);
        let (sync, min_sync, masquerade_all) = match self.mode.as_str() {
            "ipvs" => (ipvs.sync_period, ipvs.min_sync_period, iptables.masquerade_all),
            "nftables" => (nftables.sync_period, nftables.min_sync_period, nftables.masquerade_all),
            _ => (iptables.sync_period, iptables.min_sync_period, iptables.masquerade_all),
        };
        ModeSettings { sync, min_sync, masquerade_all }
    }

    /// Sets the values in the section of the mode and clears them in the others, as upstream's `/configz` shows them.
    fn set_mode_settings(&mut self, settings: ModeSettings) {
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
        (*sync, *min_sync, *masquerade_all) = (settings.sync, settings.min_sync, settings.masquerade_all);
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

fn resolve_gates(configured: &BTreeMap<String, bool>) -> anyhow::Result<Gates> {
    let gates = Gates::resolve(configured)?;
    for (name, value) in configured {
        if let Some(warning) = gates::find(name).and_then(|gate| gate.warning()) {
            tracing::info!(featureGate = name, value, "{warning}");
        }
    }
    Ok(gates)
}

fn split(cidrs: &str) -> Vec<String> {
    cidrs.split(',').map(str::to_owned).collect()
}
