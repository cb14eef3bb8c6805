//! What the fuzzer calls: the decoders of the configuration file and of HTTP queries. See the crate `fuzz`.

use crate::config::v1alpha1::KubeProxyConfiguration;
use crate::inspect::explain::question::Question;
use crate::status::accept::negotiate;
use crate::status::healthz::Healthz;

pub const TARGETS: &[(&str, fn(&[u8]))] =
    &[("configuration", decode_configuration), ("debug-query", decode_query)];

/// What was decoded is written and decoded again, as `--write-config-to` and a restart do.
fn decode_configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(decoded) = KubeProxyConfiguration::decode(text) else { return };
    let _ = decoded.config.to_json();
    if let Ok(written) = decoded.config.to_yaml() {
        let again = KubeProxyConfiguration::decode(&written).map(|decoded| decoded.config);
        assert_eq!(again.as_ref(), Ok(&decoded.config), "{written}");
    }
}

/// The query of a request, or the value of its `Accept` header.
fn decode_query(bytes: &[u8]) {
    let Ok(query) = std::str::from_utf8(bytes) else { return };
    if let Ok(question) = Question::from_query(query) {
        let again = Question::from_query(&question.to_query());
        assert_eq!(again.ok().as_ref(), Some(&question));
    }
    let _ = Healthz::default().answer(query);
    let _ = negotiate(query, "Statusz");
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_input_in_the_corpus_is_decoded() {
        fuzz::run_corpus(super::TARGETS).unwrap();
    }
}
