//! Direct access to etcd, for what the API server would refuse.

use std::io;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::cluster::http;
use testkit::namespace::Namespace;

/// The client address, in the control plane's namespace.
pub const CLIENT_ADDRESS: &str = "127.0.0.1:2379";

/// Writes an object without validation. The API server serves it all the same.
pub fn put(namespace: &Namespace, key: &str, object: &Value) {
    call(namespace, "/v3/kv/put", &entry(key, object));
}

/// Writes objects as [`put`] does, many in each transaction.
pub fn put_all(namespace: &Namespace, objects: impl Iterator<Item = (String, Value)>) {
    /// With fifty endpoints in each slice, less than half of what a request may have.
    const AT_ONCE: usize = 50;
    let mut objects = objects.peekable();
    while objects.peek().is_some() {
        let puts: Vec<_> = objects
            .by_ref()
            .take(AT_ONCE)
            .map(|(key, object)| json!({"requestPut": entry(&key, &object)}))
            .collect();
        call(namespace, "/v3/kv/txn", &json!({"success": puts}));
    }
}

fn entry(key: &str, object: &Value) -> Value {
    json!({"key": base64(key), "value": base64(&object.to_string())})
}

pub fn delete(namespace: &Namespace, key: &str) {
    call(namespace, "/v3/kv/deleterange", &json!({"key": base64(key)}));
}

/// Compacts the history up to the current revision, and returns that.
pub fn compact(namespace: &Namespace) -> u64 {
    let response = call(namespace, "/v3/kv/range", &json!({"key": base64("/")}));
    let revision: u64 = response["header"]["revision"].as_str().unwrap().parse().unwrap();
    call(namespace, "/v3/kv/compaction", &json!({"revision": revision.to_string(), "physical": true}));
    revision
}

pub fn is_ready(namespace: &Namespace) -> io::Result<bool> {
    Ok(http::get(namespace, address(), "/health")?.code == 200)
}

fn call(namespace: &Namespace, path: &str, body: &Value) -> Value {
    let response = http::post(namespace, address(), path, &body.to_string()).unwrap();
    assert_eq!(response.code, 200, "{path}: {}", response.body);
    serde_json::from_str(&response.body).unwrap()
}

fn address() -> SocketAddr {
    CLIENT_ADDRESS.parse().unwrap()
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |chunk: &[u8]| {
        let bits =
            chunk.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - chunk.len()));
        let digit = |number: usize| char::from(DIGITS[bits >> (18 - 6 * number) & 63]);
        let used = chunk.len() + 1;
        (0..4).map(|number| if number < used { digit(number) } else { '=' }).collect::<String>()
    };
    text.as_bytes().chunks(3).map(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_matches_the_test_vectors() {
        // RFC 4648, section 10.
        for (text, want) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("fooba", "Zm9vYmE=")]
        {
            assert_eq!(base64(text), want);
        }
    }
}
