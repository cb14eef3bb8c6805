//! The rules of one service port: its own chains, and its lines in shared chains.
//!
//! ```text
//!   KUBE-SERVICES ──▶ SVC | SVL        cluster IP
//!                 ──▶ [FW ─▶] EXT      external IP, load-balancer IP
//!   KUBE-NODEPORTS ─▶ EXT              node port
//!   EXT ──▶ SVC | SVL ──▶ SEP ──▶ DNAT
//! ```
//!
//! The model has decided policy in the [`Routing`]; this module only renders it. Order and text are upstream's.

use std::cmp::Reverse;
use std::fmt::{self, Write};
use std::net::IpAddr;

use model::names::ServicePortName;
use model::routing::{Endpoint, Routing, Traffic};
use model::weights::Weight;

use crate::iptables::chains::{
    MARK_MASQ, Namer, PROXY_FIREWALL, Purpose, ServiceChain, SharedChain, lower_case,
};
use crate::iptables::program::{LOCALHOST_NODE_PORTS, RuleSettings};
use crate::iptables::quoting::comment;

/// What the kernel holds for one service port, in the order in which upstream writes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleUnit {
    pub lines: Vec<Line>,
    pub chains: Vec<RenderedChain>,
}

/// A rule in a shared chain, without `-A` and the chain.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    pub chain: SharedChain,
    pub rule: String,
}

/// A service port's own chain in the nat table.
#[derive(Debug, PartialEq, Eq)]
pub struct RenderedChain {
    pub name: ServiceChain,
    /// The first rule of the chain that cluster-IP traffic enters. It is separate because upstream writes it separately.
    pub masquerade: Option<String>,
    /// All other rules, each as a line of `iptables-restore`.
    pub rules: String,
    pub count: usize,
}

/// Whether rules have comments for endpoints. Large clusters leave them out, since they are too much text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointComments {
    Written,
    LeftOut,
}

impl RuleUnit {
    pub fn render(
        name: &ServicePortName,
        routing: &Routing,
        settings: &RuleSettings,
        comments: EndpointComments,
    ) -> Self {
        let writer = Writer::new(name, routing, settings);
        Self { lines: writer.lines(), chains: writer.chains(comments) }
    }

    /// Only its lines in shared chains.
    pub fn render_lines(name: &ServicePortName, routing: &Routing, settings: &RuleSettings) -> Vec<Line> {
        Writer::new(name, routing, settings).lines()
    }

    /// Its chains, each after the targets of its jumps.
    pub fn targets_first(&self) -> Vec<&RenderedChain> {
        let mut chains: Vec<&RenderedChain> = self.chains.iter().collect();
        chains.sort_by_key(|chain| Reverse(chain.name.purpose.depth()));
        chains
    }

    /// The number of rules in its own chains.
    pub fn rules(&self) -> usize {
        self.chains.iter().map(|chain| chain.count).sum()
    }
}

impl RenderedChain {
    fn new(name: ServiceChain) -> Self {
        Self { name, masquerade: None, rules: String::new(), count: 0 }
    }

    /// Reserves memory for this number of rules: there may be as many such chains as pods.
    fn with_room(name: ServiceChain, rules: usize) -> Self {
        Self { rules: String::with_capacity(rules * 160), ..Self::new(name) }
    }

    fn add(&mut self, rule: fmt::Arguments<'_>) {
        let name = self.name;
        // Writing to a string cannot fail.
        let _ = writeln!(self.rules, "-A {name} {rule}");
        self.count += 1;
    }
}

/// Renders one service port.
struct Writer<'a> {
    name: String,
    protocol: &'static str,
    chains: Namer,
    routing: &'a Routing,
    settings: &'a RuleSettings,
}

impl<'a> Writer<'a> {
    fn new(name: &ServicePortName, routing: &'a Routing, settings: &'a RuleSettings) -> Self {
        let protocol = lower_case(routing.protocol);
        Self { name: name.to_string(), protocol, chains: Namer::new(name), routing, settings }
    }

    fn lines(&self) -> Vec<Line> {
        let Self { protocol, routing, settings, .. } = self;
        let addresses = &routing.addresses;
        let mut lines = Vec::new();
        let mut add = |chain, rule| lines.push(Line { chain, rule });

        let to = self.to(addresses.cluster_ip);
        match self.entry(routing.internal) {
            Ok(chain) => {
                add(SharedChain::Services, format!("{} {to} -j {chain}", self.comment("cluster IP")))
            }
            Err(no) => add(SharedChain::Refused, format!("{} {to} -j {}", self.because(&no), no.target)),
        }

        let external = self.chains.chain(Purpose::External);
        let refusal = self.entry(routing.external).err();
        for ip in &addresses.external_ips {
            let to = self.to(*ip);
            if routing.has_endpoints() {
                let rule = format!("{} {to} -j {external}", self.comment("external IP"));
                add(SharedChain::Services, rule);
            }
            if let Some(no) = &refusal {
                add(SharedChain::ExternalRefused, format!("{} {to} -j {}", self.because(no), no.target));
            }
        }
        for ip in &addresses.load_balancer_ips {
            let to = self.to(*ip);
            let firewall = self.has_firewall().then(|| self.chains.chain(Purpose::Firewall));
            if routing.has_endpoints() {
                let chain = firewall.unwrap_or(external);
                let rule = format!("{} {to} -j {chain}", self.comment("loadbalancer IP"));
                add(SharedChain::Services, rule);
            }
            if let Some(chain) = firewall {
                let why = self.comment(format_args!("traffic not accepted by {chain}"));
                add(SharedChain::ProxyFirewall, format!("{why} {to} -j DROP"));
            }
        }
        if let Some(no) = &refusal {
            for ip in &addresses.load_balancer_ips {
                let to = self.to(*ip);
                add(SharedChain::ExternalRefused, format!("{} {to} -j {}", self.because(no), no.target));
            }
        }
        if let Some(port) = routing.node_port {
            let words = format!("{} -m {protocol} -p {protocol}", comment(&self.name));
            let counts = settings.serves_localhost() && settings.abilities.counters.localhost_node_ports;
            if routing.has_endpoints() && counts {
                let counted = format!("-m nfacct --nfacct-name {LOCALHOST_NODE_PORTS}");
                let rule = format!("{words} -d 127.0.0.0/8 --dport {port} {counted} -j {external}");
                add(SharedChain::NodePorts, rule);
            }
            if routing.has_endpoints() {
                add(SharedChain::NodePorts, format!("{words} --dport {port} -j {external}"));
            }
            if let Some(no) = &refusal {
                let to = format!("-m addrtype --dst-type LOCAL -m {protocol} -p {protocol} --dport {port}");
                add(SharedChain::ExternalRefused, format!("{} {to} -j {}", self.because(no), no.target));
            }
        }
        if let Some(port) = routing.health_check_node_port {
            let why = self.comment("health check node port");
            add(SharedChain::HealthChecks, format!("{why} -m tcp -p tcp --dport {port} -j ACCEPT"));
        }
        lines
    }

    fn chains(&self, comments: EndpointComments) -> Vec<RenderedChain> {
        let routing = self.routing;
        let mut chains = Vec::new();
        if routing.has_endpoints() && routing.is_externally_accessible {
            chains.push(self.external());
        }
        if self.has_firewall() {
            chains.push(self.firewall());
        }
        let targets: Vec<Target> = routing.reachable().into_iter().map(|one| self.target(one)).collect();
        for (purpose, traffic) in [(Purpose::Cluster, Traffic::ToCluster), (Purpose::Local, Traffic::ToLocal)]
        {
            let endpoints = routing.endpoints(traffic);
            if !endpoints.is_empty() {
                let probabilities = probabilities(endpoints.len(), routing.weights(traffic));
                chains.push(self.choice(purpose, &among(&targets, endpoints), &probabilities, comments));
            }
        }
        chains.extend(targets.iter().map(|target| self.endpoint(target, comments)));

        if let Ok(internal) = self.entry(routing.internal)
            && let Some(chain) = chains.iter_mut().find(|chain| chain.name == internal)
            && let Some(rule) = self.masquerade_internal()
        {
            chain.masquerade = Some(format!("-A {internal} {rule}\n"));
            chain.count += 1;
        }
        chains
    }

    fn masquerade_internal(&self) -> Option<String> {
        let to = self.to(self.routing.addresses.cluster_ip);
        let who = match self.settings.from_pod() {
            _ if self.settings.masquerade_all => String::new(),
            Some(from_pod) => format!(" ! {from_pod}"),
            None => return None,
        };
        Some(format!("{} {to}{who} -j {MARK_MASQ}", self.comment("cluster IP")))
    }

    /// The chain for external destinations. If endpoints see the addresses of clients, traffic from pods and from this node is
    /// short-circuited to the cluster's endpoints.
    fn external(&self) -> RenderedChain {
        let name = &self.name;
        let to = |verb: &str| comment(format_args!("{verb} for {name} external destinations"));
        let cluster = self.chains.chain(Purpose::Cluster);
        let mut chain = RenderedChain::new(self.chains.chain(Purpose::External));
        if self.routing.preserves_client {
            if let Some(from_pod) = self.settings.from_pod() {
                chain.add(format_args!("{} {from_pod} -j {cluster}", to("pod traffic")));
            }
            let from_node = "-m addrtype --src-type LOCAL";
            chain.add(format_args!("{} {from_node} -j {MARK_MASQ}", to("masquerade LOCAL traffic")));
            chain.add(format_args!("{} {from_node} -j {cluster}", to("route LOCAL traffic")));
        } else {
            chain.add(format_args!("{} -j {MARK_MASQ}", to("masquerade traffic")));
        }
        if let Ok(entry) = self.entry(self.routing.external) {
            chain.add(format_args!("-j {entry}"));
        }
        chain
    }

    fn firewall(&self) -> RenderedChain {
        let name = &self.name;
        let external = self.chains.chain(Purpose::External);
        let addresses = &self.routing.addresses;
        let why = self.comment("loadbalancer IP");
        let mut chain = RenderedChain::new(self.chains.chain(Purpose::Firewall));
        for range in &addresses.source_ranges {
            chain.add(format_args!("{why} -s {range} -j {external}"));
        }
        if self.routing.ranges_admit_node {
            // What this node sends to itself may have the load-balancer IP as its source.
            for ip in &addresses.load_balancer_ips {
                chain.add(format_args!("{why} -s {ip} -j {external}"));
            }
        }
        let rest = comment(format_args!("other traffic to {name} will be dropped by {PROXY_FIREWALL}"));
        chain.add(format_args!("{rest}"));
        chain
    }

    /// The chain that picks an endpoint: the one that the client used last, or else a random one.
    fn choice(
        &self,
        purpose: Purpose,
        targets: &[&Target],
        probabilities: &[f64],
        comments: EndpointComments,
    ) -> RenderedChain {
        let mut chain = RenderedChain::with_room(self.chains.chain(purpose), targets.len());
        let mut add = |target: &Target, condition: fmt::Arguments<'_>| {
            let Target { chain: to, text, .. } = target;
            match comments {
                EndpointComments::Written => {
                    let comment = self.comment(format_args!("-> {text}"));
                    chain.add(format_args!("{comment} {condition}-j {to}"));
                }
                EndpointComments::LeftOut => chain.add(format_args!("{condition}-j {to}")),
            }
        };
        if let Some(seconds) = self.routing.affinity {
            for target in targets {
                let to = target.chain;
                add(target, format_args!("-m recent --name {to} --rcheck --seconds {seconds} --reap "));
            }
        }
        for (target, probability) in targets.iter().zip(probabilities) {
            add(target, format_args!("-m statistic --mode random --probability {probability:.10} "));
        }
        // What is left goes to the last endpoint.
        targets.last().into_iter().for_each(|last| add(last, format_args!("")));
        chain
    }

    fn endpoint(&self, target: &Target, comments: EndpointComments) -> RenderedChain {
        let Self { protocol, .. } = self;
        let Target { endpoint, text, chain } = target;
        let comment = match comments {
            EndpointComments::Written => format!("{} ", comment(&self.name)),
            EndpointComments::LeftOut => String::new(),
        };
        let recent = match self.routing.affinity {
            Some(_) => format!("-m recent --name {chain} --set "),
            None => String::new(),
        };
        let mut chain = RenderedChain::with_room(*chain, 2);
        // Otherwise a pod that connects to itself would see its own address as the source.
        chain.add(format_args!("{comment}-s {} -j {MARK_MASQ}", endpoint.ip));
        let words = format_args!("-m {protocol} -p {protocol}");
        chain.add(format_args!("{comment}{recent}{words} -j DNAT --to-destination {text}"));
        chain
    }

    fn target(&self, endpoint: Endpoint) -> Target {
        let text = endpoint.to_string();
        Target { endpoint, chain: self.chains.endpoint(&text), text }
    }

    fn has_firewall(&self) -> bool {
        let addresses = &self.routing.addresses;
        self.routing.has_endpoints()
            && !addresses.load_balancer_ips.is_empty()
            && !addresses.source_ranges.is_empty()
    }

    /// The chain that this traffic enters, or how it is refused.
    fn entry(&self, traffic: Traffic) -> Result<ServiceChain, Refusal> {
        match traffic {
            Traffic::ToCluster => Ok(self.chains.chain(Purpose::Cluster)),
            Traffic::ToLocal => Ok(self.chains.chain(Purpose::Local)),
            Traffic::RejectNoEndpoints => Err(Refusal { target: "REJECT", reason: "has no endpoints" }),
            Traffic::DropNoLocalEndpoints => {
                Err(Refusal { target: "DROP", reason: "has no local endpoints" })
            }
        }
    }

    fn because(&self, refusal: &Refusal) -> String {
        self.comment(refusal.reason)
    }

    /// The comment of a rule: the name of the service port, and the text.
    fn comment(&self, text: impl fmt::Display) -> String {
        comment(format_args!("{} {text}", self.name))
    }

    /// Matches packets to the service port at this address.
    fn to(&self, ip: IpAddr) -> String {
        let Self { protocol, routing, .. } = self;
        format!("-m {protocol} -p {protocol} -d {ip} --dport {}", routing.port)
    }
}

/// An endpoint, its text, and the name of its chain.
struct Target {
    endpoint: Endpoint,
    text: String,
    chain: ServiceChain,
}

/// The targets of these endpoints. Both are in the same order.
fn among<'a>(targets: &'a [Target], endpoints: &[Endpoint]) -> Vec<&'a Target> {
    let mut targets = targets.iter();
    endpoints.iter().filter_map(|endpoint| targets.find(|target| target.endpoint == *endpoint)).collect()
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    target: &'static str,
    reason: &'static str,
}

/// The probability of each endpoint but the last, provided that the choice has come to it: one of those that are left, in
/// proportion to their weights if there are any.
fn probabilities(endpoints: usize, weights: &[Weight]) -> Vec<f64> {
    if weights.is_empty() {
        let of = |left: usize| 1.0 / f64::from(u32::try_from(left).unwrap_or(u32::MAX));
        return (2..=endpoints).rev().map(of).collect();
    }
    let mut left: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    let (_, all_but_last) = weights.split_last().unwrap_or((&0, &[]));
    let of = |weight: &Weight| {
        let probability = f64::from(*weight) / left as f64;
        left -= u64::from(*weight);
        probability
    };
    all_but_last.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(weights: &[Weight]) -> Vec<String> {
        probabilities(weights.len(), weights).iter().map(|it| format!("{it:.10}")).collect()
    }

    // Upstream's TestComputeProbability.
    #[test]
    fn chances_are_printed_with_ten_decimals_and_always_fall() {
        let probability = |of: usize| format!("{:.10}", probabilities(of, &[])[0]);
        for (of, want) in [
            (2, "0.5000000000"),
            (3, "0.3333333333"),
            (7, "0.1428571429"),
            (1_001, "0.0009990010"),
            (100_001, "0.0000099999"),
        ] {
            assert_eq!(probability(of), want, "1/{of}");
        }
        let chances = probabilities(100_000, &[]);
        assert_eq!(chances.len(), 99_999);
        let chances: Vec<String> = chances.iter().map(|it| format!("{it:.10}")).collect();
        assert!(chances.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn chances_follow_weights() {
        assert_eq!(printed(&[1, 2, 5]), ["0.1250000000", "0.2857142857"]);
        assert_eq!(printed(&[100, 100, 100]), ["0.3333333333", "0.5000000000"]);
        assert_eq!(printed(&[65_535, 1]), ["0.9999847412"]);
        assert_eq!(printed(&[7]), [""; 0]);
    }
}
