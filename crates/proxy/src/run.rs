//! The life of the proxy server once its configuration is settled.
//!
//! ```text
//!   clean up ─▶ families ─▶ source ─▶ this node ─▶ checks, sysctls, backends ─▶ go ─▶ until there is a reason to end
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
use settings::config::{self, Completed, Config, ProxyMode};
use settings::flags::Flags;
use settings::gates::Gate;
use settings::logs::Logs;
use settings::version::Build;
use watch::api_server::ApiServer;
use watch::client::{self, Api};
use watch::recorder::{Notice, Recorder, Regarding, Severity, recorder};

use crate::checks::{self, Against};
use crate::connections::Census;
use crate::family::{Line, Message, Start, scan_flows};
use crate::file_watch::FileWatch;
use crate::health::node::NodeHealth;
use crate::health::service::ServiceHealth;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::metrics::connections::NewConnections;
use crate::metrics::packets::{PacketCounts, Packets};
use crate::modes::{Access, Parts};
use crate::node::{self, Node};
use crate::pace::Pause;
use crate::source::{Lines, Source, Word};
use crate::status::{self, Facts};
use crate::{audit, cleanup, health, signals, threads, tuning};

/// What the command line asks for beyond the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file, to be watched for changes.
    pub config_file: Option<String>,
    /// Overrides the API server of the kubeconfig file.
    pub master: Option<String>,
    /// Serve from these files; excludes every way to name an API server.
    pub manifests: Option<String>,
    /// Whether `/metrics` tells of connections, in the mode that counts them.
    pub connection_metrics: bool,
    /// Between two looks at a part of what the kernel holds; zero for none.
    pub audit_interval: Duration,
    pub cleanup: bool,
    pub init_only: bool,
    /// The version to report.
    pub version: String,
    /// Every flag with its value, by name: `/flagz`.
    pub flags: Vec<(&'static str, String)>,
    pub logs: Logs,
}

impl Options {
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

/// Returns only when there is nothing left to do, or with the reason to stop.
pub fn run(config: Config, options: Options) -> anyhow::Result<()> {
    if options.cleanup {
        return cleanup::everything();
    }
    tuning::raise_open_files();
    signals::disregard_others()?;
    signals::end_process_one()?;
    // From now on, so that nothing written to the file while we start is missed.
    let config_file = options.config_file.as_deref().map(FileWatch::open).transpose()?;
    let metrics = Arc::new(Metrics::new(config.mode));
    metrics.describe(&Build::reported_as(&options.version), &config.gates);
    let name = node::name(&config)?;
    let access = Access::open(config.mode)?;
    let (source, recorder) = source(&config, &options, &name, &metrics)?;
    let lines = lines(&config, &name, access.families(), &metrics)?;
    let (words, inbox) = channel();
    source.spawn(lines.clone(), words.clone())?;

    let node = match options.manifests {
        Some(_) => Node::from_folder(&config, name, &inbox)?,
        None => Node::from_api_server(&config, name, &inbox)?,
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
        // Nobody takes a node away that no folder speaks of.
        None if options.manifests.is_some() => health.node_applied(&api::Node::default()),
        None => {}
    }
    let voice = Voice { node_name: node.name.clone(), recorder };
    serve_health(&config, &http, &health, &voice)?;
    let census = Arc::new(Census::new(lines.clone()));
    serve_status(&config, &options, &http, &metrics, &lines, &census, &voice)?;
    if options.connection_metrics && config.mode == ProxyMode::Nftables {
        count_connections(&lines, &census, &metrics);
    }
    voice.say(Severity::Normal, "Starting", String::new());
    // Where nobody takes over there is nothing to wait for. Not with `--init-only`: nobody would serve until the rest
    // of us comes.
    for family in Family::BOTH.into_iter().filter(|family| !backends.contains_key(family)) {
        cleanup::other_modes(config.mode, family);
    }
    let addresses = follow_addresses(lines.clone())?;
    for (family, parts) in backends {
        let mode = config.mode;
        let Parts { backend, node_port_addresses, tracing } = parts;
        let service_health = ServiceHealth::new(
            family,
            &node_port_addresses,
            node.name.clone(),
            http.clone(),
            health.clone(),
            voice.recorder.clone(),
        );
        let conntrack = scan_flows(family, backend.contended(), metrics.clone())?;
        let start = Start {
            node_ip: node.ips.of(family),
            backend,
            conntrack,
            addresses: addresses.clone(),
            node_port_addresses,
            tracing,
            pause: pause(&config),
            sync_period: config.sync_period,
            health: health.clone(),
            service_health,
            take_over: Box::new(move || cleanup::other_modes(mode, family)),
        };
        let line = lines.get(&family).context("every family has a line")?;
        if line.send(Message::Start(Box::new(start))).is_err() {
            bail!("the thread of {family} has ended");
        }
        if !options.audit_interval.is_zero() {
            audit::spawn(family, line.clone(), options.audit_interval)?;
        }
    }
    if let Some(file) = config_file {
        let follow = move || drop(words.send(Word::Over(file.wait())));
        threads::spawn("config-file", follow)?;
    }
    Err(until_it_ends(node, &health, &inbox))
}

/// Tells the cluster what happens to us.
struct Voice {
    node_name: String,
    recorder: Recorder,
}

impl Voice {
    fn say(&self, severity: Severity, reason: &'static str, note: String) {
        let regarding = Regarding::Node(self.node_name.clone());
        self.recorder.record(Notice { regarding, severity, reason, action: "StartKubeProxy", note });
    }

    /// The last words before the process ends get a moment to be heard.
    fn say_at_last(&self, reason: &'static str, note: String) {
        self.say(Severity::Warning, reason, note);
        self.recorder.flush(Duration::from_secs(1));
    }
}

fn serve_health(config: &Config, http: &Http, health: &Arc<NodeHealth>, voice: &Voice) -> anyhow::Result<()> {
    let Some(address) = config.healthz_bind_address else { return Ok(()) };
    let serving = health::node::serve(http, address, config.bind_address_hard_fail, health.clone());
    serving.map_err(|error| {
        voice.say_at_last("FailedToStartProxierHealthcheck", error.to_string());
        anyhow!("healthz server failed: {error}")
    })
}

fn serve_status(
    config: &Config,
    options: &Options,
    http: &Http,
    metrics: &Arc<Metrics>,
    lines: &Lines,
    census: &Arc<Census>,
    voice: &Voice,
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
        lines: lines.clone(),
        census: census.clone(),
        node_name: voice.node_name.clone(),
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
        voice.say_at_last("FailedToStartMetricServer", error.to_string());
        anyhow!("starting metrics server failed: {error}")
    })
}

fn count_connections(lines: &Lines, census: &Arc<Census>, metrics: &Metrics) {
    for family in lines.keys().copied() {
        let census = census.clone();
        let count = move || Ok(census.count().of(family)?.to_vec());
        metrics.collect(Box::new(NewConnections::new(family, count)));
    }
}

/// Whether the configuration can be run with.
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

/// The API server unless there is a folder, and where to send events about ourselves.
pub fn source(
    config: &Config,
    options: &Options,
    node_name: &str,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(Source, Recorder)> {
    if let Some(folder) = &options.manifests {
        return Ok((Source::folder(Path::new(folder), node_name)?, Recorder::to_log()));
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
    Ok((Source::ApiServer(Box::new(ApiServer::new(api, node_name, poster))), recorder))
}

/// Families hear of everything from the start, and begin to act once this node is known.
fn lines(
    config: &Config,
    node_name: &str,
    families: Vec<Family>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Lines> {
    let mut lines = Lines::new();
    for family in families {
        lines.insert(family, Line::spawn(here(config, node_name, family), metrics.clone())?);
    }
    Ok(lines)
}

/// What the model has to know before this node's addresses are known.
pub fn here(config: &Config, node_name: &str, family: Family) -> Here {
    Here {
        family,
        node_name: node_name.to_owned(),
        node_ip: family.loopback(),
        serve_external_ips: config.gates.enabled(Gate::AllowServiceExternalIPs),
        started: Timestamp::now(),
    }
}

/// Holds the configuration against what this node is.
fn check(config: &Config, node: &Node, families: &[Family]) -> anyhow::Result<()> {
    const DOUBTFUL: &str = "Kube-proxy configuration may be incomplete or incorrect";
    let primary = node.ips.primary;
    let dual_stack = families.len() > 1;
    let node_port_addresses = node.node_port_cidrs(config);
    let against = Against {
        primary,
        dual_stack,
        node_port_addresses: &node_port_addresses,
        pod_cidrs: &node.pod_cidrs,
    };
    if let Some(err) = checks::node_ports(config, against) {
        tracing::error!(err, "{DOUBTFUL}");
    }
    if !families.contains(&primary) {
        bail!("no support for primary IP family {:?}", primary.to_string());
    }
    if dual_stack {
        tracing::info!("primary ipFamily" = %primary, "kube-proxy running in dual-stack mode");
    } else {
        tracing::info!(ipFamily = %primary, "kube-proxy running in single-stack mode");
    }
    let wrong = checks::families(config, against);
    if wrong.is_fatal {
        bail!("kube-proxy configuration is incorrect: {}", wrong.joined());
    }
    if !wrong.messages.is_empty() {
        tracing::error!(err = wrong.joined(), "{DOUBTFUL}");
    }
    Ok(())
}

/// In nftables mode a pass costs what changed, so that only a storm needs to be held up; unless somebody insists.
fn pause(config: &Config) -> Pause {
    match config.mode {
        ProxyMode::Nftables if config.min_sync_is_default => Pause::InProportion(config.min_sync_period),
        ProxyMode::Nftables | ProxyMode::Iptables | ProxyMode::Ipvs => Pause::Always(config.min_sync_period),
    }
}

/// The node's addresses; every family is told when they change. It is not for families to ask: that may have to wait
/// for whoever is at work on any interface of the machine.
fn follow_addresses(lines: Lines) -> anyhow::Result<Arc<[IpAddr]>> {
    // Opened before the first look, so that nothing is missed.
    let changes = interfaces::Changes::open().context("following the node's addresses")?;
    let found = interfaces::addresses().context("listing the node's addresses")?;
    let tell = move || match interfaces::addresses() {
        Ok(all) => {
            let all: Arc<[IpAddr]> = all.into();
            lines.values().all(|line| line.send(Message::Moved(all.clone())).is_ok())
        }
        Err(error) => {
            tracing::error!(err = %error, "Failed to list the node's addresses, going on with those before");
            true
        }
    };
    threads::spawn("addresses", move || {
        if let Err(error) = changes.follow(tell) {
            tracing::error!(err = %error, "Failed to follow the node's addresses");
        }
    })?;
    Ok(found.into())
}

fn until_it_ends(mut node: Node, health: &NodeHealth, inbox: &Receiver<Word>) -> anyhow::Error {
    loop {
        match inbox.recv() {
            Ok(Word::Node(event)) => {
                if let Event::NodeApplied(object) = &event {
                    health.node_applied(object);
                }
                if let Err(error) = node.hear(event) {
                    return error;
                }
            }
            Ok(Word::FolderRead) => {}
            Ok(Word::Over(error)) => return error,
            Err(_) => return anyhow::anyhow!("the source has ended"),
        }
    }
}
