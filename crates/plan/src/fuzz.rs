//! The fuzz targets: the parser of `iptables-save`. See the crate `fuzz`.

use std::net::IpAddr;

use model::address::Family;
use model::names::Protocol;

use crate::iptables::chains::{ServiceChain, is_ours, saved_chains};
use crate::iptables::interpreter::{NO_RECENT_CLIENTS, Tables, run};
use crate::iptables::listing::{Listing, as_saved, without_comment};
use crate::iptables::saved_rule::SavedRule;
use crate::walk::{Packet, PacketContext};

type Decode = fn(&[u8]);

pub const TARGETS: &[(&str, Decode)] = &[("saved-rules", decode_saved_rules)];

fn decode_saved_rules(bytes: &[u8]) {
    let Ok(save) = std::str::from_utf8(bytes) else { return };
    for chain in saved_chains(save) {
        let _ = (is_ours(chain), ServiceChain::from_name(chain));
    }
    for rule in Listing::parse(save).0.values().flatten() {
        let parsed = SavedRule::parse(rule);
        let _ = (parsed.target(), parsed.comment(), without_comment(rule));
        for family in [Family::V4, Family::V6] {
            let _ = as_saved(rule, family);
        }
    }
    follow(save);
}

/// Follows a packet from the node and one from elsewhere through the rules, as `explain --live` does.
fn follow(save: &str) {
    let node = IpAddr::from([192, 0, 2, 1]);
    for source in [node, [10, 244, 1, 9].into()] {
        let destination = ([10, 96, 0, 10], 80).into();
        let packet =
            Packet { source, source_port: None, protocol: Protocol::Tcp, destination, interface: None };
        let tables = Tables::saved(save, save);
        let _ = run(&tables, &PacketContext::new(&packet, &[node]), NO_RECENT_CLIENTS);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_input_in_the_corpus_is_decoded() {
        fuzz::run_corpus(super::TARGETS).unwrap();
    }
}
