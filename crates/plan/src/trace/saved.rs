//! Follows a packet through rules as `iptables-save` prints them, through those chains that are ours.
//!
//! Chance is not drawn: every endpoint that is possible is found. Nobody counts as having been there before.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::live::Observed;
use super::{Explanation, Fate, Origin};
use crate::iptables::chains::{EXTERNAL_SERVICES, PROXY_FIREWALL, SERVICES};

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

type Chains<'a> = HashMap<&'a str, Vec<Rule<'a>>>;

/// A rule, taken apart.
#[derive(Debug, Default, PartialEq)]
struct Rule<'a> {
    /// An option, whether it is negated, and its value.
    matches: Vec<(&'a str, bool, &'a str)>,
    target: Option<&'a str>,
    to: Option<&'a str>,
}

fn chains(saved: &str) -> Chains<'_> {
    let mut chains = Chains::new();
    for line in saved.lines() {
        let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        // There may be tens of thousands, and those of others are none of our business.
        if chain.starts_with("KUBE-") {
            chains.entry(chain).or_default().push(Rule::parse(rule));
        }
    }
    chains
}

impl<'a> Rule<'a> {
    fn parse(text: &'a str) -> Self {
        let mut rule = Self::default();
        let mut words = words(text).into_iter();
        let mut negated = false;
        while let Some(word) = words.next() {
            match word {
                "!" => {
                    negated = true;
                    continue;
                }
                "-j" | "-g" => rule.target = words.next(),
                "--to-destination" => rule.to = words.next(),
                "--rcheck" | "--set" | "--reap" | "--rsource" | "--random-fully" => {
                    rule.matches.push((word, negated, ""));
                }
                option => rule.matches.push((option, negated, words.next().unwrap_or_default())),
            }
            negated = false;
        }
        rule
    }
}

/// Split at blanks, except between quotes.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (at, part) in text.split('"').enumerate() {
        if at % 2 == 1 {
            words.push(part);
        } else {
            words.extend(part.split_whitespace());
        }
    }
    words
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
            let passed = match rule.target {
                Some("DNAT") => {
                    endpoints.extend(rule.to.and_then(|to| to.parse::<SocketAddr>().ok()));
                    false
                }
                Some("RETURN") => return true,
                Some(next) => self.translate(chains, next, depth + 1, endpoints),
                None => true,
            };
            let by_chance = rule.matches.iter().any(|(option, ..)| *option == "--probability");
            if !passed && !by_chance {
                return false;
            }
        }
        true
    }

    fn stop(&self, chains: &Chains<'_>, chain: &str) -> Option<Fate> {
        let mut rules = chains.get(chain)?.iter().filter(|rule| self.matches(rule));
        rules.find_map(|rule| match rule.target {
            Some("REJECT") => Some(Fate::Refused),
            Some("DROP") => Some(Fate::Dropped),
            _ => None,
        })
    }

    fn matches(&self, rule: &Rule<'_>) -> bool {
        let Explanation { source, destination, protocol, origin, .. } = self.explanation;
        let is_local = |ip: IpAddr| ip.is_loopback() || self.addresses.contains(&ip);
        rule.matches.iter().all(|(option, negated, value)| {
            let found = match *option {
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
            found != *negated
        })
    }
}

fn within(cidr: &str, ip: IpAddr) -> bool {
    let net = cidr.parse::<IpNet>().or_else(|_| cidr.parse::<IpAddr>().map(IpNet::from));
    net.is_ok_and(|net| net.contains(&ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_saved() {
        let rule = Rule::parse(
            r#"! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m comment --comment "a -j b" -m tcp --dport 80 -j DNAT --to-destination 10.1.1.1:80"#,
        );
        assert_eq!(rule.target, Some("DNAT"));
        assert_eq!(rule.to, Some("10.1.1.1:80"));
        assert_eq!(rule.matches.first(), Some(&("-s", true, "10.244.0.0/16")));
        assert!(rule.matches.contains(&("--comment", false, "a -j b")));
    }
}
