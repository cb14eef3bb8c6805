//! Runs the proxy server with a validated configuration.
//!
//! ```text
//!   clean up ─▶ families ─▶ source ─▶ this node ─▶ checks, sysctls, backends ─▶ servers, syncs ─▶ until a reason to stop
//! ```

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use jiff::Timestamp;
use kernel::interfaces;
use model::address::Family;
use model::api;
use model::cluster::Here;
use model::event::Event;
use model::hashing::MAX_HASHED;
use settings::config::{self, Completed, Config, ProxyMode};
use settings::flags::Flags;
use settings::gates::Gate;
use settings::logs::Logs;
use settings::version::Build;
use watch::api_server::ApiServer;
use watch::client::{self, Api};
use watch::recorder::{Notice, Recorder, Regarding, Severity, recorder};

use crate::checks::{self, NodeProperties};
use crate::connections::ConnectionCounter;
use crate::family::{self, Families, Start};
use crate::file_watch::FileWatch;
use crate::flows::FlowFollower;
use crate::health::node::NodeHealth;
use crate::health::service::ServiceHealth;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::metrics::connections::NewConnections;
use crate::metrics::packets::{PacketCounts, Packets};
use crate::modes::{Access, BackendParts};
use crate::node::{self, LocalNode};
use crate::rate_limit::MinInterval;
use crate::source::{MainMessage, ObjectSource};
use crate::status::{self, Facts};
use crate::{audit, cleanup, health, signals, threads, tuning};

/// Settings of the command line that are not part of the configuration.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The configuration file, to be watched for changes.
    pub config_file: Option<String>,
    /// Overrides the API server of the kubeconfig file.
    pub master: Option<String>,
    /// The folder to read objects from, instead of an API server.
    pub manifests: Option<String>,
    /// Whether `/metrics` counts new connections, in the mode that counts them.
    pub connection_metrics: bool,
    /// The interval at which the audit compares a part of the kernel's state; zero disables the audit.
    pub audit_interval: Duration,
    pub cleanup: bool,
    pub init_only: bool,
    /// The version to report.
    pub version: String,
    /// Every flag with its value, by name: `/flagz`.
    pub flags: Vec<(&'static str, String)>,
    pub logs: Logs,
}

impl RunOptions {
    pub fn new(flags: &Flags, logs: Logs) -> Self {
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        Self {
            config_file: some(&flags.config_file),
            master: some(&flags.master),
            manifests: some(&flags.manifests),
            connection_metrics: flags.connection_metrics,
            audit_interval: flags.audit_interval.to_std().unwrap_or_default(),
            cleanup: flags.cleanup,
            init_only: flags.init_only,
            version: flags.version.reported().to_owned(),
            flags: flags.values(),
            logs,
        }
    }
}

/// Returns after `--cleanup` or `--init-only`, or with the reason to stop.
pub fn run(config: Config, options: RunOptions) -> anyhow::Result<()> {
    if options.cleanup {
        return cleanup::everything(&config.ipvs.exclude_cidrs);
    }
    tuning::raise_open_files();
    signals::ignore_unrelated()?;
    signals::end_process_one()?;
    // Opened first, so that no change of the file during the start is missed.
    let config_file = options.config_file.as_deref().map(FileWatch::open).transpose()?;
    let metrics = Arc::new(Metrics::new(config.mode));
    metrics.describe(&Build::reported_as(&options.version), &config.gates);
    let name = node::name(&config)?;
    let access = Access::open(&config)?;
    let (source, recorder) = source(&config, &options, &name, &metrics)?;
    let families = families(&config, &name, &access, &metrics, &recorder)?;
    let (main, inbox) = channel();
    let workers: Vec<_> = families.values().cloned().collect();
    let deliver = move |event: Arc<Event>| workers.iter().for_each(|worker| worker.apply(event.clone()));
    source.spawn(deliver, main.clone())?;

    let node = match options.manifests {
        Some(_) => LocalNode::from_folder(&config, name, &inbox)?,
        None => LocalNode::from_api_server(&config, name, &inbox)?,
    };
    tuning::set_up_conntrack(&config.conntrack)?;
    check(&config, &node, &access.families())?;
    let backends = access.into_backends(&config, &node, &metrics)?;
    if options.init_only {
        tracing::info!("System initialized and --init-only specified");
        return Ok(());
    }

    tracing::info!(version = options.version, "Version info");
    tuning::set_oom_score(config.oom_score_adj);
    let http = Http::start().context("starting a thread")?;
    let health = Arc::new(NodeHealth::new(config.sync_period, backends.keys().copied(), metrics.clone()));
    match &node.object {
        Some(object) => health.node_applied(object),
        // A node without an object in the folder is never deleted.
        None if options.manifests.is_some() => health.node_applied(&api::Node::default()),
        None => {}
    }
    let node_events = NodeEvents { node_name: node.name.clone(), recorder };
    warn_of_deprecation(config.mode, &node_events);
    serve_health(&config, &http, &health, &node_events)?;
    let connection_counter = Arc::new(ConnectionCounter::new(families.clone()));
    serve_status(&config, &options, &http, &metrics, &families, &connection_counter, &node_events)?;
    if options.connection_metrics && config.mode != ProxyMode::Iptables {
        count_connections(&families, &connection_counter, &metrics);
    }
    node_events.record(Severity::Normal, "Starting", String::new());
    // A family that is not served has no first sync to wait for. This must come after `--init-only` returns: until the proxy
    // itself starts, the rules of other modes serve.
    for family in Family::BOTH.into_iter().filter(|family| !backends.contains_key(family)) {
        cleanup::other_modes(config.mode, family, config.ipvs.exclude_cidrs.clone());
    }
    follow_addresses(families.clone())?;
    for (family, parts) in backends {
        let (mode, exclude) = (config.mode, config.ipvs.exclude_cidrs.clone());
        let BackendParts { backend, node_port_addresses, explain_settings } = parts;
        let service_health = ServiceHealth::new(
            family,
            &node_port_addresses,
            node.name.clone(),
            http.clone(),
            health.clone(),
            node_events.recorder.clone(),
        );
        let flows = FlowFollower::spawn(family, backend.contended(), metrics.clone())?;
        let start = Start {
            node_ip: node.ips.of(family),
            backend,
            flows,
            node_port_addresses,
            explain_settings,
            min_interval: min_interval(&config),
            sync_period: config.sync_period,
            health: health.clone(),
            service_health,
            take_over: Box::new(move || cleanup::other_modes(mode, family, exclude)),
        };
        let worker = families.get(&family).context("every family has a worker")?;
        worker.start(start);
        if !options.audit_interval.is_zero() {
            audit::spawn(worker.clone(), options.audit_interval)?;
        }
    }
    if let Some(file) = config_file {
        let follow = move || drop(main.send(MainMessage::Stop(file.wait())));
        threads::spawn("config-file", follow)?;
    }
    Err(run_until_stopped(node, &health, &inbox))
}

/// Records what happens to this proxy as events of the Node.
struct NodeEvents {
    node_name: String,
    recorder: Recorder,
}

impl NodeEvents {
    fn record(&self, severity: Severity, reason: &'static str, note: String) {
        let regarding = Regarding::Node(self.node_name.clone());
        self.recorder.record(Notice { regarding, severity, reason, action: "StartKubeProxy", note });
    }

    /// Records the last event before the process ends, and waits a moment for it to be posted.
    fn record_last(&self, reason: &'static str, note: String) {
        self.record(Severity::Warning, reason, note);
        self.recorder.flush(Duration::from_secs(1));
    }
}

fn serve_health(
    config: &Config,
    http: &Http,
    health: &Arc<NodeHealth>,
    node_events: &NodeEvents,
) -> anyhow::Result<()> {
    let Some(address) = config.healthz_bind_address else { return Ok(()) };
    let serving = health::node::serve(http, address, config.bind_address_hard_fail, health.clone());
    serving.map_err(|error| {
        node_events.record_last("FailedToStartProxierHealthcheck", error.to_string());
        anyhow!("healthz server failed: {error}")
    })
}

fn serve_status(
    config: &Config,
    options: &RunOptions,
    http: &Http,
    metrics: &Arc<Metrics>,
    families: &Families,
    connection_counter: &Arc<ConnectionCounter>,
    node_events: &NodeEvents,
) -> anyhow::Result<()> {
    let facts = Facts {
        mode: config.mode,
        config: config.versioned.clone(),
        flags: options.flags.clone(),
        version: options.version.clone(),
        gates: config.gates.clone(),
        profiling: config.enable_profiling,
        logs: options.logs.clone(),
        metrics: metrics.clone(),
        families: families.clone(),
        connection_counter: connection_counter.clone(),
        node_name: node_events.node_name.clone(),
    };
    if config.mode == ProxyMode::Iptables {
        metrics.collect(Box::new(PacketCounts::new(|| {
            let found = kernel::iptables::counted_packets().unwrap_or_default();
            Packets {
                ct_state_invalid_dropped: found.invalid_dropped,
                localhost_nodeports_accepted: found.localhost_node_ports,
            }
        })));
    }
    let serving = status::serve(http, config.metrics_bind_address, config.bind_address_hard_fail, facts);
    serving.map_err(|error| {
        node_events.record_last("FailedToStartMetricServer", error.to_string());
        anyhow!("starting metrics server failed: {error}")
    })
}

fn count_connections(families: &Families, connection_counter: &Arc<ConnectionCounter>, metrics: &Metrics) {
    for family in families.keys().copied() {
        let connection_counter = connection_counter.clone();
        let count = move || Ok(connection_counter.count().of(family)?.to_vec());
        metrics.collect(Box::new(NewConnections::new(family, count)));
    }
}

/// Validates the configuration together with the flags that are not part of it.
pub fn validate(completed: Completed, flags: &Flags) -> anyhow::Result<Config> {
    tracing::info!(v = 1, featureGates = ?completed.gates.set(), "Updated");
    let config = config::validate(completed)?;
    let names_api_server = !config.client.kubeconfig.is_empty() || !flags.master.is_empty();
    if flags.audit_interval.to_std().is_none() {
        bail!("--audit-interval must not be negative, got {}", flags.audit_interval);
    }
    if !flags.manifests.is_empty() && names_api_server {
        bail!(
            "--manifests cannot be combined with --kubeconfig or --master: \
             objects come either from files or from an API server"
        );
    }
    Ok(config)
}

/// The source of objects, and the recorder of events about this proxy.
pub fn source(
    config: &Config,
    options: &RunOptions,
    node_name: &str,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(ObjectSource, Recorder)> {
    if let Some(folder) = &options.manifests {
        return Ok((ObjectSource::folder(Path::new(folder), node_name)?, Recorder::to_log()));
    }
    let client = &config.client;
    let settings = client::Settings {
        kubeconfig: Some(&client.kubeconfig).filter(|path| !path.is_empty()).map(PathBuf::from),
        master: options.master.clone(),
        content_type: client.content_type.clone(),
        accept_content_types: client.accept_content_types.clone(),
        qps: client.qps,
        burst: i32::try_from(client.burst).unwrap_or(i32::MAX),
        user_agent: client::user_agent(&options.version, Build::reported_as(&options.version).git_commit),
    };
    let api = Api::open(&settings, metrics.clone())?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (recorder, poster) = recorder(&host);
    Ok((ObjectSource::ApiServer(Box::new(ApiServer::new(api, node_name, poster))), recorder))
}

/// Starts the family workers. They receive every event from the start, and sync once this node is known.
fn families(
    config: &Config,
    node_name: &str,
    access: &Access,
    metrics: &Arc<Metrics>,
    recorder: &Recorder,
) -> anyhow::Result<Families> {
    let spawn = |family| {
        let here = here(config, node_name, family, access.can_hash(family));
        Ok((family, family::spawn(here, metrics.clone(), recorder.clone())?))
    };
    access.families().into_iter().map(spawn).collect()
}

/// What the model needs before this node's addresses are known.
pub fn here(config: &Config, node_name: &str, family: Family, can_hash: bool) -> Here {
    Here {
        family,
        node_name: node_name.to_owned(),
        node_ip: family.loopback(),
        serve_external_ips: config.gates.enabled(Gate::AllowServiceExternalIPs),
        max_hashed: if can_hash { MAX_HASHED } else { 0 },
        started: Timestamp::now(),
    }
}

/// Checks the configuration against the properties of this node.
fn check(config: &Config, node: &LocalNode, families: &[Family]) -> anyhow::Result<()> {
    const SUSPECT_CONFIG: &str = "Kube-proxy configuration may be incomplete or incorrect";
    let primary = node.ips.primary;
    let dual_stack = families.len() > 1;
    let node_port_addresses = node.node_port_cidrs(config);
    let node = NodeProperties {
        primary,
        dual_stack,
        node_port_addresses: &node_port_addresses,
        pod_cidrs: &node.pod_cidrs,
    };
    if let Some(err) = checks::node_ports(config, node) {
        tracing::error!(err, "{SUSPECT_CONFIG}");
    }
    if !families.contains(&primary) {
        bail!("no support for primary IP family {:?}", primary.to_string());
    }
    if dual_stack {
        tracing::info!("primary ipFamily" = %primary, "kube-proxy running in dual-stack mode");
    } else {
        tracing::info!(ipFamily = %primary, "kube-proxy running in single-stack mode");
    }
    let mismatch = checks::families(config, node);
    if mismatch.is_fatal {
        bail!("kube-proxy configuration is incorrect: {}", mismatch.joined());
    }
    if !mismatch.messages.is_empty() {
        tracing::error!(err = mismatch.joined(), "{SUSPECT_CONFIG}");
    }
    Ok(())
}

/// In nftables and ipvs mode the cost of a sync depends on what changed, so only a burst of changes has to be delayed, unless
/// the configuration sets an interval.
fn min_interval(config: &Config) -> MinInterval {
    match config.mode {
        ProxyMode::Nftables | ProxyMode::Ipvs if config.min_sync_is_default => {
            MinInterval::Proportional(config.min_sync_period)
        }
        ProxyMode::Nftables | ProxyMode::Iptables | ProxyMode::Ipvs => {
            MinInterval::Fixed(config.min_sync_period)
        }
    }
}

/// Logs and records that upstream has deprecated the ipvs mode, in upstream's words.
fn warn_of_deprecation(mode: ProxyMode, node_events: &NodeEvents) {
    const IPVS: &str = "The ipvs proxier is now deprecated and may be removed in a future release. Please use 'nftables' instead.";
    if mode == ProxyMode::Ipvs {
        tracing::error!("{IPVS}");
        node_events.record(Severity::Warning, "IPVSDeprecation", IPVS.to_owned());
    }
}

/// Sends the node's addresses to every family, now and whenever they change. The workers don't list them: that may have to wait
/// for the kernel's lock of all interfaces.
fn follow_addresses(families: Families) -> anyhow::Result<()> {
    // Opened before the first listing, so that no change is missed.
    let changes = interfaces::AddressMonitor::open().context("following the node's addresses")?;
    let send = move |all: Vec<IpAddr>| {
        let all: Arc<[IpAddr]> = all.into();
        families.values().for_each(|worker| worker.node_addresses_changed(all.clone()));
    };
    send(interfaces::addresses().context("listing the node's addresses")?);
    let list = move || {
        match interfaces::addresses() {
            Ok(all) => send(all),
            Err(error) => {
                tracing::error!(err = %error, "Failed to list the node's addresses, keeping the previous ones");
            }
        }
        true
    };
    threads::spawn("addresses", move || {
        if let Err(error) = changes.follow(list) {
            tracing::error!(err = %error, "Failed to follow the node's addresses");
        }
    })
}

fn run_until_stopped(
    mut node: LocalNode,
    health: &NodeHealth,
    inbox: &Receiver<MainMessage>,
) -> anyhow::Error {
    loop {
        match inbox.recv() {
            Ok(MainMessage::Node(event)) => {
                if let Event::NodeApplied(object) = &event {
                    health.node_applied(object);
                }
                if let Err(error) = node.apply(event) {
                    return error;
                }
            }
            Ok(MainMessage::FolderRead) => {}
            Ok(MainMessage::Stop(error)) => return error,
            Err(_) => return anyhow::anyhow!("the source has ended"),
        }
    }
}
