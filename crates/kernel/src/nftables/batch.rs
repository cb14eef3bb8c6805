//! Turns steps into one transaction, in the order that the kernel needs.

use std::borrow::Cow;
use std::net::IpAddr;

use model::address::Family;
use model::names::Port;
use netlink::nftables::{self as nft, Batch, Datum, Value, Verdict};
use plan::nftables::program::ProgramChain;
use plan::nftables::sets::{Data, Element, Set, Type};
use plan::nftables::steps::{Boundaries, NewTable, Steps, Unexpected};

use super::TABLE;
use super::compile::{add_rule, declare, hook};
use crate::wire_family;

/// `declaration` is what a new table is created with.
pub fn batch_of(steps: &Steps, family: Family, declaration: &nft::Table<'_>) -> Batch {
    let mut batch = Batch::new(wire_family(family), TABLE);
    if let Some(table) = &steps.table {
        add_table(table, declaration, &mut batch);
    }
    remove(&steps.unexpected, &mut batch);
    add_chains(&steps.chains, family, &mut batch);
    if let Some(service_cidrs) = &steps.service_cidrs {
        write_ranges(Set::ServiceCidrs, service_cidrs, &mut batch);
    }
    if let Some(ips) = &steps.node_port_ips {
        let name = Set::NodePortIps.name();
        batch.flush_set(name);
        batch.add_elements(name, ips.iter().map(|ip| nft::Element::new(*ip)));
    }
    write_elements(steps, family, &mut batch);
    steps.old_chains.iter().for_each(|chain| batch.delete_chain(chain));
    batch
}

fn add_table(new: &NewTable, declaration: &nft::Table<'_>, batch: &mut Batch) {
    if new.replaces {
        batch.delete_table();
    }
    batch.add_table(declaration);
    let family = new.program.family;
    for set in &new.program.sets {
        declare(*set, family, |set| _ = batch.add_set(set));
    }
    add_chains(&new.program.chains, family, batch);
    add_elements(&new.program.verdicts, family, batch);
}

/// Adds all chains before the first rule, which may lead to any of them.
fn add_chains(chains: &[ProgramChain], family: Family, batch: &mut Batch) {
    for chain in chains {
        batch.add_chain(&nft::Chain { name: &chain.name, hook: hook(chain), comment: None });
    }
    for chain in chains {
        chain.rules.iter().for_each(|rule| add_rule(batch, &chain.name, rule, family));
    }
}

/// Removes rules first, since they may refer to sets and chains; then sets, whose elements may lead to chains.
fn remove(unexpected: &Unexpected, batch: &mut Batch) {
    unexpected.chains.iter().for_each(|chain| batch.flush_chain(chain));
    unexpected.sets.iter().for_each(|set| batch.delete_set(set));
    unexpected.chains.iter().for_each(|chain| batch.delete_chain(chain));
}

/// Deletes before it adds, both grouped by set.
pub fn write_elements(steps: &Steps, family: Family, batch: &mut Batch) {
    for set in &steps.empty {
        batch.flush_set(set.name());
    }
    for elements in steps.delete.chunk_by(|a, b| a.set == b.set) {
        let name = elements.first().map(|element| element.set.name()).unwrap_or_default();
        batch.delete_elements(name, elements.iter().map(|element| to_wire(element, "", family)));
    }
    add_elements(&steps.add, family, batch);
}

/// The elements are grouped by set.
fn add_elements(elements: &[Element], family: Family, batch: &mut Batch) {
    for elements in elements.chunk_by(|a, b| a.set == b.set) {
        let Some(set) = elements.first().map(|element| element.set) else { continue };
        if set.data() == [Type::Verdict] {
            let chains: Vec<Cow<'_, str>> = elements.iter().map(chain_of).collect();
            let elements = elements.iter().zip(&chains);
            batch.add_elements(set.name(), elements.map(|(element, chain)| to_wire(element, chain, family)));
        } else {
            batch.add_elements(set.name(), elements.iter().map(|element| to_wire(element, "", family)));
        }
    }
}

/// The name of the chain that an element of a verdict map leads to.
fn chain_of(element: &Element) -> Cow<'static, str> {
    match (element.set, element.data) {
        (Set::Timeouts(by), Some(Data::AffinityChain(seconds))) => by.affinity_chain(seconds).into(),
        (_, Some(Data::Chain(target))) => target.name(),
        _ => "".into(),
    }
}

/// `chain` is where an element of a verdict map leads.
fn to_wire<'a>(element: &Element, chain: &'a str, family: Family) -> nft::Element<'a> {
    let key = element.key.as_bytes();
    if element.set == Set::AllowedSources {
        // The key is the frontend, the first address and the last one. Both ends of the kernel's range begin with the frontend.
        let (frontend, ends) = key.split_at(key.len() - 2 * address_length(family));
        let (first, last) = ends.split_at(address_length(family));
        let range = |end: &[u8]| Value::concatenation(&[frontend, end]);
        return nft::Element { key_end: Some(range(last)), ..nft::Element::new(range(first)) };
    }
    let key = Value::concatenation(&[key]);
    let endpoint = |ip: &[u8], port: Port| {
        nft::Element::pair(key, Value::concatenation(&[ip, &port.get().to_be_bytes()]))
    };
    let verdict = |verdict| nft::Element { data: Some(Datum::Verdict(verdict)), ..nft::Element::new(key) };
    match element.data {
        Some(Data::Endpoint(IpAddr::V4(ip), port)) => endpoint(&ip.octets(), port),
        Some(Data::Endpoint(IpAddr::V6(ip), port)) => endpoint(&ip.octets(), port),
        Some(Data::List(list)) => nft::Element::pair(key, list.to_wire()),
        Some(Data::Sticky(sticky)) => nft::Element::pair(key, sticky.to_wire()),
        Some(Data::Chain(target)) if target.returns() => verdict(Verdict::Jump(chain)),
        Some(Data::Chain(_) | Data::AffinityChain(_)) => verdict(Verdict::Goto(chain)),
        None => nft::Element::new(key),
    }
}

pub fn address_length(family: Family) -> usize {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

fn write_ranges(set: Set, ranges: &Boundaries, batch: &mut Batch) {
    let name = set.name();
    batch.flush_set(name);
    let elements = ranges
        .iter()
        .map(|(address, is_end)| nft::Element { interval_end: *is_end, ..nft::Element::new(*address) });
    batch.add_elements(name, elements);
}
