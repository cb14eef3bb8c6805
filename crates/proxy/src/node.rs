//! This node: its Node object is awaited at startup and watched afterwards.
//!
//! The proxy uses the addresses and pod CIDRs that the node had at startup. Rules depend on them, so only a restart changes them.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use anyhow::bail;
use ipnet::IpNet;
use model::address::Family;
use model::api;
use model::event::Event;
use model::node::{NodeIps, host_ips};
use settings::config::{self, Config, DetectLocalMode};
use watch::node_wait::{NodeWait, Progress};

use crate::source::MainMessage;

/// This node as it was at startup, and its Node object.
#[derive(Debug)]
pub struct LocalNode {
    pub name: String,
    pub ips: NodeIps,
    pub pod_cidrs: Vec<String>,
    host_ips: Vec<IpAddr>,
    /// The latest Node object.
    pub object: Option<Box<api::Node>>,
    /// Whether pod CIDRs decide which traffic is local, so that other ones require a restart.
    needs_pod_cidrs: bool,
}

/// `--hostname-override`, or the host's name.
pub fn name(config: &Config) -> anyhow::Result<String> {
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

impl LocalNode {
    /// Waits for the Node object from an API server, for as long as upstream does.
    pub fn from_api_server(
        config: &Config,
        name: String,
        inbox: &Receiver<MainMessage>,
    ) -> anyhow::Result<Self> {
        let needs_pod_cidrs = config.detect_local == DetectLocalMode::NodeCidr;
        let mut wait = NodeWait::new(&name, needs_pod_cidrs);
        loop {
            let until = match wait.look(Instant::now()) {
                Progress::Start(object, missing) => {
                    if let Some(message) = missing.message() {
                        tracing::error!(node = name, "{message}");
                    }
                    let found = object.as_deref().map(host_ips).unwrap_or_default();
                    return Ok(Self::new(config, name, object, found));
                }
                Progress::GiveUp(why) => bail!(why),
                Progress::Wait(until) => until,
            };
            match next(inbox, until) {
                Some(MainMessage::Node(event)) => wait.receive(&event),
                Some(MainMessage::Stop(why)) => return Err(why),
                Some(MainMessage::FolderRead) | None => {}
            }
        }
    }

    /// Waits until a folder has been read. If it has no Node, the node IPs are the source addresses of the default routes.
    pub fn from_folder(config: &Config, name: String, inbox: &Receiver<MainMessage>) -> anyhow::Result<Self> {
        let mut object = None;
        loop {
            match next(inbox, None) {
                Some(MainMessage::Node(Event::NodeApplied(node))) => object = Some(node),
                Some(MainMessage::FolderRead) => break,
                Some(MainMessage::Stop(why)) => return Err(why),
                Some(MainMessage::Node(_)) | None => {}
            }
        }
        let found = object.as_deref().map_or_else(default_route_ips, host_ips);
        Ok(Self::new(config, name, object, found))
    }

    fn new(config: &Config, name: String, object: Option<Box<api::Node>>, host_ips: Vec<IpAddr>) -> Self {
        let ips = NodeIps::new(&host_ips, Some(config.bind_address));
        if !host_ips.is_empty() {
            tracing::info!(NodeIPs = ?host_ips, "Successfully retrieved NodeIPs");
        }
        if ips.of(ips.primary).is_loopback() {
            tracing::info!(
                "Can't determine this node's IP, assuming loopback; if this is incorrect, please set the --bind-address flag"
            );
        }
        let pod_cidrs = object.as_ref().map(|node| node.spec.pod_cidrs.clone()).unwrap_or_default();
        let needs_pod_cidrs = config.detect_local == DetectLocalMode::NodeCidr;
        Self { name, ips, pod_cidrs, host_ips, object, needs_pod_cidrs }
    }

    /// The ranges whose addresses serve node ports. `primary` means the node IPs, as far as they are known.
    pub fn node_port_cidrs(&self, config: &Config) -> Vec<IpNet> {
        match &config.node_port_addresses {
            config::NodePortScope::Cidrs(cidrs) => cidrs.clone(),
            config::NodePortScope::Primary => {
                let known = [self.ips.v4, self.ips.v6].into_iter().filter(|ip| !ip.is_loopback());
                known.map(Into::into).collect()
            }
        }
    }

    /// Applies a change of the Node object. An error ends the process: rules for other pod CIDRs require a restart.
    pub fn apply(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::NodeApplied(node) => {
                if self.needs_pod_cidrs && node.spec.pod_cidrs != self.pod_cidrs {
                    let (new, old) = (&node.spec.pod_cidrs, &self.pod_cidrs);
                    tracing::error!(node = self.name, newPodCIDRs = ?new, oldPodCIDRs = ?old, "PodCIDRs changed for the node");
                    bail!("PodCIDRs of node {:?} changed from {old:?} to {new:?}", self.name);
                }
                let found = host_ips(&node);
                let before = self.object.as_deref().map_or_else(|| self.host_ips.clone(), host_ips);
                if found != self.host_ips && found != before {
                    tracing::error!(node = self.name, newNodeIPs = ?found, oldNodeIPs = ?self.host_ips, "NodeIPs changed for the node");
                }
                self.object = Some(node);
            }
            Event::NodeDeleted if self.object.is_some() => {
                tracing::error!(node = self.name, "Node is being deleted");
            }
            Event::NodeDeleted
            | Event::Listing(_)
            | Event::Listed(_)
            | Event::ServiceApplied(_)
            | Event::ServiceDeleted(_)
            | Event::SliceApplied(_)
            | Event::SliceDeleted(_)
            | Event::ServiceCidrApplied(_)
            | Event::ServiceCidrDeleted(_) => {}
        }
        Ok(())
    }
}

/// The next message; `None` if `until` has passed.
fn next(inbox: &Receiver<MainMessage>, until: Option<Instant>) -> Option<MainMessage> {
    let ended = || MainMessage::Stop(anyhow::anyhow!("the source has ended"));
    match until {
        None => Some(inbox.recv().unwrap_or_else(|_| ended())),
        Some(until) => match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(ended()),
        },
    }
}

/// The source addresses of this host's default routes.
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
