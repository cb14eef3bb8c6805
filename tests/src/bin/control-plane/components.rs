//! The processes of the control plane and their flags.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use testkit::namespace::Namespace;
use testkit::process::Process;
use testkit::wait::within;
use tests::cluster::api::ApiClient;
use tests::cluster::control_plane::{ADDRESS, API_PORT};
use tests::cluster::{etcd, kubeconfig};

use crate::pki::Pki;

/// The running components. Dropping ends them in the order of the fields.
#[derive(Debug)]
pub struct Components {
    _controller_manager: Process,
    api_server: Option<Process>,
    /// `None` only during a restart.
    etcd: Option<Process>,
    api: ApiClient,
    installation: Installation,
}

/// Where binaries are and files go.
#[derive(Debug)]
struct Installation {
    namespace: Namespace,
    binaries: PathBuf,
    folder: PathBuf,
}

/// An emulated machine is slow.
const START_TIMEOUT: Duration = Duration::from_secs(600);

impl Components {
    /// Starts all components in the current namespace, and returns when they are ready.
    pub fn start(binaries: &Path, folder: &Path) -> Self {
        let installation = Installation {
            namespace: Namespace::current(),
            binaries: binaries.into(),
            folder: folder.into(),
        };
        installation.prepare();
        let etcd = installation.start_etcd();
        let api = ApiClient::open(&installation.namespace, &installation.file("admin.kubeconfig"));
        let api_server = installation.start_api_server(&api);
        let controller_manager = installation.start_controller_manager();
        Self {
            _controller_manager: controller_manager,
            api_server: Some(api_server),
            etcd: Some(etcd),
            api,
            installation,
        }
    }

    pub fn stop_api_server(&mut self) {
        drop(self.api_server.take());
    }

    /// Starts the API server if it does not run.
    pub fn start_api_server(&mut self) {
        if self.api_server.is_none() {
            self.api_server = Some(self.installation.start_api_server(&self.api));
        }
    }

    pub fn restart_etcd(&mut self) {
        drop(self.etcd.take());
        self.etcd = Some(self.installation.start_etcd());
    }
}

impl Installation {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn prepare(&self) {
        let pki = Pki::new(&self.folder);
        pki.server("api-server", &["127.0.0.1", ADDRESS]);
        pki.user("admin", "e2e-admin", Some("system:masters"));
        pki.user("kube-proxy", "system:kube-proxy", None);
        // Without a service account per controller, this user needs all of their permissions.
        pki.user("controller-manager", "system:kube-controller-manager", Some("system:masters"));
        pki.signer("service-account");
        for name in ["admin", "controller-manager"] {
            let path = self.file(&format!("{name}.kubeconfig"));
            let user = kubeconfig::certificate_user(&self.folder, name);
            kubeconfig::write(&path, &format!("{ADDRESS}:{API_PORT}"), &self.folder, &user);
        }
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata"}],
        });
        std::fs::write(self.file("audit-policy.yaml"), policy.to_string()).unwrap();
        // A test that needs a token writes one here and restarts the API server.
        std::fs::write(self.file("tokens.csv"), "unused,none,none\n").unwrap();
    }

    fn start_etcd(&self) -> Process {
        let clients = format!("http://{}", etcd::CLIENT_ADDRESS);
        let peers = "http://127.0.0.1:2380";
        let mut process = self.run(
            "etcd",
            &[
                format!("--data-dir={}", self.file("etcd").display()),
                // The data need not survive the machine.
                "--unsafe-no-fsync".into(),
                "--log-level=warn".into(),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=default={peers}"),
            ],
        );
        wait_for(&mut process, "etcd", || etcd::is_ready(&self.namespace).unwrap_or(false));
        process
    }

    fn start_api_server(&self, api: &ApiClient) -> Process {
        let file = |flag, name| format!("--{flag}={}", self.file(name).display());
        let mut process = self.run(
            "kube-apiserver",
            &[
                format!("--etcd-servers=http://{}", etcd::CLIENT_ADDRESS),
                format!("--advertise-address={ADDRESS}"),
                format!("--secure-port={API_PORT}"),
                file("tls-cert-file", "api-server.crt"),
                file("tls-private-key-file", "api-server.key"),
                file("client-ca-file", "ca.crt"),
                file("token-auth-file", "tokens.csv"),
                "--authorization-mode=Node,RBAC".into(),
                format!("--service-account-issuer=https://{ADDRESS}:{API_PORT}"),
                file("service-account-key-file", "service-account.pub"),
                file("service-account-signing-key-file", "service-account.key"),
                "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112".into(),
                // There is no kubelet that could mount tokens into pods.
                "--disable-admission-plugins=ServiceAccount".into(),
                // The DaemonSets of kube-proxy need it.
                "--allow-privileged=true".into(),
                file("audit-policy-file", "audit-policy.yaml"),
                file("audit-log-path", "audit.log"),
            ],
        );
        wait_for(&mut process, "the API server", || api.is_ready());
        process
    }

    fn start_controller_manager(&self) -> Process {
        let config = self.file("controller-manager.kubeconfig");
        self.run(
            "kube-controller-manager",
            &[
                format!("--kubeconfig={}", config.display()),
                "--controllers=endpointslice-controller,namespace-controller".into(),
                "--leader-elect=false".into(),
                "--bind-address=127.0.0.1".into(),
                "--kube-api-qps=500".into(),
                "--kube-api-burst=1000".into(),
            ],
        )
    }

    fn run(&self, program: &str, arguments: &[String]) -> Process {
        let log = self.file(&format!("{program}.log"));
        Process::start(&self.namespace, &self.binaries.join(program), arguments, &log)
    }
}

fn wait_for(process: &mut Process, what: &str, mut is_ready: impl FnMut() -> bool) {
    within(START_TIMEOUT, what, || {
        assert!(process.try_wait().is_none(), "{what} ended:\n{}", process.log_tail());
        is_ready()
    });
}
