//! The health-check node ports of Services: a load balancer asks there whether this node has endpoints for one.
//!
//! ```text
//!   model ── hear ──▶ wanted ── settle, after rules are in place ──▶ open ports
//! ```
//!
//! One of these per family, owned by its thread. Settling costs what was heard since the last time, and what could not
//! be opened then.

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
use crate::http::answer::{JSON, answer, nosniff};
use crate::http::listen::{ListenError, listen_in_family};
use crate::http::{Http, Reply, Request, Serving, Site};

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The ports that are open, and those that should be.
#[derive(Debug)]
pub struct ServiceHealth {
    family: Family,
    addresses: Vec<IpAddr>,
    node_name: String,
    http: Http,
    node: Arc<NodeHealth>,
    recorder: Recorder,
    wanted: BTreeMap<NamespacedName, HealthCheck>,
    unsettled: BTreeSet<NamespacedName>,
    open: BTreeMap<NamespacedName, Open>,
    /// What was last told about those that could not be opened. They are tried at every pass, and passes are many.
    told: BTreeMap<NamespacedName, String>,
}

#[derive(Debug)]
struct Open {
    port: Port,
    desk: Arc<Desk>,
    _serving: Serving,
}

impl ServiceHealth {
    /// Will listen wherever node ports answer, as far as the node has such addresses now.
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
            wanted: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            open: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Takes note of what changed; nothing of it shows before the next [`settle`](Self::settle).
    pub fn hear(&mut self, changes: impl IntoIterator<Item = (NamespacedName, Option<HealthCheck>)>) {
        for (name, check) in changes {
            match check {
                Some(check) => self.wanted.insert(name.clone(), check),
                None => self.wanted.remove(&name),
            };
            self.unsettled.insert(name);
        }
    }

    /// Makes it so, now that rules are in place. What can't be opened is tried again the next time.
    pub fn settle(&mut self) {
        let unsettled = std::mem::take(&mut self.unsettled);
        // A port may pass from one Service to another, so all that close come first.
        for name in &unsettled {
            let port = self.wanted.get(name).map(|check| check.port);
            if let Some(open) = self.open.get(name).filter(|open| Some(open.port) != port) {
                tracing::debug!(v = 2, ipFamily = %self.family, service = %name, port = %open.port, "Closing healthcheck");
                self.open.remove(name);
            }
        }
        for name in unsettled {
            let Some(check) = self.wanted.get(&name).copied() else {
                self.told.remove(&name);
                continue;
            };
            match self.open.get(&name) {
                Some(open) => open.desk.local_endpoints.store(check.local_endpoints, Ordering::Relaxed),
                None => self.open(name, check),
            }
        }
    }

    /// Why the port of a Service can't be opened, if it can't.
    pub fn trouble(&self, name: &NamespacedName) -> Option<&str> {
        self.told.get(name).map(String::as_str)
    }

    fn open(&mut self, name: NamespacedName, check: HealthCheck) {
        let port = check.port;
        // One that fails closes those before it.
        let listeners: Result<Vec<_>, ListenError> =
            self.addresses.iter().map(|ip| listen_in_family(*ip, port.get())).collect();
        match listeners {
            Ok(listeners) => {
                tracing::debug!(v = 2, ipFamily = %self.family, service = %name, %port, "Opening healthcheck");
                let desk = Arc::new(Desk {
                    service: name.clone(),
                    local_endpoints: AtomicUsize::new(check.local_endpoints),
                    node: self.node.clone(),
                });
                let site: Arc<dyn Site> = desk.clone();
                let serving = self.http.serve(listeners, &site);
                self.told.remove(&name);
                self.open.insert(name, Open { port, desk, _serving: serving });
            }
            Err(error) => {
                let trouble = error.to_string();
                if self.told.get(&name) != Some(&trouble) {
                    self.complain(&name, port, &trouble);
                    self.told.insert(name.clone(), trouble);
                }
                self.unsettled.insert(name);
            }
        }
    }

    fn complain(&self, name: &NamespacedName, port: Port, trouble: &str) {
        let node = &self.node_name;
        tracing::error!(ipFamily = %self.family, node, service = %name, %port, err = trouble, "Failed to start healthcheck");
        self.recorder.record(Notice {
            regarding: Regarding::Service(name.clone()),
            severity: Severity::Warning,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            note: format!("node {node} failed to start healthcheck \"{name}\" on port {port}: {trouble}"),
        });
    }
}

/// Where node ports answer, to be listened at. They are looked up once, as the reference does.
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

/// What answers at the port of one Service.
#[derive(Debug)]
struct Desk {
    service: NamespacedName,
    local_endpoints: AtomicUsize,
    node: Arc<NodeHealth>,
}

impl Site for Desk {
    fn reply(&self, _: &Request) -> Reply {
        let local_endpoints = self.local_endpoints.load(Ordering::Relaxed);
        let healthy = self.node.is_healthy();
        let status =
            if healthy && local_endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let body = body(&self.service, local_endpoints, healthy);
        let mut answer = nosniff(answer(status, JSON, body));
        answer.headers_mut().insert(WEIGHT, HeaderValue::from(local_endpoints));
        Reply::Now(answer)
    }
}

/// To the byte as upstream writes it.
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
