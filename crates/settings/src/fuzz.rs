//! The fuzz target for the decoder of the configuration file. See the crate `fuzz`.

use crate::config::v1alpha1::KubeProxyConfiguration;

type Decode = fn(&[u8]);

pub const TARGETS: &[(&str, Decode)] = &[("configuration", decode_configuration)];

/// Encodes the decoded configuration and decodes it again, as `--write-config-to` and a restart do.
fn decode_configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(decoded) = KubeProxyConfiguration::decode(text) else { return };
    let _ = decoded.config.to_json();
    if let Ok(written) = decoded.config.to_yaml() {
        let again = KubeProxyConfiguration::decode(&written).map(|decoded| decoded.config);
        assert_eq!(again.as_ref(), Ok(&decoded.config), "{written}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_input_in_the_corpus_is_decoded() {
        fuzz::run_corpus(super::TARGETS).unwrap();
    }
}
