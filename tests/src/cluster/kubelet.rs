//! A pod of a DaemonSet on the stage's node, as a kubelet and its runtime would run it.
//!
//! ```text
//!   image     a folder that is the root of the container, read-only if the pod says so
//!   volumes   ConfigMaps, the token, folders of the host: mounted where the pod says, in a mount namespace of its own
//!   rights    the capabilities that the pod asks for and no others; /proc/sys and /sys writable only for the privileged
//! ```
//!
//! Only what a host would give of its own is another's: paths of the host are below a folder of the stage, since the
//! machine's are not a test's to change.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cluster::http;
use crate::cluster::proxy::Proxy;
use crate::cluster::stage::Stage;
use crate::matrix::eventually;

/// What this kernel may know of, in the order of its numbers. See linux/capability.h.
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

/// Its volumes live as long as the stage.
#[derive(Debug)]
pub struct Pod<'a> {
    stage: &'a Stage,
    namespace: String,
    spec: Value,
    image: PathBuf,
    folder: PathBuf,
}

impl<'a> Pod<'a> {
    /// The pod of a DaemonSet as the API server has it. `image` is the root of all of its containers.
    pub fn new(stage: &'a Stage, daemon_set: &Value, image: &Path) -> Self {
        let folder = stage.folder().join("pod");
        fs::create_dir_all(&folder).unwrap();
        let namespace = text(&daemon_set["metadata"]["namespace"]);
        let spec = daemon_set["spec"]["template"]["spec"].clone();
        assert_eq!(spec["hostNetwork"], true, "only such pods are run here");
        Self { stage, namespace, spec, image: image.into(), folder }
    }

    /// Runs the containers that have to end well before the others start.
    pub fn initialize(&self) {
        for container in list(&self.spec["initContainers"]) {
            let mut running = self.start(container);
            let status = running.wait();
            assert!(status.success(), "{} ended with {status}:\n{}", container["name"], running.log());
        }
    }

    /// Starts the one container that stays, and waits until all of its probes succeed.
    pub fn run(&self) -> Proxy {
        let [container] = list(&self.spec["containers"]) else { panic!("not one container: {}", self.spec) };
        let proxy = self.start(container);
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let probe = &container[probe]["httpGet"];
            let port = u16::try_from(probe["port"].as_u64().unwrap()).unwrap();
            // A kubelet asks at the address of the pod, which is the node's.
            let address = SocketAddr::new(self.stage.lan_ip, port);
            let path = text(&probe["path"]);
            let ask = || http::get(&self.stage.lab.network.node, address, &path);
            eventually(&format!("{path} at {address}"), || ask().is_ok_and(|answer| answer.code == 200));
        }
        proxy
    }

    /// The capabilities that the container that stays asks for, as `/proc` shows them.
    pub fn capabilities(&self) -> u64 {
        let kept = kept(&self.spec["containers"][0]["securityContext"]);
        let bit = |name| CAPABILITIES.iter().position(|known| *known == name).unwrap();
        kept.iter().fold(0, |sum, name| sum | 1 << bit(name.as_str()))
    }

    fn start(&self, container: &Value) -> Proxy {
        let script = self.script(container);
        let arguments = ["--mount", "--propagation", "private", "sh", "-ec", &script].map(String::from);
        Proxy::start(Path::new("unshare"), &self.stage.lab.network.node, &arguments, &self.stage.log())
    }

    /// What the runtime does until the container's program runs in its place.
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
            let kept = kept(security);
            let known = || CAPABILITIES.iter().map(|name| format!("cap_{}", name.to_lowercase()));
            let kept: Vec<String> = kept.iter().map(|name| format!("cap_{}", name.to_lowercase())).collect();
            let dropped: Vec<String> = known().filter(|name| !kept.contains(name)).collect();
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
        let environment = format!("PATH={path} NODE_NAME={}", self.stage.node);
        writeln!(
            script,
            "exec env -i {environment} $(command -v capsh) {capsh} --shell={program} --{arguments}"
        )
        .unwrap();
        script
    }

    /// From where, to where, and whether for reading only.
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
            let data = self.stage.api().get(&path)["data"].clone();
            write_as_a_kubelet_does(
                &folder,
                data.as_object().unwrap().iter().map(|(name, value)| (name, text(value))),
            );
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
            assert!(volume["emptyDir"].is_object(), "what is {volume}?");
            fs::create_dir_all(&folder).unwrap();
        }
        folder
    }

    /// What a pod gets unasked: who it is, and whom to trust.
    fn token(&self) -> PathBuf {
        let account = text(&self.spec["serviceAccountName"]);
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", self.namespace);
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let token = text(&self.stage.api().create(&path, &request)["status"]["token"]);
        let authority = fs::read_to_string(self.stage.plane().folder.join("ca.crt")).unwrap();
        let folder = self.folder.join("token");
        write_as_a_kubelet_does(
            &folder,
            [(&"token".into(), token), (&"ca.crt".into(), authority)].into_iter(),
        );
        folder
    }

    /// `$(NAME)` is what the variable says.
    fn expanded(&self, word: &str) -> String {
        let word = word.replace("$(NODE_NAME)", &self.stage.node);
        assert!(!word.contains("$("), "what is {word}?");
        word
    }
}

/// Through a link that changes over to the next version of all files at once.
fn write_as_a_kubelet_does<'n>(folder: &Path, files: impl Iterator<Item = (&'n String, String)>) {
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

/// What is left of all capabilities where none is by default.
fn kept(security: &Value) -> Vec<String> {
    let capabilities = &security["capabilities"];
    assert_eq!(capabilities["drop"], json!(["ALL"]), "what else is kept is a matter of the runtime");
    list(&capabilities["add"]).iter().map(text).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}
