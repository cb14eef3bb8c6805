//! The reasons for a walk through upstream's chains. The comment of a rule names its service port, and the chain says what
//! the rule is for.

use std::collections::BTreeSet;

use model::address::Family;
use model::cluster::CurrentServicePort;
use model::routing::Traffic;

use super::{Answer, End, ExplainSettings, FrontendKind, Masquerade, PossibleTarget, Question, Reason};
use crate::iptables::chains::{
    EXTERNAL_SERVICES, FIREWALL, MARK_MASQ, NODE_PORTS, PROXY_FIREWALL, Purpose, SERVICES, lower_case,
};
use crate::iptables::desired::DesiredRules;
use crate::iptables::interpreter::{ListedRule, NO_RECENT_CLIENTS, RulesPath, Tables, run};
use crate::iptables::program::{self, Abilities};
use crate::iptables::rules::EndpointComments;
use crate::iptables::saved_rule::SavedRule;
use crate::walk::{Matched, PacketVerdict};

pub(super) fn answer<'q>(question: &'q Question<'q>) -> Answer<'q> {
    let settings = question.settings.iptables(Family::of(question.destination().ip()));
    let (node_port_ips, _) = settings.node_port_ips(question.context.addresses);
    let services = question.concerned.iter();
    let desired = DesiredRules {
        tail: settings.tail(&node_port_ips),
        services: services
            .map(|it| (it.name.clone(), it.routing.clone(), EndpointComments::Written))
            .collect(),
        stale: BTreeSet::new(),
        settings,
    };
    let listings = desired.tables();
    let tables = Tables::desired(&listings);
    let walk = run(&tables, &question.context, NO_RECENT_CLIENTS);
    let stopped = walk.paths.iter().find(|path| path.verdict != PacketVerdict::Accept);
    let forwarded: Vec<_> = walk.paths.iter().filter(|path| path.is_forwarded()).collect();
    let Some(path) = forwarded.first().copied().or(stopped) else { return question.untouched() };
    let chains = shown(path);
    if forwarded.is_empty() {
        let (reason, matched) = stop(question, path);
        return Answer { matched, end: End::Stopped(path.verdict.into(), reason), chains, otherwise: None };
    }
    let targets = forwarded.iter().filter_map(|path| {
        let masquerade = path.is_masqueraded.then(|| masquerade(question, path)).flatten();
        Some(PossibleTarget { address: path.endpoint?, probability: path.probability, masquerade })
    });
    let targets = targets.collect();
    let matched = translation(question, path);
    let is_local = path.chains.iter().any(|chain| Purpose::of(chain) == Some(Purpose::Local));
    let traffic = if is_local { Traffic::ToLocal } else { Traffic::ToCluster };
    let short_circuit = !is_local
        && matched
            .is_some_and(|(claim, kind)| kind != FrontendKind::ClusterIp && claim.routing.preserves_client);
    let end = End::Translated { targets, traffic, short_circuit };
    let rest = walk.paths.iter().find(|path| !path.is_forwarded());
    Answer { matched, end, chains, otherwise: rest.map(|path| path.verdict.into()) }
}

impl ExplainSettings {
    fn iptables(&self, family: Family) -> program::RuleSettings {
        program::RuleSettings {
            family,
            mark: self.mark,
            masquerade_all: self.masquerade_all,
            from_pod: self.from_pod.clone(),
            localhost_node_ports: self.serves_localhost,
            node_port_addresses: self.node_port_addresses.clone(),
            abilities: Abilities::default(),
        }
    }
}

/// The chains to show: without the kernel's own, and without those of endpoints, which differ for each endpoint.
fn shown(path: &RulesPath<'_>) -> Vec<String> {
    let is_shown = |name: &&&str| name.starts_with("KUBE-") && Purpose::of(name) != Some(Purpose::Endpoint);
    path.chains.iter().filter(is_shown).map(|name| (*name).to_owned()).collect()
}

/// The service port whose rule in a shared chain led to the translation, and the kind of its frontend.
fn translation<'q>(
    question: &'q Question<'q>,
    path: &RulesPath<'_>,
) -> Option<(&'q CurrentServicePort<'q>, FrontendKind)> {
    let target =
        |matched: &Matched<'_, ListedRule<'_>>| SavedRule::parse(&matched.rule.text).target() == Some("DNAT");
    let end = path.rules.iter().position(target)?;
    let before = path.rules.iter().take(end).rev();
    let (entry, owner) = before
        .filter(|matched| [SERVICES, NODE_PORTS].contains(&matched.chain))
        .find_map(|matched| Some((matched, owner(question, matched)?)))?;
    let rule = SavedRule::parse(&entry.rule.text);
    let says = |what: &str| rule.comment().is_some_and(|comment| comment.ends_with(what));
    let kind = match entry.chain {
        NODE_PORTS => FrontendKind::NodePort,
        _ if says(" loadbalancer IP") => FrontendKind::LoadBalancerIp,
        _ if says(" external IP") => FrontendKind::ExternalIp,
        _ => FrontendKind::ClusterIp,
    };
    Some((owner, kind))
}

/// The service port that a rule belongs to: its comment begins with the name.
fn owner<'q>(
    question: &'q Question<'q>,
    matched: &Matched<'_, ListedRule<'_>>,
) -> Option<&'q CurrentServicePort<'q>> {
    let rule = SavedRule::parse(&matched.rule.text);
    let (comment, protocol) = (rule.comment()?, rule.value("-p")?);
    let name = comment.split(' ').next()?;
    let mut claims = question.concerned.iter();
    claims.find(|claim| lower_case(claim.name.protocol) == protocol && claim.name.to_string() == name)
}

/// Why a path is masqueraded: the first rule that sets the mark says it.
fn masquerade(question: &Question<'_>, path: &RulesPath<'_>) -> Option<Masquerade> {
    let is_mark = |matched: &&Matched<'_, ListedRule<'_>>| {
        SavedRule::parse(&matched.rule.text).target() == Some(MARK_MASQ)
    };
    let matched = path.rules.iter().find(is_mark)?;
    let rule = SavedRule::parse(&matched.rule.text);
    Some(match Purpose::of(matched.chain)? {
        Purpose::Endpoint => Masquerade::Hairpin,
        Purpose::External if rule.value("--src-type").is_some() => Masquerade::FromNode,
        Purpose::External | Purpose::Firewall => Masquerade::External,
        Purpose::Cluster | Purpose::Local if question.settings.masquerade_all => Masquerade::All,
        Purpose::Cluster | Purpose::Local => Masquerade::NotFromPod,
    })
}

/// Why a path is stopped, and whose frontend the packet is sent to.
fn stop<'q>(
    question: &'q Question<'q>,
    path: &RulesPath<'_>,
) -> (Reason, Option<(&'q CurrentServicePort<'q>, FrontendKind)>) {
    let Some(matched) = path.rules.last() else { return (Reason::NoService, None) };
    let owner = owner(question, matched);
    let refusal =
        if path.verdict == PacketVerdict::Reject { Reason::NoEndpoints } else { Reason::NoLocalEndpoints };
    let (reason, kind) = match matched.chain {
        FIREWALL => return (Reason::LoopbackOnly, None),
        PROXY_FIREWALL => {
            let is_admitted = owner.is_some_and(|claim| question.is_admitted(&claim.routing));
            let reason = if is_admitted { Reason::NoLocalEndpoints } else { Reason::NotInSourceRanges };
            (reason, FrontendKind::LoadBalancerIp)
        }
        EXTERNAL_SERVICES if SavedRule::parse(&matched.rule.text).value("--dst-type").is_some() => {
            (refusal, FrontendKind::NodePort)
        }
        EXTERNAL_SERVICES => {
            let ip = path.destination(question.context.packet).ip();
            let is_external = owner.is_some_and(|it| it.routing.addresses.external_ips.contains(&ip));
            (refusal, if is_external { FrontendKind::ExternalIp } else { FrontendKind::LoadBalancerIp })
        }
        _ => (refusal, FrontendKind::ClusterIp),
    };
    (reason, owner.map(|owner| (owner, kind)))
}
