//! The reasons for a walk through the program of the nftables mode: each rule says by its sets why it is there.
#![expect(clippy::wildcard_enum_match_arm, reason = "only a few statements and sets say why a rule is there")]

use model::address::Family;
use model::cluster::Considered;
use model::names::ServicePortName;
use model::routing::Traffic;

use super::{Answer, Candidate, End, Kind, Masquerade, Question, Reason, Settings, traffic};
use crate::nftables::desired::DesiredTable;
use crate::nftables::desired_sets::DesiredSets;
use crate::nftables::elements::Seats;
use crate::nftables::program::{self, Program};
use crate::nftables::run::{Path, Walk, run};
use crate::nftables::sets::{Bank, Set};
use crate::nftables::statements::{Affinity, Field, Rule, Statement};
use crate::walk::Verdict;

pub(super) fn answer<'q, 's>(
    question: &'q Question<'q>,
    slots: impl Fn(&ServicePortName) -> Seats<'s>,
) -> Answer<'q> {
    let settings = question.settings;
    let mut table = DesiredTable::new(settings.nftables(Family::of(question.destination().ip())));
    table.replace_service_cidrs(question.service_cidrs.clone());
    table.replace_node_port_ips(settings.node_port_addresses.among(question.context.addresses));
    for concerned in &question.concerned {
        table.insert(concerned.name.clone(), concerned.routing.clone(), slots(&concerned.name));
    }
    let program = table.program();
    let mut sets = DesiredSets::new(&table);
    let Ok(walk) = run(&program, &question.context, &mut sets);
    reasons(question, &program, &walk)
}

impl Settings {
    pub(super) fn nftables(&self, family: Family) -> program::Settings {
        program::Settings {
            family,
            mark: self.mark,
            masquerade_all: self.masquerade_all,
            from_pod: self.from_pod.clone(),
            node_ports_everywhere: self.node_port_addresses.match_all(),
        }
    }
}

fn reasons<'q>(question: &'q Question<'q>, program: &Program, walk: &Walk<'_>) -> Answer<'q> {
    let stopped = walk.paths.iter().find(|path| path.verdict != Verdict::Accept);
    let forwarded = walk.paths.iter().find(|path| path.is_forwarded());
    let Some(path) = forwarded.or(stopped) else { return question.untouched() };
    let chains = chains(program, path);
    let owner = |bank| match bank {
        Bank::Addresses => question.owner_by_address(),
        Bank::NodePorts => question.owner_by_node_port().map(|claim| (claim, Kind::NodePort)),
    };
    if path.is_forwarded() {
        let Some((bank, is_inside)) = path.rules.iter().rev().find_map(|matched| translation(matched.rule))
        else {
            return question.untouched();
        };
        let matched = owner(bank);
        let candidates = walk.paths.iter().filter(|path| path.is_forwarded());
        let candidates = candidates.filter_map(|path| {
            let masquerade = path.is_masqueraded.then(|| masquerade(path)).flatten();
            Some(Candidate { address: path.endpoint?, probability: path.probability, masquerade })
        });
        let candidates = candidates.collect();
        let traffic = matched.map_or(Traffic::ToCluster, |(claim, kind)| {
            let routing = &claim.routing;
            if is_inside { routing.external_from_inside() } else { traffic(routing, kind) }
        });
        let end = End::Translated { candidates, traffic, short_circuit: is_inside };
        let rest = walk.paths.iter().find(|path| !path.is_forwarded());
        return Answer { matched, end, chains, otherwise: rest.map(|path| path.verdict.into()) };
    }
    let (reason, matched) = stop(question, path, owner);
    Answer { matched, end: End::Stopped(path.verdict.into(), reason), chains, otherwise: None }
}

/// Without base chains, and without those that do nothing but draw a slot.
fn chains(program: &Program, path: &Path<'_>) -> Vec<String> {
    let draws = |rule: &Rule| {
        let is_draw = |fields: &[Field]| matches!(fields.last(), Some(Field::Slot(_)));
        matches!(&rule.statements[..], [Statement::Dnat(fields, _)] if is_draw(fields))
    };
    let is_shown = |name: &&&str| {
        let chain = program.chains.iter().find(|chain| chain.name == **name);
        chain.is_some_and(|chain| chain.hook.is_none() && !chain.rules.iter().all(draws))
    };
    path.chains.iter().filter(is_shown).map(|name| (*name).to_owned()).collect()
}

/// Which frontends a rule translates, if it does, and whether only those for traffic from inside.
fn translation(rule: &Rule) -> Option<(Bank, bool)> {
    rule.statements.iter().find_map(|statement| match statement {
        Statement::Dnat(_, Set::Endpoints(bank)) => Some((*bank, false)),
        Statement::Dnat(_, Set::EndpointsInside(bank)) => Some((*bank, true)),
        Statement::Affinity(bank, Affinity::Dnat(list)) => Some((*bank, list.is_some())),
        _ => None,
    })
}

/// Why a path is masqueraded: by the first rule that marks it, or else by the one that masquerades.
fn masquerade(path: &Path<'_>) -> Option<Masquerade> {
    let marks = |rule: &&Rule| rule.statements.iter().any(|it| matches!(it, Statement::SetMark(_)));
    let masquerades = |rule: &&Rule| rule.statements.contains(&Statement::Masquerade);
    let by = |statement: &Statement| match statement {
        Statement::IsLocal(Field::Source) => Some(Masquerade::FromNode),
        Statement::NotWithin(..) | Statement::NotFromInterface(_) => Some(Masquerade::NotFromPod),
        Statement::Goto(_) => Some(Masquerade::External),
        Statement::In(_, Set::Hairpin) => Some(Masquerade::Hairpin),
        _ => None,
    };
    let rules = || path.rules.iter().map(|matched| matched.rule);
    match rules().find(marks) {
        Some(rule) => rule.statements.iter().find_map(by).or(Some(Masquerade::All)),
        None => rules().find(masquerades)?.statements.iter().find_map(by),
    }
}

/// Why a path is stopped, and whose frontend it is sent to.
fn stop<'q>(
    question: &'q Question<'q>,
    path: &Path<'_>,
    owner: impl Fn(Bank) -> Option<(&'q Considered<'q>, Kind)>,
) -> (Reason, Option<(&'q Considered<'q>, Kind)>) {
    let sets = path.rules.last().into_iter().flat_map(|matched| &matched.rule.statements);
    let found = sets.filter_map(|statement| match statement {
        Statement::In(_, set) => Some(match set {
            Set::Firewalled => {
                let owner = owner(Bank::Addresses).map(|(claim, _)| (claim, Kind::LoadBalancerIp));
                (Reason::NotInSourceRanges, owner)
            }
            Set::NoEndpoints(bank) => (Reason::NoEndpoints, owner(*bank)),
            Set::NoLocalEndpoints(bank) => (Reason::NoLocalEndpoints, owner(*bank)),
            Set::ClusterIps => (Reason::NoSuchPort, None),
            Set::ServiceCidrs => (Reason::UnusedClusterIp, None),
            _ => return None,
        }),
        _ => None,
    });
    found.last().unwrap_or((Reason::NoService, question.owner_by_address()))
}
