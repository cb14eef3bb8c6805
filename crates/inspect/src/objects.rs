//! Reads the objects once, from manifests or the API server, as the proxy with the same command line would; `inputs` computes the
//! desired state from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use model::address::Family;
use model::cluster::Cluster;
use model::event::{Event, Kind};
use proxy::metrics::Metrics;
use proxy::modes;
use proxy::node::{self, LocalNode};
use proxy::run::{self, RunOptions};
use proxy::source::MainMessage;
use settings::config::Config;

/// Limits how long to wait until everything is listed; a large cluster takes a few seconds.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Limits how long to wait for a list of ServiceCIDRs to begin after the rest is listed: an API server without this
/// resource never lists any.
const SERVICE_CIDR_TIMEOUT: Duration = Duration::from_secs(2);

/// The configuration, the node and the objects, read once.
#[derive(Debug)]
pub struct ObjectSnapshot {
    pub config: Config,
    pub node: LocalNode,
    /// As if a sync had written everything: no changes are left.
    pub clusters: BTreeMap<Family, Cluster>,
    /// Files and objects of the folder that were rejected, with the reason.
    pub rejected: Vec<String>,
}

impl ObjectSnapshot {
    /// Reads the objects of the families that the kernel supports.
    pub fn read(config: Config, options: &RunOptions) -> anyhow::Result<Self> {
        Self::read_for(&modes::families_of_kernel(), config, options)
    }

    /// Reads the objects of these families, whether the kernel supports them or not.
    pub fn read_for(families: &[Family], config: Config, options: &RunOptions) -> anyhow::Result<Self> {
        let name = node::name(&config)?;
        let metrics = Metrics::new(config.mode).into();
        let (source, _recorder) = run::source(&config, options, &name, &metrics).context(
            "connecting to the source of objects (--manifests, --kubeconfig, --master or --config)",
        )?;
        let mut senders = Vec::new();
        let mut receivers = BTreeMap::new();
        for family in families.iter().copied() {
            let (sender, inbox) = channel();
            senders.push(sender);
            let cluster = Cluster::new(run::here(&config, &name, family, modes::can_hash(&config, family)));
            receivers.insert(family, thread::spawn(move || receive_all(cluster, &inbox)));
        }
        let (messages, inbox) = channel();
        // The server waits for its Node forever, a subcommand must not.
        let (timer, node_name) = (messages.clone(), name.clone());
        thread::spawn(move || {
            thread::sleep(LIST_TIMEOUT);
            let _ = timer.send(MainMessage::Stop(anyhow!(
                "node {node_name:?} was not received within {LIST_TIMEOUT:?}, or it has no pod CIDRs, which the proxy would wait for"
            )));
        });
        let deliver = move |event: Arc<Event>| {
            // A receiver that has everything has closed its channel.
            senders.iter().for_each(|sender| drop(sender.send(event.clone())));
        };
        let rejected = source.deliver_once(deliver, messages)?;
        if !rejected.is_empty() {
            super::warn(&format!("ignoring {} rejected files or objects, see above", rejected.len()));
        }
        let node = match options.manifests {
            Some(_) => LocalNode::from_folder(&config, name, &inbox)?,
            None => LocalNode::from_api_server(&config, name, &inbox)?,
        };
        let mut clusters = BTreeMap::new();
        for (family, receiver) in receivers {
            let mut cluster =
                receiver.join().map_err(|_| anyhow!("the thread that receives objects has panicked"))??;
            // `receive_all` does not wait for the Node, which has the zone.
            if let Some(object) = &node.object {
                cluster.apply(&Event::NodeApplied(object.clone()));
            }
            cluster.set_node_ip(node.ips.of(family));
            cluster.discard_changes();
            clusters.insert(family, cluster);
        }
        Ok(Self { config, node, clusters, rejected })
    }
}

/// Applies events until everything is listed. ServiceCIDRs come last, and not from every API server.
fn receive_all(mut cluster: Cluster, inbox: &Receiver<Arc<Event>>) -> anyhow::Result<Cluster> {
    let deadline = Instant::now() + LIST_TIMEOUT;
    let mut cidrs = CidrList::NotStarted;
    let mut cidr_deadline = None;
    loop {
        let until = match (cluster.is_complete(), cidrs) {
            (true, CidrList::Complete) => return Ok(cluster),
            (true, CidrList::NotStarted) => {
                *cidr_deadline.get_or_insert_with(|| deadline.min(Instant::now() + SERVICE_CIDR_TIMEOUT))
            }
            (false, _) | (true, CidrList::Started) => deadline,
        };
        let event = match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(event) => event,
            Err(_) if cluster.is_complete() && cidrs == CidrList::NotStarted => {
                tracing::warn!("No ServiceCIDRs were listed, continuing without them");
                return Ok(cluster);
            }
            Err(_) if cluster.is_complete() => bail!("ServiceCIDRs were not listed in time"),
            Err(_) => bail!("Services and EndpointSlices were not listed in time"),
        };
        if *event == Event::Listing(Kind::ServiceCidr) {
            cidrs = CidrList::Started;
        } else if *event == Event::Listed(Kind::ServiceCidr) {
            cidrs = CidrList::Complete;
        }
        for note in cluster.apply(&event) {
            let (field, value) = note.detail.unwrap_or_default();
            tracing::error!(object = note.object, field, value, "{}", note.message);
        }
    }
}

/// The progress of the list of ServiceCIDRs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CidrList {
    NotStarted,
    Started,
    Complete,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use jiff::Timestamp;
    use model::api::ServiceCidr;
    use model::cluster::Here;
    use model::hashing::MAX_HASHED;

    use super::*;

    fn start() -> (Sender<Arc<Event>>, thread::JoinHandle<anyhow::Result<Cluster>>) {
        let cluster = Cluster::new(Here {
            family: Family::V4,
            node_name: "n1".into(),
            node_ip: [192, 0, 2, 1].into(),
            serve_external_ips: true,
            max_hashed: MAX_HASHED,
            started: Timestamp::UNIX_EPOCH,
        });
        let (sender, inbox) = channel();
        (sender, thread::spawn(move || receive_all(cluster, &inbox)))
    }

    fn send(sender: &Sender<Arc<Event>>, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| sender.send(event.into()).unwrap());
    }

    fn all_but_cidrs() -> impl Iterator<Item = Event> {
        let kinds = [Kind::Service, Kind::EndpointSlice].into_iter();
        kinds.flat_map(|kind| [Event::Listing(kind), Event::Listed(kind)])
    }

    #[test]
    fn service_cidrs_that_are_listed_last_are_received() {
        let (sender, receiver) = start();
        send(&sender, all_but_cidrs());
        thread::sleep(Duration::from_millis(200));
        send(&sender, [Event::Listing(Kind::ServiceCidr)]);
        // A list that has begun is not subject to the shorter timeout.
        thread::sleep(SERVICE_CIDR_TIMEOUT + Duration::from_millis(200));
        let mut cidr = ServiceCidr::default();
        cidr.metadata.name = "kubernetes".into();
        cidr.spec.cidrs = vec!["10.96.0.0/16".into()];
        send(&sender, [Event::ServiceCidrApplied(cidr.into()), Event::Listed(Kind::ServiceCidr)]);
        let cluster = receiver.join().unwrap().unwrap();
        assert_eq!(cluster.service_cidrs(), ["10.96.0.0/16".parse().unwrap()]);
    }

    #[test]
    fn without_service_cidrs_receiving_ends_after_their_timeout() {
        let started = Instant::now();
        let (sender, receiver) = start();
        send(&sender, all_but_cidrs());
        assert!(receiver.join().unwrap().is_ok());
        assert!(started.elapsed() >= SERVICE_CIDR_TIMEOUT, "{:?}", started.elapsed());
        drop(sender);
    }

    #[test]
    fn a_folder_needs_no_wait_for_service_cidrs() {
        let started = Instant::now();
        let (sender, receiver) = start();
        send(&sender, [Event::Listed(Kind::ServiceCidr)]);
        send(&sender, all_but_cidrs());
        assert!(receiver.join().unwrap().is_ok());
        assert!(started.elapsed() < SERVICE_CIDR_TIMEOUT, "{:?}", started.elapsed());
        drop(sender);
    }
}
