//! The images of `make image`: the same binary gives the same bytes, and a container runtime runs what they contain.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::namespace::Namespace;
use tests::container::{Confinement, Container, Image};

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Writes both images of a binary to a folder, as a user with this umask.
fn write_images(kube_proxy: &Path, umask: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/image");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]);
    assert!(shell.arg(program).arg(kube_proxy).arg(folder.path()).status().unwrap().success());
    folder
}

/// The only file with this part in its name.
fn archive(folder: &TempDir, part: &str) -> PathBuf {
    let paths = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths = paths.filter(|path| path.to_string_lossy().contains(part));
    let path = paths.next().unwrap();
    assert_eq!(paths.next(), None);
    path
}

/// Unpacks an OCI archive, and returns the tag, the configuration and the layer of its image.
fn unpack(archive: &Path, layout: &Path) -> (Value, Value, PathBuf) {
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(layout);
    assert!(tar.status().unwrap().success());
    let read = |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let blob = |descriptor: &Value| {
        let path = layout.join("blobs").join(descriptor["digest"].as_str().unwrap().replace(':', "/"));
        assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
        path
    };
    let index = &read(&layout.join("index.json"))["manifests"][0];
    let manifest = read(&blob(index));
    let tag = index["annotations"]["org.opencontainers.image.ref.name"].clone();
    (tag, read(&blob(&manifest["config"]))["config"].clone(), blob(&manifest["layers"][0]))
}

#[test]
fn images_are_reproducible_and_run() {
    // Without debugging information, which takes long to compress.
    let binary = TempDir::new().unwrap();
    let kube_proxy = binary.path().join("kube-proxy");
    assert!(Command::new("strip").arg("-o").arg(&kube_proxy).arg(KUBE_PROXY).status().unwrap().success());

    let folders = ["022", "077"].map(|umask| write_images(&kube_proxy, umask));
    for (kind, tag) in [("nftables", VERSION.to_owned()), ("iptables", format!("{VERSION}-iptables"))] {
        let [first, second] = folders.each_ref().map(|folder| archive(folder, &format!("-{kind}-")));
        assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap(), "two images {kind} differ");
        let layout = TempDir::new().unwrap();
        let (found, config, layer) = unpack(&first, layout.path());
        assert_eq!(found, json!(tag));
        assert_eq!(config["Entrypoint"], json!(["/usr/local/bin/kube-proxy"]));
        assert_eq!(config["Labels"]["org.opencontainers.image.version"], VERSION);

        let image = Image::unpack(kind, &layer);
        assert!(run(&image, kind, &["/usr/local/bin/kube-proxy", "--version"]).starts_with("Kubernetes v1."));
        if kind == "iptables" {
            assert!(run(&image, kind, &["/usr/sbin/iptables-variant"]).ends_with("nft\n"));
        }
    }
}

/// Runs a command in a container, and returns what the containers of this image have printed so far.
fn run(image: &Image, kind: &str, command: &[&str]) -> String {
    let profile = if kind == "iptables" { "iptables.json" } else { "nftables.json" };
    let confinement = Confinement::with_seccomp(profile);
    let node = Namespace::new();
    let mut container = Container::run(image, &node, &confinement, command);
    assert!(container.wait().success(), "{}", container.log());
    container.log()
}
