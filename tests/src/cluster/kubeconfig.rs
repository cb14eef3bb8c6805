//! Kubeconfig files.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Writes a kubeconfig file and returns its path. `folder` holds the certificates of the control plane.
pub fn write(to: &Path, server: &str, folder: &Path, user: &Value) -> PathBuf {
    let cluster =
        json!({"server": format!("https://{server}"), "certificate-authority": folder.join("ca.crt")});
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "e2e", "user": user}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "current-context": "e2e",
    });
    std::fs::write(to, config.to_string()).unwrap();
    to.into()
}

/// The user of the client certificate `name` in `folder`.
pub fn certificate_user(folder: &Path, name: &str) -> Value {
    let file = |ending| folder.join(format!("{name}.{ending}"));
    json!({"client-certificate": file("crt"), "client-key": file("key")})
}
