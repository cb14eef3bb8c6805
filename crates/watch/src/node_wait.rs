//! Decides at start how long to wait for the Node object. Time is an argument.
//!
//! ```text
//!   first list ──▶ has addresses? ──30 s at most──▶ has pod CIDRs, if they matter? ──5 min more at most──▶ go on
//! ```

use std::time::{Duration, Instant};

use model::api::Node;
use model::event::Event;
use model::node::host_ips;

const ADDRESSES_TIMEOUT: Duration = Duration::from_secs(30);
const POD_CIDRS_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub struct NodeWait {
    name: String,
    /// Whether the proxy cannot start without them: with `detectLocalMode: NodeCIDR`.
    needs_pod_cidrs: bool,
    /// The node as last received. `None` until the first list has ended.
    received: Option<Option<Box<Node>>>,
    /// When to stop waiting for addresses.
    first_deadline: Option<Instant>,
    /// When to stop waiting for pod CIDRs: set when the other wait is over.
    second_deadline: Option<Instant>,
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub enum Progress {
    /// Check again after the next event of the node, or at this time if there is one.
    Wait(Option<Instant>),
    /// Start with this node, or without one.
    Start(Option<Box<Node>>, Missing),
    /// The proxy cannot start, for this reason.
    GiveUp(String),
}

/// What the proxy starts without, to be logged as an error. The text is that of upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Nothing,
    Node,
    Addresses,
}

impl Missing {
    pub fn message(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Node => Some("Timed out waiting for node to exist"),
            Self::Addresses => Some("Timed out waiting for node to be assigned IPs"),
        }
    }
}

impl NodeWait {
    pub fn new(name: &str, needs_pod_cidrs: bool) -> Self {
        Self {
            name: name.into(),
            needs_pod_cidrs,
            received: None,
            first_deadline: None,
            second_deadline: None,
        }
    }

    pub fn receive(&mut self, event: &Event) {
        match event {
            Event::NodeApplied(node) => self.received = Some(Some(node.clone())),
            Event::NodeDeleted => self.received = Some(None),
            Event::Listing(_)
            | Event::Listed(_)
            | Event::ServiceApplied(_)
            | Event::ServiceDeleted(_)
            | Event::SliceApplied(_)
            | Event::SliceDeleted(_)
            | Event::ServiceCidrApplied(_)
            | Event::ServiceCidrDeleted(_) => {}
        }
    }

    pub fn look(&mut self, now: Instant) -> Progress {
        let Some(node) = &self.received else { return Progress::Wait(None) };
        let has_addresses = node.as_ref().is_some_and(|node| !host_ips(node).is_empty());
        let first_deadline = *self.first_deadline.get_or_insert(now + ADDRESSES_TIMEOUT);
        if !has_addresses && now < first_deadline && self.second_deadline.is_none() {
            return Progress::Wait(Some(first_deadline));
        }
        let has_pod_cidrs = node.as_ref().is_some_and(|node| !node.spec.pod_cidrs.is_empty());
        if self.needs_pod_cidrs && !has_pod_cidrs {
            let second_deadline = *self.second_deadline.get_or_insert(now + POD_CIDRS_TIMEOUT);
            if now < second_deadline {
                return Progress::Wait(Some(second_deadline));
            }
            let missing = if node.is_some() { "PodCIDR allocation on node" } else { "node" };
            let to_exist = if node.is_some() { "" } else { " to exist" };
            return Progress::GiveUp(format!("timeout waiting for {missing} {:?}{to_exist}", self.name));
        }
        let missing = match node {
            Some(_) if has_addresses => Missing::Nothing,
            Some(_) => Missing::Addresses,
            None => Missing::Node,
        };
        Progress::Start(node.clone(), missing)
    }
}

#[cfg(test)]
mod tests {
    use model::api::NodeAddress;

    use super::*;

    fn node(ip: Option<&str>, pod_cidr: Option<&str>) -> Box<Node> {
        let mut node = Node::default();
        let address = |ip: &str| NodeAddress { r#type: "InternalIP".into(), address: ip.into() };
        node.status.addresses = ip.map(address).into_iter().collect();
        node.spec.pod_cidrs = pod_cidr.map(Into::into).into_iter().collect();
        Box::new(node)
    }

    const fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn before_the_first_list_there_is_no_deadline() {
        let mut wait = NodeWait::new("n1", true);
        assert_eq!(wait.look(Instant::now()), Progress::Wait(None));
        assert_eq!(wait.look(Instant::now() + after(3_600)), Progress::Wait(None));
    }

    #[test]
    fn a_node_with_addresses_ends_the_wait_at_once() {
        let mut wait = NodeWait::new("n1", false);
        let node = node(Some("192.0.2.1"), None);
        wait.receive(&Event::NodeApplied(node.clone()));
        assert_eq!(wait.look(Instant::now()), Progress::Start(Some(node), Missing::Nothing));
    }

    #[test]
    fn after_half_a_minute_the_proxy_starts_without_addresses_or_without_a_node() {
        for (event, missing) in [
            (Event::NodeDeleted, "Timed out waiting for node to exist"),
            (Event::NodeApplied(node(None, None)), "Timed out waiting for node to be assigned IPs"),
        ] {
            let start = Instant::now();
            let mut wait = NodeWait::new("n1", false);
            wait.receive(&event);
            assert_eq!(wait.look(start), Progress::Wait(Some(start + after(30))));
            assert_eq!(wait.look(start + after(29)), Progress::Wait(Some(start + after(30))));
            let Progress::Start(_, found) = wait.look(start + after(30)) else { panic!("should start") };
            assert_eq!(found.message(), Some(missing));
        }
    }

    #[test]
    fn addresses_that_appear_end_the_wait() {
        let start = Instant::now();
        let mut wait = NodeWait::new("n1", false);
        wait.receive(&Event::NodeDeleted);
        wait.look(start);
        let node = node(Some("192.0.2.1"), None);
        wait.receive(&Event::NodeApplied(node.clone()));
        assert_eq!(wait.look(start + after(3)), Progress::Start(Some(node), Missing::Nothing));
    }

    #[test]
    fn pod_cidrs_have_five_more_minutes_if_they_are_needed() {
        let start = Instant::now();
        let mut wait = NodeWait::new("n1", true);
        wait.receive(&Event::NodeApplied(node(None, None)));
        assert_eq!(wait.look(start), Progress::Wait(Some(start + after(30))));
        assert_eq!(wait.look(start + after(30)), Progress::Wait(Some(start + after(330))));
        let complete = node(Some("192.0.2.1"), Some("10.0.1.0/24"));
        wait.receive(&Event::NodeApplied(complete.clone()));
        assert_eq!(wait.look(start + after(100)), Progress::Start(Some(complete), Missing::Nothing));
    }

    #[test]
    fn the_proxy_does_not_start_without_pod_cidrs_that_it_needs() {
        for (event, why) in [
            (Event::NodeDeleted, "timeout waiting for node \"n1\" to exist"),
            (
                Event::NodeApplied(node(Some("192.0.2.1"), None)),
                "timeout waiting for PodCIDR allocation on node \"n1\"",
            ),
        ] {
            let start = Instant::now();
            let mut wait = NodeWait::new("n1", true);
            wait.receive(&event);
            wait.look(start);
            wait.look(start + after(30));
            assert_eq!(wait.look(start + after(330)), Progress::GiveUp(why.into()));
        }
    }
}
