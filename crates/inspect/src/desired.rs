//! What the kernel of this node should hold, worked out here and now from manifests or the API server, as the proxy with
//! the same command line would.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};
use model::address::Family;
use model::cluster::Cluster;
use model::event::{Event, Kind};
use proxy::metrics::Metrics;
use proxy::modes;
use proxy::node::{self, LocalNode};
use proxy::run::{self, Options};
use proxy::source::MainMessage;
use settings::config::{self, Config};
use settings::logs::{LogSettings, Logs};

use super::arguments;

/// For everything to be listed. Longer than a large cluster takes, shorter than a person waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// For ServiceCIDRs to be heard of once the rest is known: an API server without them never tells of any.
const GRACE: Duration = Duration::from_secs(2);

/// Flags of the proxy that mean nothing to somebody who only asks.
const MEANINGLESS: &[&str] = &["cleanup", "init-only", "write-config-to", "version"];

/// The flags of the proxy, for a subcommand to take them as well.
pub fn arguments() -> Vec<Arg> {
    arguments::arguments()
        .into_iter()
        .filter(|argument| !MEANINGLESS.contains(&argument.get_id().as_str()))
        .collect()
}

/// Flags that say where objects are to be read from.
const SOURCES: &[&str] = &["manifests", "kubeconfig", "master"];

/// Flags that the proxy's own command line has in every cluster, and those about logs: they may be given when the running
/// proxy is asked, which goes by its own.
const HARMLESS: &[&str] = &["config", "metrics-bind-address", "hostname-override", "v", "vmodule"];

/// Whether objects are to be read, rather than the running proxy to be asked. A configuration file says where that one
/// listens, whatever else is in it. What the running proxy would not heed is refused: the answer would be to another
/// question.
pub fn reads_objects(matches: &ArgMatches) -> anyhow::Result<bool> {
    let is_given = |flag: &str| matches.value_source(flag) == Some(ValueSource::CommandLine);
    if SOURCES.iter().any(|flag| is_given(flag)) {
        return Ok(true);
    }
    let arguments = arguments();
    let names = arguments.iter().map(|argument| argument.get_id().as_str());
    let unheeded =
        names.filter(|name| !HARMLESS.contains(name) && !name.starts_with("log") && is_given(name));
    let unheeded: Vec<String> = unheeded.map(|name| format!("--{name}")).collect();
    if !unheeded.is_empty() {
        bail!(
            "{}: the proxy that runs on this node is asked, and goes by its own flags; leave this out, or say with \
             --manifests, --kubeconfig or --master where to read objects from",
            unheeded.join(", ")
        );
    }
    Ok(false)
}

/// The configuration that the proxy would run with, given the same flags. Warnings and errors go to standard error.
pub fn configuration(matches: &ArgMatches) -> anyhow::Result<(Config, Options)> {
    let mut flags = arguments::from_matches(matches).map_err(anyhow::Error::msg)?;
    let logs = Logs::install()?;
    // Whoever asks wants the answer, and not how we came to it.
    logs.apply(LogSettings { quiet: true, ..LogSettings::default() })?;
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
    pub node: LocalNode,
    /// Nothing was taken from them yet: all that they hold is changed.
    pub clusters: BTreeMap<Family, Cluster>,
    /// Each file or object of a folder that was not understood, with its place and the reason.
    pub left_out: Vec<String>,
}

impl Desired {
    /// Reads it all, once.
    pub fn read(config: Config, options: &Options) -> anyhow::Result<Self> {
        Self::read_for(&modes::families_of_kernel(), config, options)
    }

    /// The same for these families, whatever this kernel has.
    pub fn read_for(families: &[Family], config: Config, options: &Options) -> anyhow::Result<Self> {
        let name = node::name(&config)?;
        let metrics = Metrics::new(config.mode).into();
        let (source, _recorder) = run::source(&config, options, &name, &metrics).context(
            "finding objects (--manifests, --kubeconfig, --master or --config say where they are)",
        )?;
        let mut senders = Vec::new();
        let mut listening = BTreeMap::new();
        for family in families.iter().copied() {
            let (sender, inbox) = channel();
            senders.push(sender);
            let cluster = Cluster::new(run::here(&config, &name, family));
            listening.insert(family, thread::spawn(move || listen(cluster, &inbox)));
        }
        let (words, inbox) = channel();
        // Whoever runs a proxy wants it to wait for the node for ever; whoever asks does not.
        let (watch, waited_for) = (words.clone(), name.clone());
        thread::spawn(move || {
            thread::sleep(PATIENCE);
            let _ = watch.send(MainMessage::Stop(anyhow!(
                "nothing was heard of node {waited_for:?} within {PATIENCE:?}, or it has no pod CIDRs and the proxy would wait for them"
            )));
        });
        let deliver = move |event: Arc<Event>| {
            // A listener that knows everything does not listen any more.
            senders.iter().for_each(|sender| drop(sender.send(event.clone())));
        };
        let left_out = source.deliver_once(deliver, words)?;
        if !left_out.is_empty() {
            super::warn(&format!("answering without what is refused above ({} in all)", left_out.len()));
        }
        let node = match options.manifests {
            Some(_) => LocalNode::from_folder(&config, name, &inbox)?,
            None => LocalNode::from_api_server(&config, name, &inbox)?,
        };
        let mut clusters = BTreeMap::new();
        for (family, listener) in listening {
            let mut cluster =
                listener.join().map_err(|_| anyhow!("the thread that listens has failed"))??;
            // The listener does not wait for it. Without it there would be no zone.
            if let Some(object) = &node.object {
                cluster.apply(&Event::NodeApplied(object.clone()));
            }
            cluster.move_to(node.ips.of(family));
            clusters.insert(family, cluster);
        }
        Ok(Self { config, node, clusters, left_out })
    }
}

/// Takes in events until everything has been listed. ServiceCIDRs come last, and not from every API server.
fn listen(mut cluster: Cluster, inbox: &Receiver<Arc<Event>>) -> anyhow::Result<Cluster> {
    let deadline = Instant::now() + PATIENCE;
    let mut cidrs = Cidrs::Unheard;
    let mut grace = None;
    loop {
        let until = match (cluster.is_complete(), cidrs) {
            (true, Cidrs::Listed) => return Ok(cluster),
            (true, Cidrs::Unheard) => *grace.get_or_insert_with(|| deadline.min(Instant::now() + GRACE)),
            (false, _) | (true, Cidrs::Listing) => deadline,
        };
        let event = match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(event) => event,
            Err(_) if cluster.is_complete() && cidrs == Cidrs::Unheard => {
                tracing::warn!("No ServiceCIDRs were listed, going on without them");
                return Ok(cluster);
            }
            Err(_) if cluster.is_complete() => bail!("ServiceCIDRs were not listed in time"),
            Err(_) => bail!("Services and EndpointSlices were not listed in time"),
        };
        if *event == Event::Listing(Kind::ServiceCidr) {
            cidrs = Cidrs::Listing;
        } else if *event == Event::Listed(Kind::ServiceCidr) {
            cidrs = Cidrs::Listed;
        }
        for note in cluster.apply(&event) {
            let (field, value) = note.detail.unwrap_or_default();
            tracing::error!(object = note.object, field, value, "{}", note.message);
        }
    }
}

/// How far we have heard of ServiceCIDRs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cidrs {
    Unheard,
    Listing,
    Listed,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use jiff::Timestamp;
    use model::api::ServiceCidr;
    use model::cluster::Here;

    use super::*;

    fn listening() -> (Sender<Arc<Event>>, thread::JoinHandle<anyhow::Result<Cluster>>) {
        let cluster = Cluster::new(Here {
            family: Family::V4,
            node_name: "n1".into(),
            node_ip: [192, 0, 2, 1].into(),
            serve_external_ips: true,
            started: Timestamp::UNIX_EPOCH,
        });
        let (sender, inbox) = channel();
        (sender, thread::spawn(move || listen(cluster, &inbox)))
    }

    fn tell(line: &Sender<Arc<Event>>, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| line.send(event.into()).unwrap());
    }

    fn all_but_cidrs() -> impl Iterator<Item = Event> {
        let kinds = [Kind::Service, Kind::EndpointSlice].into_iter();
        kinds.flat_map(|kind| [Event::Listing(kind), Event::Listed(kind)])
    }

    #[test]
    fn service_cidrs_that_come_after_everything_else_are_heard() {
        let (line, listener) = listening();
        tell(&line, all_but_cidrs());
        thread::sleep(Duration::from_millis(200));
        tell(&line, [Event::Listing(Kind::ServiceCidr)]);
        // Longer than anybody waits for a list that does not even begin.
        thread::sleep(GRACE + Duration::from_millis(200));
        let mut cidr = ServiceCidr::default();
        cidr.metadata.name = "kubernetes".into();
        cidr.spec.cidrs = vec!["10.96.0.0/16".into()];
        tell(&line, [Event::ServiceCidrApplied(cidr.into()), Event::Listed(Kind::ServiceCidr)]);
        let cluster = listener.join().unwrap().unwrap();
        assert_eq!(cluster.service_cidrs(), ["10.96.0.0/16".parse().unwrap()]);
    }

    #[test]
    fn an_api_server_without_service_cidrs_is_not_waited_for_long() {
        let started = Instant::now();
        let (line, listener) = listening();
        tell(&line, all_but_cidrs());
        assert!(listener.join().unwrap().is_ok());
        assert!(started.elapsed() >= GRACE, "{:?}", started.elapsed());
        drop(line);
    }

    #[test]
    fn a_folder_that_is_read_is_not_waited_for() {
        let started = Instant::now();
        let (line, listener) = listening();
        tell(&line, [Event::Listed(Kind::ServiceCidr)]);
        tell(&line, all_but_cidrs());
        assert!(listener.join().unwrap().is_ok());
        assert!(started.elapsed() < GRACE, "{:?}", started.elapsed());
        drop(line);
    }
}
