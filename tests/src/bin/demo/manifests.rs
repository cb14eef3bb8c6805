//! A copy of `examples/demo`, so that the demo does not edit the checkout.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cluster::DemoPod;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo");

/// The file with the endpoints of `web`.
const ENDPOINTS: &str = "web-endpoints.yaml";

#[derive(Debug)]
pub struct DemoManifests {
    folder: PathBuf,
}

impl DemoManifests {
    pub fn copy_to(folder: PathBuf) -> Self {
        fs::create_dir(&folder).expect("a folder can be made");
        for file in fs::read_dir(EXAMPLES).unwrap_or_else(|error| panic!("{EXAMPLES}: {error}")) {
            let file = file.expect("the examples can be listed");
            fs::copy(file.path(), folder.join(file.file_name())).expect("a manifest can be copied");
        }
        Self { folder }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sets the endpoints of `web`. Returns the time of the edit.
    pub fn scale_web(&self, pods: &[DemoPod]) -> Instant {
        let text = self.endpoints();
        let (head, _) = text.split_once("\nendpoints:\n").expect("the example lists endpoints last");
        let list: String = pods
            .iter()
            .map(|pod| format!("  - addresses: [{}] # {}\n    nodeName: demo-node\n", pod.ip(), pod.name()))
            .collect();
        self.replace(&format!("{head}\nendpoints:\n{list}"))
    }

    /// Makes the file invalid YAML, and returns its previous content.
    pub fn break_web(&self) -> String {
        let text = self.endpoints();
        self.replace(&text.replacen(']', "", 1));
        text
    }

    /// Replaces the file atomically, as editors do. kube-proxy ignores files whose name begins with a dot.
    pub fn replace(&self, text: &str) -> Instant {
        let draft = self.folder.join(format!(".{ENDPOINTS}.new"));
        fs::write(&draft, text).expect("a manifest can be written");
        let now = Instant::now();
        fs::rename(draft, self.folder.join(ENDPOINTS)).expect("a manifest can be replaced");
        now
    }

    fn endpoints(&self) -> String {
        fs::read_to_string(self.folder.join(ENDPOINTS)).expect("the example has this file")
    }
}
