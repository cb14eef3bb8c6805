//! The audit log of the API server.

use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;

/// One request, or the start or end of a watch.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    pub stage: String,
    pub verb: String,
    #[serde(rename = "requestURI")]
    pub uri: String,
    pub user: User,
    #[serde(rename = "sourceIPs")]
    pub source_ips: Vec<IpAddr>,
    pub response_status: Option<Status>,
}

/// The name is empty if authentication failed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct User {
    pub username: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    pub code: Option<u16>,
}

impl AuditEntry {
    pub fn path(&self) -> &str {
        self.uri.split('?').next().unwrap_or_default()
    }

    pub fn code(&self) -> Option<u16> {
        self.response_status.as_ref().and_then(|status| status.code)
    }

    /// A query parameter, decoded.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let (_, query) = self.uri.split_once('?')?;
        let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
        Some(percent_decoded(value))
    }
}

/// All entries of requests from `from`, in order.
pub fn read(log: &Path, from: IpAddr) -> Vec<AuditEntry> {
    let text = std::fs::read_to_string(log).unwrap();
    // The last line may be incomplete.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let entries = whole.lines().map(|line| serde_json::from_str::<AuditEntry>(line).unwrap());
    entries.filter(|entry| entry.source_ips.contains(&from)).collect()
}

fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits: String = bytes.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).unwrap()
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).unwrap()
}

#[cfg(test)]
mod tests {
    use super::percent_decoded;

    #[test]
    fn percent_encoding_is_decoded() {
        assert_eq!(percent_decoded("spec.clusterIP%21%3DNone"), "spec.clusterIP!=None");
    }
}
