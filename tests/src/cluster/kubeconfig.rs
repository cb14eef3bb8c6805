//! Who talks to the API server, and as whom.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Writes a kubeconfig file and returns its path. `folder` is the control plane's.
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

/// Who has this certificate.
pub fn certified(folder: &Path, name: &str) -> Value {
    let file = |ending| folder.join(format!("{name}.{ending}"));
    json!({"client-certificate": file("crt"), "client-key": file("key")})
}
