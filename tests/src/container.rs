//! A container of one of our images, run by runc, the runtime below Docker and containerd, so that the kernel enforces
//! capabilities, limits and the seccomp profile as it does on a node.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use testkit::namespace::Namespace;

const CGROUPS: &str = "/sys/fs/cgroup";
/// The uid and gid of the user `nobody`.
const UNPRIVILEGED_ID: u32 = 65_534;

/// The privileges and limits of a container.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// Both uid and gid.
    pub user: u32,
    pub capabilities: Vec<&'static str>,
    /// A file of `packaging/seccomp`; `None` runs without a profile.
    pub seccomp: Option<&'static str>,
    pub descriptors: u32,
    /// The limit of the memory cgroup, in bytes.
    pub memory: u64,
}

impl Confinement {
    /// User `nobody` with `CAP_NET_ADMIN`, 64 descriptors and 64 MiB.
    pub fn with_seccomp(profile: &'static str) -> Self {
        let capabilities = vec!["CAP_NET_ADMIN"];
        Self {
            user: UNPRIVILEGED_ID,
            capabilities,
            seccomp: Some(profile),
            descriptors: 64,
            memory: 64 << 20,
        }
    }
}

/// An image as an OCI bundle: its root folder and its mounts.
#[derive(Debug)]
pub struct Image {
    folder: TempDir,
    mounts: Vec<Value>,
}

impl Image {
    /// `kind` is nftables or iptables.
    pub fn assemble(kind: &str, kube_proxy: &Path) -> Self {
        let mut assemble = Command::new(packaging().join("image/assemble-root"));
        Self::with_root(kind, |root| assemble.arg(kind).arg(root).arg(kube_proxy))
    }

    /// Unpacks the layer of an image, as a runtime does.
    pub fn unpack(kind: &str, layer: &Path) -> Self {
        let mut tar = Command::new("tar");
        Self::with_root(kind, |root| {
            fs::create_dir(root).unwrap();
            tar.arg("--extract").arg("--gzip").arg("--file").arg(layer).arg("--directory").arg(root)
        })
    }

    /// Runs a command that fills the root folder.
    fn with_root<'a>(kind: &str, fill: impl FnOnce(&Path) -> &'a mut Command) -> Self {
        let folder = TempDir::new().unwrap();
        let filled = fill(&folder.path().join("rootfs")).status().unwrap();
        assert!(filled.success());
        let mut image = Self { folder, mounts: Vec::new() };
        image.mounts.push(json!({"destination": "/proc", "type": "proc", "source": "proc"}));
        image
            .mounts
            .push(json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]}));
        image.mounts.push(json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}));
        if kind == "iptables" {
            // The manifests mount these two, too: the lock, and the links to the chosen variant.
            let lock = image.folder.path().join("xtables.lock");
            File::create(&lock).unwrap();
            image.mount(&lock, "/run/xtables.lock", &["bind", "rw"]);
            let options = ["mode=0777"];
            image.mounts.push(json!(
                {"destination": "/run/iptables-variant", "type": "tmpfs", "source": "tmpfs", "options": options}
            ));
        }
        image
    }

    /// Bind-mounts a file or folder of the machine into the container.
    pub fn mount(&mut self, from: &Path, to: &str, options: &[&str]) {
        self.mounts.push(json!({"destination": to, "type": "bind", "source": from, "options": options}));
    }

    /// The root of the container, as a path of the machine.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("rootfs")
    }
}

/// A running container, killed and removed when dropped.
#[derive(Debug)]
pub struct Container<'a> {
    image: &'a Image,
    name: String,
    process: Value,
    runtime: Child,
}

impl<'a> Container<'a> {
    /// Runs a command with a read-only root in the node's network namespace.
    pub fn run(image: &'a Image, node: &Namespace, confinement: &Confinement, command: &[&str]) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluice-test-{}-{number}", std::process::id());
        let capabilities = &confinement.capabilities;
        let process = json!({
            "args": command,
            "cwd": "/",
            "env": ["PATH=/run/iptables-variant:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "user": {"uid": confinement.user, "gid": confinement.user},
            "capabilities": {
                "bounding": capabilities,
                "permitted": capabilities,
                "effective": capabilities,
                "inheritable": capabilities,
                "ambient": capabilities,
            },
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": confinement.descriptors, "soft": confinement.descriptors}],
            "noNewPrivileges": true,
        });
        let mut linux = json!({
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "network", "path": node.path()}],
            "readonlyPaths": ["/proc/sys"],
            "cgroupsPath": format!("/{name}"),
        });
        if can_limit_memory() {
            linux["resources"] = json!({"memory": {"limit": confinement.memory}});
        } else {
            println!("SKIPPED: this machine has no memory cgroup: memory is not limited");
        }
        if let Some(profile) = confinement.seccomp {
            let profile = fs::read_to_string(packaging().join("seccomp").join(profile)).unwrap();
            linux["seccomp"] = serde_json::from_str(&profile).unwrap();
        }
        let config = json!({
            "ociVersion": "1.0.2",
            "process": process,
            "root": {"path": "rootfs", "readonly": true},
            "mounts": image.mounts,
            "linux": linux,
        });
        fs::write(image.folder.path().join("config.json"), config.to_string()).unwrap();
        let log = File::options().create(true).append(true).open(log(image)).unwrap();
        let mut run = runc(image);
        run.arg("run").arg("--bundle").arg(image.folder.path()).arg(&name);
        run.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let runtime = run.spawn().unwrap_or_else(|error| panic!("runc: {error}"));
        Self { image, name, process, runtime }
    }

    /// Runs a second command in the container, under the same limits.
    pub fn exec(&self, command: &[&str]) -> Output {
        let mut process = self.process.clone();
        process["args"] = json!(command);
        let path = self.image.folder.path().join("exec.json");
        fs::write(&path, process.to_string()).unwrap();
        runc(self.image).arg("exec").arg("--process").arg(path).arg(&self.name).output().unwrap()
    }

    /// The pid, on the machine, of the container's first process.
    pub fn pid(&self) -> u64 {
        let state = runc(self.image).arg("state").arg(&self.name).output().unwrap();
        let state: Value =
            serde_json::from_slice(&state.stdout).unwrap_or_else(|_| panic!("{state:?}\n{}", self.log()));
        state["pid"].as_u64().unwrap()
    }

    /// The peak usage of the memory cgroup in bytes, kernel memory included.
    pub fn peak_memory(&self) -> Option<u64> {
        let files =
            [format!("memory/{}/memory.max_usage_in_bytes", self.name), format!("{}/memory.peak", self.name)];
        let found = files.iter().find_map(|file| fs::read_to_string(Path::new(CGROUPS).join(file)).ok());
        found.and_then(|peak| peak.trim().parse().ok())
    }

    pub fn terminate(&self) {
        let status = runc(self.image).args(["kill", &self.name, "TERM"]).status().unwrap();
        assert!(status.success());
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.runtime.wait().unwrap()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(log(self.image)).unwrap()
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of {}:\n{}", self.name, self.log());
        }
        // Fails if the container has ended already.
        let _ = runc(self.image).args(["delete", "--force", &self.name]).output();
        let _ = self.runtime.wait();
    }
}

/// Looks for the memory controller of cgroups v1 and v2.
fn can_limit_memory() -> bool {
    let root = Path::new(CGROUPS);
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    root.join("memory/memory.limit_in_bytes").exists()
        || controllers.split_whitespace().any(|name| name == "memory")
}

fn runc(image: &Image) -> Command {
    let mut runc = Command::new("runc");
    runc.arg("--root").arg(image.folder.path().join("state"));
    runc
}

fn log(image: &Image) -> PathBuf {
    image.folder.path().join("log")
}

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("packaging")
}
