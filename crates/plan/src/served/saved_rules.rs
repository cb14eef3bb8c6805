//! What the rules of the iptables mode serve, from the format of `iptables-save`. Their comments name service ports.
//!
//! ```text
//!   KUBE-SERVICES, KUBE-NODEPORTS ─▶ [FW ─▶] EXT ─▶ SVC | SVL ─▶ SEP ─▶ DNAT     nat
//!   KUBE-SERVICES, KUBE-EXTERNAL-SERVICES ─▶ REJECT | DROP                       filter
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ipnet::IpNet;
use model::names::{NamespacedName, Port, Protocol, ServicePortName};

use super::{KernelComparison, RefusalReason, Served, ServedEndpoint, ServedFrontend, shares};
use crate::difference::Difference;
use crate::iptables::chains::{EXTERNAL_SERVICES, Jump, NODE_PORTS, PROXY_FIREWALL, Purpose, SERVICES};
use crate::iptables::listing::Listing;
use crate::iptables::saved_rule::SavedRule;
use crate::nftables::claims::Precedence;
use crate::nftables::elements::FrontendKey;
use crate::nftables::sets::show_range;

impl KernelComparison {
    /// Compares the filter and the nat table.
    pub fn of_rules(desired: &[Listing; 2], actual: &[Listing; 2], differences: Vec<Difference>) -> Self {
        let chains = desired.iter().flat_map(|Listing(chains)| chains.values());
        let objects = Jump::ALL.len() + chains.map(|rules| 1 + rules.len()).sum::<usize>();
        let [desired, actual] = [desired, actual].map(Served::from_rules);
        Self { objects, differences, desired, actual }
    }
}

impl Served {
    /// Reads the rules of the filter and the nat table.
    pub fn from_rules([filter, nat]: &[Listing; 2]) -> Self {
        let mut served = Self::default();
        for rule in parsed(nat, SERVICES).chain(parsed(nat, NODE_PORTS)) {
            served.enter(nat, &rule);
        }
        // Chains that no frontend leads to any more.
        for (chain, rules) in nat.0.iter().filter(|(chain, _)| Purpose::of(chain).is_some()) {
            let named = || rules.iter().find_map(|rule| service_port(&SavedRule::parse(rule)));
            if !served.chains.contains_key(chain)
                && let Some(name) = named()
            {
                served.chains.insert(chain.clone(), name);
            }
        }
        for rule in parsed(filter, SERVICES).chain(parsed(filter, EXTERNAL_SERVICES)) {
            let refusal = match rule.target() {
                Some("REJECT") => RefusalReason::NoEndpoints,
                Some("DROP") => RefusalReason::NoLocalEndpoints,
                _ => continue,
            };
            let Some(service) = served.claimed(&rule) else { continue };
            if service.claims.first() == service_port(&rule).as_ref() {
                service.refusal = Some(refusal);
            }
        }
        for rule in parsed(filter, PROXY_FIREWALL) {
            if let Some(service) = served.claimed(&rule) {
                service.sources.get_or_insert_default();
            }
        }
        served
    }

    /// The frontend that a rule matches. Adds the rule's service port to its claims.
    fn claimed(&mut self, rule: &SavedRule<'_>) -> Option<&mut ServedFrontend> {
        let service = self.frontends.entry(frontend(rule)?).or_default();
        let name = service_port(rule);
        service.claims.extend(name.filter(|name| !service.claims.contains(name)));
        service.precedence = (service.claims.len() > 1).then_some(Precedence::FirstRule);
        Some(service)
    }

    /// Follows a rule that matches a frontend. If there are several rules for a frontend, the first one counts.
    fn enter(&mut self, nat: &Listing, rule: &SavedRule<'_>) -> Option<()> {
        let (chain, name) = (rule.target()?, service_port(rule));
        let is_first = !self.frontends.contains_key(&frontend(rule)?);
        let mut path = Path {
            nat,
            service: ServedFrontend::default(),
            share: 0.0,
            shares: BTreeMap::new(),
            chains: Vec::new(),
        };
        path.follow(chain, Side::Outside);
        path.service.shares = shares(&path.shares);
        if let Some(name) = name {
            self.chains.extend(path.chains.into_iter().map(|chain| (chain.to_owned(), name.clone())));
        }
        let service = self.claimed(rule)?;
        if is_first {
            let claims = std::mem::take(&mut service.claims);
            *service = ServedFrontend { claims, forwards: true, ..path.service };
        }
        None
    }
}

/// Which connections a rule is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// From outside, or all.
    Outside,
    /// From pods and from this node.
    Inside,
}

/// The chains behind a rule that matches a frontend, and what they do.
struct Path<'a> {
    nat: &'a Listing,
    service: ServedFrontend,
    /// The share of connections that reach the chain of an endpoint.
    share: f64,
    shares: BTreeMap<ServedEndpoint, f64>,
    chains: Vec<&'a str>,
}

impl<'a> Path<'a> {
    fn follow(&mut self, chain: &str, side: Side) {
        let Some(purpose) = Purpose::of(chain) else { return };
        let Some((chain, rules)) = self.nat.0.get_key_value(chain) else { return };
        self.chains.push(chain);
        let mut is_entered = false;
        let mut left = 1.0;
        for rule in rules.iter().map(|rule| SavedRule::parse(rule)) {
            let Some(target) = rule.target() else { continue };
            // Foreign rules may form a loop.
            let next = Purpose::of(target).filter(|next| next.depth() > purpose.depth());
            match purpose {
                Purpose::Firewall => {
                    self.service.sources.get_or_insert_default().extend(rule.value("-s").map(range));
                    if next.is_some() && !is_entered {
                        is_entered = true;
                        self.follow(target, side);
                    }
                }
                Purpose::External => {
                    let is_inside =
                        ["-s", "-i", "--src-type"].iter().any(|option| rule.value(option).is_some());
                    if is_inside {
                        self.service.inside.get_or_insert_default();
                    }
                    if next.is_some() {
                        self.follow(target, if is_inside { Side::Inside } else { side });
                    }
                }
                Purpose::Cluster | Purpose::Local => {
                    let seconds = rule.value("--seconds").and_then(|seconds| seconds.parse().ok());
                    self.service.affinity = self.service.affinity.or(seconds);
                    if next.is_some() {
                        let probability = rule.value("--probability").and_then(|text| text.parse().ok());
                        // New clients do not match the rule for those that came before.
                        self.share = if seconds.is_some() { 0.0 } else { left * probability.unwrap_or(1.0) };
                        left -= self.share;
                        self.follow(target, side);
                    }
                }
                Purpose::Endpoint => {
                    let Some(endpoint) = rule.value("--to-destination").and_then(endpoint) else { continue };
                    match side {
                        Side::Outside => {
                            *self.shares.entry(endpoint).or_default() += self.share;
                            self.service.endpoints.insert(endpoint)
                        }
                        Side::Inside => self.service.inside.get_or_insert_default().insert(endpoint),
                    };
                }
            }
        }
    }
}

/// The service port at the start of a rule's comment. The protocol, which is part of its name, is that which the rule matches.
pub(super) fn service_port(rule: &SavedRule<'_>) -> Option<ServicePortName> {
    let protocol = protocol(rule.value("-p")?)?;
    let (namespace, rest) = rule.comment()?.split(' ').next()?.split_once('/')?;
    let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
    Some(ServicePortName { service: NamespacedName::new(namespace, name), port: port.into(), protocol })
}

fn parsed<'a>(table: &'a Listing, chain: &str) -> impl Iterator<Item = SavedRule<'a>> {
    table.0.get(chain).into_iter().flatten().map(|rule| SavedRule::parse(rule))
}

fn frontend(rule: &SavedRule<'_>) -> Option<FrontendKey> {
    let port = Port::from_api(rule.value("--dport")?.parse().ok()?)?;
    let ip = match rule.value("-d") {
        // The rule that counts connections to localhost precedes the one for the node port, and is no frontend of its own.
        Some(_) if rule.value("--nfacct-name").is_some() => return None,
        Some(net) => Some(net.parse::<IpNet>().ok()?.addr()),
        None => None,
    };
    Some(FrontendKey { ip, protocol: protocol(rule.value("-p")?)?, port })
}

/// A source range as the nftables mode shows it.
fn range(text: &str) -> String {
    let net = text.parse::<IpNet>();
    net.map_or(text.to_owned(), |net| show_range((net.network(), net.broadcast())))
}

fn endpoint(text: &str) -> Option<ServedEndpoint> {
    let socket: SocketAddr = text.parse().ok()?;
    Some((socket.ip(), Port::from_api(socket.port().into())?))
}

fn protocol(name: &str) -> Option<Protocol> {
    match name {
        "tcp" => Some(Protocol::Tcp),
        "udp" => Some(Protocol::Udp),
        "sctp" => Some(Protocol::Sctp),
        _ => None,
    }
}
