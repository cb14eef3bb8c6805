//! Follows a packet through rules as `iptables-save` prints them, through those chains that are ours.
//!
//! Chance is not drawn: every endpoint that is possible is found. Nobody counts as having been there before.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::live::Observed;
use super::{Explanation, Fate, Origin};
use crate::iptables::chains::{EXTERNAL_SERVICES, PROXY_FIREWALL, SERVICES};
use crate::iptables::saved_rule::{SavedOption, SavedRule};

/// Deeper than any of our chains lead; rules that lead back to where they came from are not ours.
const DEEPEST: usize = 8;

/// What rules lead a packet to: `nat` and `filter` are what the two tables hold, `addresses` all that the node has.
pub fn through_rules(explanation: &Explanation, nat: &str, filter: &str, addresses: &[IpAddr]) -> Observed {
    let traveller = Traveller { explanation, addresses };
    let mut endpoints = BTreeSet::new();
    let may_pass = traveller.translate(&chains(nat), SERVICES, 0, &mut endpoints);
    if !endpoints.is_empty() {
        return Observed::forwarded(endpoints, may_pass);
    }
    let filter = chains(filter);
    let looked_through: &[&str] = match (explanation.origin == Origin::Node, explanation.to_this_node) {
        (true, true) | (false, false) => &[PROXY_FIREWALL, SERVICES, EXTERNAL_SERVICES],
        (true, false) => &[PROXY_FIREWALL, SERVICES],
        (false, true) => &[PROXY_FIREWALL, EXTERNAL_SERVICES],
    };
    let stopped = looked_through.iter().find_map(|chain| traveller.stop(&filter, chain));
    Observed::stopped(stopped.unwrap_or(Fate::Untouched))
}

type Chains<'a> = HashMap<&'a str, Vec<SavedRule<'a>>>;

fn chains(saved: &str) -> Chains<'_> {
    let mut chains = Chains::new();
    for line in saved.lines() {
        let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        // There may be tens of thousands, and those of others are none of our business.
        if chain.starts_with("KUBE-") {
            chains.entry(chain).or_default().push(SavedRule::parse(rule));
        }
    }
    chains
}

struct Traveller<'a> {
    explanation: &'a Explanation,
    addresses: &'a [IpAddr],
}

impl Traveller<'_> {
    /// Finds the endpoints that a chain may lead to, and returns whether a packet may get past all of them.
    fn translate(
        &self,
        chains: &Chains<'_>,
        chain: &str,
        depth: usize,
        endpoints: &mut BTreeSet<SocketAddr>,
    ) -> bool {
        if depth > DEEPEST {
            return true;
        }
        for rule in chains.get(chain).into_iter().flatten().filter(|rule| self.matches(rule)) {
            let passed = match rule.target() {
                Some("DNAT") => {
                    endpoints
                        .extend(rule.value("--to-destination").and_then(|to| to.parse::<SocketAddr>().ok()));
                    false
                }
                Some("RETURN") => return true,
                Some(next) => self.translate(chains, next, depth + 1, endpoints),
                None => true,
            };
            let by_chance = rule.value("--probability").is_some();
            if !passed && !by_chance {
                return false;
            }
        }
        true
    }

    fn stop(&self, chains: &Chains<'_>, chain: &str) -> Option<Fate> {
        let mut rules = chains.get(chain)?.iter().filter(|rule| self.matches(rule));
        rules.find_map(|rule| match rule.target() {
            Some("REJECT") => Some(Fate::Refused),
            Some("DROP") => Some(Fate::Dropped),
            _ => None,
        })
    }

    fn matches(&self, rule: &SavedRule<'_>) -> bool {
        let Explanation { source, destination, protocol, origin, .. } = self.explanation;
        let is_local = |ip: IpAddr| ip.is_loopback() || self.addresses.contains(&ip);
        rule.options.iter().all(|SavedOption { name, is_negated, value }| {
            let found = match *name {
                "-p" => value == protocol,
                "-s" => within(value, *source),
                "-d" => within(value, destination.ip()),
                "--dport" => value.parse() == Ok(destination.port()),
                // The only interfaces in our rules are those of pods.
                "-i" => *origin == Origin::Pod,
                "--src-type" => is_local(*source),
                "--dst-type" => is_local(destination.ip()),
                "--rcheck" => false,
                _ => true,
            };
            found != *is_negated
        })
    }
}

fn within(cidr: &str, ip: IpAddr) -> bool {
    let net = cidr.parse::<IpNet>().or_else(|_| cidr.parse::<IpAddr>().map(IpNet::from));
    net.is_ok_and(|net| net.contains(&ip))
}
