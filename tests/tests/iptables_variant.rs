//! The script of the image that chooses between the legacy and the nft variant of iptables, run in that image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use testkit::namespace::Namespace;

const LINKS: &str = "run/iptables-variant";

/// The root of the image with the iptables programs. Its kube-proxy is a placeholder.
struct ImageRoot(TempDir);

impl ImageRoot {
    fn assemble() -> Self {
        let root = TempDir::new().unwrap();
        let assemble = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/image/assemble-root");
        let status =
            Command::new(assemble).arg("iptables").arg(root.path()).arg("/bin/true").status().unwrap();
        assert!(status.success());
        Self(root)
    }

    /// Runs a command as in a container of this image. `before` is a shell command that runs last before it.
    fn run(&self, node: &Namespace, before: &str, command: &str) -> Output {
        let script = format!(
            "root={}; mount --bind $root $root; mkdir -p $root/proc $root/dev; mount -t proc proc $root/proc
             mount --bind /dev $root/dev; {before}
             exec env -i PATH=/run/iptables-variant:/usr/sbin:/usr/bin $(command -v chroot) $root {command}",
            self.0.path().display()
        );
        let mut container = Command::new("unshare");
        container.args(["--mount", "--propagation", "private", "sh", "-ec", &script]);
        node.enter(|| container.output()).unwrap()
    }

    /// The variant that `iptables` runs.
    fn variant(&self, node: &Namespace) -> String {
        let output = self.run(node, "", "iptables --version");
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        match (text.contains("(nf_tables)"), text.contains("(legacy)")) {
            (true, false) => "nft".into(),
            (false, true) => "legacy".into(),
            _ => panic!("{text}"),
        }
    }

    fn links(&self) -> Vec<(String, PathBuf)> {
        let mut links: Vec<_> = fs::read_dir(self.0.path().join(LINKS))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_link(entry.path()).unwrap()))
            .collect();
        links.sort();
        links
    }

    fn remove_links(&self) {
        for (name, _) in self.links() {
            fs::remove_file(self.0.path().join(LINKS).join(name)).unwrap();
        }
    }
}

#[test]
fn the_script_chooses_the_variant_of_kubelet_or_else_the_one_with_more_rules() {
    let image = ImageRoot::assemble();
    for (commands, want) in [
        (&[][..], "nft"),
        (&["iptables-nft -t mangle -N KUBE-IPTABLES-HINT"], "nft"),
        (&["iptables-legacy -t mangle -N KUBE-IPTABLES-HINT"], "legacy"),
        (&["iptables-legacy -t mangle -N KUBE-KUBELET-CANARY"], "legacy"),
        (&["ip6tables-legacy -t mangle -N KUBE-IPTABLES-HINT"], "legacy"),
        (
            &[
                "ip6tables-nft -t mangle -N KUBE-KUBELET-CANARY",
                "iptables-legacy -t mangle -N KUBE-KUBELET-CANARY",
            ],
            "nft",
        ),
        // A hint takes precedence over rules.
        (&["iptables-nft -t mangle -N KUBE-IPTABLES-HINT", "iptables-legacy -A INPUT -j ACCEPT"], "nft"),
        (&["iptables-legacy -t mangle -N KUBE-IPTABLES-HINT", "iptables-nft -A INPUT -j ACCEPT"], "legacy"),
        // A chain with a similar name is no hint, nor is one in another table.
        (&["iptables-legacy -t mangle -N KUBE-IPTABLES-HINTS"], "nft"),
        (&["iptables-legacy -t nat -N KUBE-IPTABLES-HINT"], "nft"),
        (&["iptables-legacy -A INPUT -j ACCEPT"], "legacy"),
        (&["ip6tables-legacy -A INPUT -j ACCEPT"], "legacy"),
        (&["iptables-legacy -A INPUT -j ACCEPT", "ip6tables-nft -A INPUT -j ACCEPT"], "nft"),
    ] {
        let node = Namespace::new();
        for command in commands {
            node.run(command);
        }
        assert_eq!(image.variant(&node), want, "{commands:?}");
        let stdout = image.run(&node, "", "iptables-variant").stdout;
        assert_eq!(String::from_utf8_lossy(&stdout).trim(), want, "{commands:?}");
        image.remove_links();
    }
}

#[test]
fn the_choice_is_kept_for_all_programs() {
    let image = ImageRoot::assemble();
    let node = Namespace::new();
    node.run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
    assert_eq!(image.variant(&node), "legacy");
    let links = ["", "-restore", "-save"].map(|ending| {
        ["ip6tables", "iptables"].map(|name| {
            (format!("{name}{ending}"), PathBuf::from(format!("/usr/sbin/{name}-legacy{ending}")))
        })
    });
    let mut links = links.as_flattened().to_vec();
    links.sort();
    assert_eq!(image.links(), links);
    node.run("iptables-nft -t mangle -N KUBE-IPTABLES-HINT");
    assert_eq!(image.variant(&node), "legacy", "the choice is made once");
    for program in ["iptables-save", "ip6tables-save"] {
        let saved = image.run(&node, "", program);
        assert!(saved.status.success(), "{saved:?}");
    }
    let saved = image.run(&node, "", "iptables-save");
    assert!(String::from_utf8_lossy(&saved.stdout).contains(":KUBE-IPTABLES-HINT"), "{saved:?}");
}

#[test]
fn the_script_works_with_a_read_only_root() {
    let image = ImageRoot::assemble();
    let node = Namespace::new();
    node.run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
    for _ in 0..2 {
        let output = image.run(&node, "mount -o remount,bind,ro $root", "iptables-restore --version");
        assert!(String::from_utf8_lossy(&output.stdout).contains("(legacy)"), "{output:?}");
    }
    assert_eq!(image.links(), []);
}

/// Merely listing a legacy table creates it, and from then on every packet traverses it.
#[test]
fn the_script_creates_no_tables() {
    let image = ImageRoot::assemble();
    let node = Namespace::new();
    let tables = || {
        ["ip", "ip6"].map(|family| {
            node.enter(|| fs::read_to_string(format!("/proc/net/{family}_tables_names"))).unwrap_or_default()
        })
    };
    assert_eq!(tables(), ["", ""]);
    assert_eq!(image.variant(&node), "nft");
    assert_eq!(tables(), ["", ""]);
    assert_eq!(node.run("iptables-nft-save").trim(), "");
}
