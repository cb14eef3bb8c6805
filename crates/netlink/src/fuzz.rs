//! What the fuzzer calls: every decoder of the kernel's messages. See the crate `fuzz`.

use crate::message::{Message, Messages};
use crate::{accounting, conntrack, ipset, ipvs, nftables, route};

type Decode = fn(&[u8]);

pub const TARGETS: &[(&str, Decode)] = &[
    ("netlink-conntrack", |bytes| decode(bytes, conntrack::decode_all)),
    ("netlink-ipvs", |bytes| decode(bytes, ipvs::decode_all)),
    ("netlink-nftables", |bytes| decode(bytes, nftables::decode_all)),
    ("netlink-route", |bytes| decode(bytes, route::decode_all)),
];

/// The bytes of a datagram: messages one after the other. Counters and names of sets have too few fields for targets of their
/// own.
fn decode(bytes: &[u8], decode_message: fn(&Message<'_>)) {
    for message in Messages::new(bytes) {
        let _ = message.outcome();
        accounting::decode_all(&message);
        ipset::decode_all(&message);
        decode_message(&message);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_input_in_the_corpus_is_decoded() {
        fuzz::run_corpus(super::TARGETS).unwrap();
    }
}
