//! What the kernel of this node should hold, worked out here and now from manifests or the API server, as the proxy with
//! the same command line would.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use clap::{Arg, ArgMatches};
use model::address::Family;
use model::cluster::Cluster;

use crate::config::{self, Config};
use crate::family::{Message, QUEUE};
use crate::flags::{self, Flags};
use crate::logs::{Logs, Settings};
use crate::metrics::Metrics;
use crate::modes;
use crate::node::{self, Node};
use crate::run::{self, Options};
use crate::source::Lines;

/// For everything to be listed. Longer than a large cluster takes, shorter than a person waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Flags of the proxy that mean nothing to somebody who only asks.
const MEANINGLESS: &[&str] = &["cleanup", "init-only", "write-config-to", "version"];

/// The flags of the proxy, for a subcommand to take them as well.
pub fn arguments() -> Vec<Arg> {
    flags::arguments()
        .into_iter()
        .filter(|argument| !MEANINGLESS.contains(&argument.get_id().as_str()))
        .collect()
}

/// The configuration that the proxy would run with, given the same flags. Warnings and errors go to standard error.
pub fn configuration(matches: &ArgMatches) -> anyhow::Result<(Config, Options)> {
    let mut flags = Flags::from_matches(matches).map_err(anyhow::Error::msg)?;
    let logs = Logs::install()?;
    // Whoever asks wants the answer, and not how we came to it.
    logs.apply(Settings { quiet: true, ..Settings::default() })?;
    let completed = config::complete(&mut flags)?;
    let mut settings = config::log_settings(&completed.config.logging, &completed.gates)?;
    settings.quiet = settings.verbosity == 0;
    logs.apply(settings)?;
    let config = run::validate(completed, &flags)?;
    Ok((config, Options::new(&flags, logs)))
}

/// Everything that was asked of this node at one moment.
#[derive(Debug)]
pub struct Desired {
    pub config: Config,
    pub node: Node,
    /// Nothing was taken from them yet: all that they hold is changed.
    pub clusters: BTreeMap<Family, Cluster>,
}

impl Desired {
    /// Reads it all, once.
    pub fn read(config: Config, options: &Options) -> anyhow::Result<Self> {
        let name = node::name(&config)?;
        let metrics = Metrics::new(config.mode).into();
        let (source, _recorder) = run::source(&config, options, &name, &metrics)?;
        let mut lines = Lines::new();
        let mut listening = BTreeMap::new();
        for family in modes::families_of_kernel() {
            let (sender, inbox) = sync_channel(QUEUE);
            lines.insert(family, sender);
            let cluster = Cluster::new(run::here(&config, &name, family));
            listening.insert(family, thread::spawn(move || listen(cluster, &inbox)));
        }
        let (words, inbox) = channel();
        source.spawn(lines, words)?;
        let node = match options.manifests {
            Some(_) => Node::from_folder(&config, name, &inbox)?,
            None => Node::from_api_server(&config, name, &inbox)?,
        };
        let mut clusters = BTreeMap::new();
        for (family, listener) in listening {
            let mut cluster =
                listener.join().map_err(|_| anyhow!("the thread that listens has failed"))??;
            cluster.move_to(node.ips.of(family));
            clusters.insert(family, cluster);
        }
        Ok(Self { config, node, clusters })
    }
}

/// Takes in events until everything has been listed.
fn listen(mut cluster: Cluster, inbox: &Receiver<Message>) -> anyhow::Result<Cluster> {
    let deadline = Instant::now() + PATIENCE;
    while !cluster.is_complete() {
        let left = deadline.saturating_duration_since(Instant::now());
        let message =
            inbox.recv_timeout(left).context("Services and EndpointSlices were not listed in time")?;
        let Message::Event(event) = message else { bail!("a source tells of events only") };
        for note in cluster.apply(&event) {
            let (field, value) = note.detail.unwrap_or_default();
            tracing::error!(object = note.object, field, value, "{}", note.message);
        }
    }
    Ok(cluster)
}
