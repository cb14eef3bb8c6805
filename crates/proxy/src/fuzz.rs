//! The functions that the fuzzer calls: the decoders of HTTP queries and of the `Accept` header. See the crate `fuzz`.

use crate::debug_api::packet_query::PacketQuery;
use crate::status::accept::negotiate;
use crate::status::healthz::Healthz;

type Decode = fn(&[u8]);

pub const TARGETS: &[(&str, Decode)] = &[("debug-query", decode_query)];

fn decode_query(bytes: &[u8]) {
    let Ok(query) = std::str::from_utf8(bytes) else { return };
    if let Ok(described) = PacketQuery::from_url_query(query) {
        let again = PacketQuery::from_url_query(&described.to_url_query());
        assert_eq!(again.ok().as_ref(), Some(&described));
    }
    let _ = Healthz::default().response(query);
    let _ = negotiate(query, "Statusz");
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_input_in_the_corpus_is_decoded() {
        fuzz::run_corpus(super::TARGETS).unwrap();
    }
}
