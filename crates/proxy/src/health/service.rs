//! The health-check node ports of Services, where a load balancer checks whether this node has endpoints of a Service.
//!
//! ```text
//!   model ── apply ──▶ desired ── update_ports, after rules are committed ──▶ open ports
//! ```
//!
//! Each family worker owns one. The cost of an update depends on what has changed since the last time, and on the ports that could
//! not be opened then.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::header::HeaderName;
use http::{HeaderValue, StatusCode};
use model::address::Family;
use model::cluster::HealthCheck;
use model::local::NodePortAddresses;
use model::names::{NamespacedName, Port};
use watch::recorder::{Notice, Recorder, Regarding, Severity};

use super::node::NodeHealth;
use crate::http::listen::{ListenError, listen_in_family};
use crate::http::response::{JSON, nosniff, response};
use crate::http::{Http, Reply, ServedPorts, ServerRequest, Site};

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The health-check node ports of one family: the open ones and the desired ones.
#[derive(Debug)]
pub struct ServiceHealth {
    family: Family,
    addresses: Vec<IpAddr>,
    node_name: String,
    http: Http,
    node: Arc<NodeHealth>,
    recorder: Recorder,
    desired: BTreeMap<NamespacedName, HealthCheck>,
    /// Services that have changed since the last [`update_ports`](Self::update_ports), or whose port could not be opened by it.
    outdated: BTreeSet<NamespacedName>,
    open: BTreeMap<NamespacedName, Open>,
    /// The last logged errors of ports that could not be opened. Each sync tries to open them again, and would log them again.
    open_errors: BTreeMap<NamespacedName, String>,
}

#[derive(Debug)]
struct Open {
    port: Port,
    site: Arc<ServiceSite>,
    _served: ServedPorts,
}

impl ServiceHealth {
    /// Ports will be opened at the addresses of node ports that the node has now.
    pub fn new(
        family: Family,
        node_port_addresses: &NodePortAddresses,
        node_name: String,
        http: Http,
        node: Arc<NodeHealth>,
        recorder: Recorder,
    ) -> Self {
        Self {
            family,
            addresses: addresses(family, node_port_addresses),
            node_name,
            http,
            node,
            recorder,
            desired: BTreeMap::new(),
            outdated: BTreeSet::new(),
            open: BTreeMap::new(),
            open_errors: BTreeMap::new(),
        }
    }

    /// Changes the desired ports. Nothing is visible before the next [`update_ports`](Self::update_ports).
    pub fn apply(&mut self, changes: impl IntoIterator<Item = (NamespacedName, Option<HealthCheck>)>) {
        for (name, check) in changes {
            match check {
                Some(check) => self.desired.insert(name.clone(), check),
                None => self.desired.remove(&name),
            };
            self.outdated.insert(name);
        }
    }

    /// Opens and closes ports, now that the rules are committed. The next call retries what cannot be opened.
    pub fn update_ports(&mut self) {
        let outdated = std::mem::take(&mut self.outdated);
        // A port may move from one Service to another, so ports are closed first.
        for name in &outdated {
            let port = self.desired.get(name).map(|check| check.port);
            if let Some(open) = self.open.get(name).filter(|open| Some(open.port) != port) {
                tracing::debug!(v = 2, ipFamily = %self.family, service = %name, port = %open.port, "Closing healthcheck");
                self.open.remove(name);
            }
        }
        for name in outdated {
            let Some(check) = self.desired.get(&name).copied() else {
                self.open_errors.remove(&name);
                continue;
            };
            match self.open.get(&name) {
                Some(open) => open.site.local_endpoints.store(check.local_endpoints, Ordering::Relaxed),
                None => self.open(name, check),
            }
        }
    }

    /// Why the port of a Service cannot be opened; `None` if it is open or not desired.
    pub fn open_error(&self, name: &NamespacedName) -> Option<&str> {
        self.open_errors.get(name).map(String::as_str)
    }

    fn open(&mut self, name: NamespacedName, check: HealthCheck) {
        let port = check.port;
        // An address that fails closes the listeners before it.
        let listeners: Result<Vec<_>, ListenError> =
            self.addresses.iter().map(|ip| listen_in_family(*ip, port.get())).collect();
        match listeners {
            Ok(listeners) => {
                tracing::debug!(v = 2, ipFamily = %self.family, service = %name, %port, "Opening healthcheck");
                let site = Arc::new(ServiceSite {
                    service: name.clone(),
                    local_endpoints: AtomicUsize::new(check.local_endpoints),
                    node: self.node.clone(),
                });
                let served: Arc<dyn Site> = site.clone();
                let served = self.http.serve(listeners, &served);
                self.open_errors.remove(&name);
                self.open.insert(name, Open { port, site, _served: served });
            }
            Err(error) => {
                let error = error.to_string();
                if self.open_errors.get(&name) != Some(&error) {
                    self.report_error(&name, port, &error);
                    self.open_errors.insert(name.clone(), error);
                }
                self.outdated.insert(name);
            }
        }
    }

    fn report_error(&self, name: &NamespacedName, port: Port, error: &str) {
        let node = &self.node_name;
        tracing::error!(ipFamily = %self.family, node, service = %name, %port, err = error, "Failed to start healthcheck");
        self.recorder.record(Notice {
            regarding: Regarding::Service(name.clone()),
            severity: Severity::Warning,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            note: format!("node {node} failed to start healthcheck \"{name}\" on port {port}: {error}"),
        });
    }
}

/// The addresses to listen at: those of node ports. They are looked up once, as upstream does.
fn addresses(family: Family, node_port_addresses: &NodePortAddresses) -> Vec<IpAddr> {
    let everywhere = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    if node_port_addresses.match_all() {
        return vec![everywhere];
    }
    match kernel::interfaces::addresses() {
        Ok(all) => node_port_addresses.among(&all),
        Err(error) => {
            tracing::error!(ipFamily = %family, err = %error, "Failed to get node ip address matching node port addresses, health check port will listen to all node addresses");
            vec![everywhere]
        }
    }
}

/// The site at the port of one Service.
#[derive(Debug)]
struct ServiceSite {
    service: NamespacedName,
    local_endpoints: AtomicUsize,
    node: Arc<NodeHealth>,
}

impl Site for ServiceSite {
    fn reply(&self, _: &ServerRequest) -> Reply {
        let local_endpoints = self.local_endpoints.load(Ordering::Relaxed);
        let healthy = self.node.is_healthy();
        let status =
            if healthy && local_endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let body = body(&self.service, local_endpoints, healthy);
        let mut response = nosniff(response(status, JSON, body));
        response.headers_mut().insert(WEIGHT, HeaderValue::from(local_endpoints));
        Reply::Now(response)
    }
}

/// Byte for byte what upstream writes.
fn body(service: &NamespacedName, local_endpoints: usize, healthy: bool) -> String {
    let [namespace, name] =
        [&service.namespace, &service.name].map(|name| serde_json::Value::from(&**name).to_string());
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\
         \t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    )
}

#[cfg(test)]
mod tests;
