//! Runs the pod of a DaemonSet on the test cluster's node, as kubelet and its container runtime do.
//!
//! ```text
//!   image         a folder that is the root of the container, read-only if the pod says so
//!   volumes       ConfigMaps, the token, host paths: mounted as the pod says, in a mount namespace of its own
//!   capabilities  those that the pod asks for and no others; /proc/sys and /sys are writable only if privileged
//! ```
//!
//! Host paths are below a folder of the test, which must not change the machine's own.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cluster::http;
use crate::cluster::proxy::Proxy;
use crate::cluster::test_cluster::TestCluster;
use testkit::wait::eventually;

/// All capabilities, in the order of their numbers in linux/capability.h.
const CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// A pod whose volumes exist as long as the cluster.
#[derive(Debug)]
pub struct DaemonSetPod<'a> {
    cluster: &'a TestCluster,
    namespace: String,
    spec: Value,
    image: PathBuf,
    folder: PathBuf,
}

impl<'a> DaemonSetPod<'a> {
    /// `daemon_set` is the object as the API server returns it, `image` the root folder of all containers.
    pub fn new(cluster: &'a TestCluster, daemon_set: &Value, image: &Path) -> Self {
        let folder = cluster.folder().join("pod");
        fs::create_dir_all(&folder).unwrap();
        let namespace = text(&daemon_set["metadata"]["namespace"]);
        let spec = daemon_set["spec"]["template"]["spec"].clone();
        assert_eq!(spec["hostNetwork"], true, "only pods on the host network are supported");
        Self { cluster, namespace, spec, image: image.into(), folder }
    }

    /// Runs the init containers, each of which must succeed.
    pub fn run_init_containers(&self) {
        for container in list(&self.spec["initContainers"]) {
            let mut running = self.start(container);
            let status = running.wait();
            assert!(status.success(), "{} ended with {status}:\n{}", container["name"], running.log());
        }
    }

    /// Starts the container, and waits until all of its probes succeed.
    pub fn run(&self) -> Proxy {
        let [container] = list(&self.spec["containers"]) else {
            panic!("expected one container: {}", self.spec)
        };
        let proxy = self.start(container);
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let probe = &container[probe]["httpGet"];
            let port = u16::try_from(probe["port"].as_u64().unwrap()).unwrap();
            // kubelet probes the pod's address, which is the node's on the host network.
            let address = SocketAddr::new(self.cluster.lan_ip, port);
            let path = text(&probe["path"]);
            let probe = || http::get(&self.cluster.lab.network.node, address, &path);
            eventually(&format!("{path} at {address}"), || {
                probe().is_ok_and(|response| response.code == 200)
            });
        }
        proxy
    }

    /// The capabilities that the container asks for, as a bit mask.
    pub fn capabilities(&self) -> u64 {
        let added = added_capabilities(&self.spec["containers"][0]["securityContext"]);
        let bit = |name| CAPABILITIES.iter().position(|known| *known == name).unwrap();
        added.iter().fold(0, |sum, name| sum | 1 << bit(name.as_str()))
    }

    fn start(&self, container: &Value) -> Proxy {
        let script = self.script(container);
        let arguments = ["--mount", "--propagation", "private", "sh", "-ec", &script].map(String::from);
        Proxy::start(Path::new("unshare"), &self.cluster.lab.network.node, &arguments, &self.cluster.log())
    }

    /// The runtime's part: a shell script that prepares the root and executes the container's command.
    fn script(&self, container: &Value) -> String {
        let security = &container["securityContext"];
        let privileged = security["privileged"] == true;
        let root = self.image.display();
        let mut script =
            format!("root={root}\nmount --bind $root $root\nmkdir -p $root/proc $root/sys $root/dev\n");
        script += "mount -t proc proc $root/proc\nmount -t sysfs sysfs $root/sys\n\
             mount -t tmpfs tmpfs $root/dev\nmknod -m 666 $root/dev/null c 1 3\n";
        for (from, to, read_only) in self.mounts(container) {
            let (make, from) = (if from.is_dir() { "mkdir -p" } else { "touch" }, from.display());
            writeln!(script, "mkdir -p $root$(dirname {to}) && {make} $root{to}").unwrap();
            writeln!(script, "mount --bind {from} $root{to}").unwrap();
            if read_only {
                writeln!(script, "mount -o remount,bind,ro $root{to}").unwrap();
            }
        }
        if !privileged {
            script += "mount --bind $root/proc/sys $root/proc/sys\nmount -o remount,bind,ro $root/proc/sys\n";
            script += "mount -o remount,bind,ro $root/sys\n";
        }
        if security["readOnlyRootFilesystem"] == true {
            script += "mount -o remount,bind,ro $root\n";
        }
        let mut capsh = String::from("--chroot=$root");
        if !privileged {
            let added = added_capabilities(security);
            let known = || CAPABILITIES.iter().map(|name| format!("cap_{}", name.to_lowercase()));
            let added: Vec<String> =
                added.iter().map(|name| format!("cap_{}", name.to_lowercase())).collect();
            let dropped: Vec<String> = known().filter(|name| !added.contains(name)).collect();
            write!(capsh, " --noamb --inh= --drop={}", dropped.join(",")).unwrap();
        }
        if security["allowPrivilegeEscalation"] == false {
            capsh += " --no-new-privs";
        }
        let command: Vec<String> =
            list(&container["command"]).iter().map(|word| self.expanded(&text(word))).collect();
        let (program, arguments) = command.split_first().unwrap();
        let arguments = arguments.iter().map(|argument| format!(" '{argument}'")).collect::<String>();
        let path = "/run/iptables-variant:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let environment = format!("PATH={path} NODE_NAME={}", self.cluster.node);
        writeln!(
            script,
            "exec env -i {environment} $(command -v capsh) {capsh} --shell={program} --{arguments}"
        )
        .unwrap();
        script
    }

    /// Source, target and whether the mount is read-only.
    fn mounts(&self, container: &Value) -> Vec<(PathBuf, String, bool)> {
        let mut mounts: Vec<_> = list(&container["volumeMounts"])
            .iter()
            .map(|mount| (self.volume(&mount["name"]), text(&mount["mountPath"]), mount["readOnly"] == true))
            .collect();
        mounts.push((self.token(), "/var/run/secrets/kubernetes.io/serviceaccount".into(), true));
        mounts
    }

    fn volume(&self, name: &Value) -> PathBuf {
        let volume = list(&self.spec["volumes"]).iter().find(|volume| volume["name"] == *name);
        let volume = volume.unwrap_or_else(|| panic!("no volume {name} in {}", self.spec));
        let folder = self.folder.join(text(name));
        if let Some(name) = volume["configMap"]["name"].as_str() {
            let path = format!("/api/v1/namespaces/{}/configmaps/{name}", self.namespace);
            let data = self.cluster.api().get(&path)["data"].clone();
            write_volume(&folder, data.as_object().unwrap().iter().map(|(name, value)| (name, text(value))));
        } else if let Some(path) = volume["hostPath"]["path"].as_str() {
            let path = self.folder.join("host").join(path.trim_start_matches('/'));
            if volume["hostPath"]["type"] == "FileOrCreate" {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::File::options().create(true).append(true).open(&path).unwrap();
            } else {
                fs::create_dir_all(&path).unwrap();
            }
            return path;
        } else {
            assert!(volume["emptyDir"].is_object(), "unsupported volume {volume}");
            fs::create_dir_all(&folder).unwrap();
        }
        folder
    }

    /// The service account volume that every pod gets: its token and the CA.
    fn token(&self) -> PathBuf {
        let account = text(&self.spec["serviceAccountName"]);
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", self.namespace);
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let token = text(&self.cluster.api().create(&path, &request)["status"]["token"]);
        let authority = fs::read_to_string(self.cluster.control_plane().folder.join("ca.crt")).unwrap();
        let folder = self.folder.join("token");
        write_volume(&folder, [(&"token".into(), token), (&"ca.crt".into(), authority)].into_iter());
        folder
    }

    /// Expands `$(NODE_NAME)`, the only variable in use.
    fn expanded(&self, word: &str) -> String {
        let word = word.replace("$(NODE_NAME)", &self.cluster.node);
        assert!(!word.contains("$("), "unknown variable in {word}");
        word
    }
}

/// Writes files behind the `..data` link that lets kubelet switch all of them to a new version at once.
fn write_volume<'n>(folder: &Path, files: impl Iterator<Item = (&'n String, String)>) {
    if folder.exists() {
        return;
    }
    fs::create_dir_all(folder.join("..1")).unwrap();
    symlink("..1", folder.join("..data")).unwrap();
    for (name, content) in files {
        fs::write(folder.join("..1").join(name), content).unwrap();
        symlink(format!("..data/{name}"), folder.join(name)).unwrap();
    }
}

/// The capabilities that remain: the pod must drop all and add the ones it needs.
fn added_capabilities(security: &Value) -> Vec<String> {
    let capabilities = &security["capabilities"];
    assert_eq!(capabilities["drop"], json!(["ALL"]), "the runtime's defaults are not modelled");
    list(&capabilities["add"]).iter().map(text).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}")).to_owned()
}
