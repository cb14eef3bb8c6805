//! The processes, and what they are told.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use testkit::namespace::Namespace;
use testkit::process::Process;
use tests::cluster::api::Api;
use tests::cluster::control_plane::{ADDRESS, API_PORT};
use tests::cluster::{etcd, kubeconfig};
use tests::matrix::within;

use crate::pki::Pki;

/// Everything from first start to last end. Ends with it, in the order of the fields.
#[derive(Debug)]
pub struct Components {
    _controller_manager: Process,
    api_server: Option<Process>,
    /// Nothing only while it is started again.
    etcd: Option<Process>,
    api: Api,
    place: Place,
}

/// Where programs are and files go.
#[derive(Debug)]
struct Place {
    namespace: Namespace,
    binaries: PathBuf,
    folder: PathBuf,
}

const PATIENCE: Duration = Duration::from_secs(60);

impl Components {
    /// In the namespace that we are in. Returns when all are ready.
    pub fn start(binaries: &Path, folder: &Path) -> Self {
        let place = Place { namespace: Namespace::here(), binaries: binaries.into(), folder: folder.into() };
        place.prepare();
        let etcd = place.start_etcd();
        let api = Api::open(&place.namespace, &place.file("admin.kubeconfig"));
        let api_server = place.start_api_server(&api);
        let controller_manager = place.start_controller_manager();
        Self {
            _controller_manager: controller_manager,
            api_server: Some(api_server),
            etcd: Some(etcd),
            api,
            place,
        }
    }

    pub fn stop_api_server(&mut self) {
        drop(self.api_server.take());
    }

    /// If it does not run already.
    pub fn start_api_server(&mut self) {
        if self.api_server.is_none() {
            self.api_server = Some(self.place.start_api_server(&self.api));
        }
    }

    pub fn restart_etcd(&mut self) {
        drop(self.etcd.take());
        self.etcd = Some(self.place.start_etcd());
    }
}

impl Place {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn prepare(&self) {
        let pki = Pki::new(&self.folder);
        pki.server("api-server", &["127.0.0.1", ADDRESS]);
        pki.user("admin", "e2e-admin", Some("system:masters"));
        pki.user("kube-proxy", "system:kube-proxy", None);
        // Its controllers would have users of their own; here it may do what any of them may.
        pki.user("controller-manager", "system:kube-controller-manager", Some("system:masters"));
        pki.signer("service-account");
        for name in ["admin", "controller-manager"] {
            let path = self.file(&format!("{name}.kubeconfig"));
            let user = kubeconfig::certified(&self.folder, name);
            kubeconfig::write(&path, &format!("{ADDRESS}:{API_PORT}"), &self.folder, &user);
        }
        let everything = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata"}],
        });
        std::fs::write(self.file("audit-policy.yaml"), everything.to_string()).unwrap();
        // Tests that need a token put one here, and start the API server again.
        std::fs::write(self.file("tokens.csv"), "unused,nobody,nobody\n").unwrap();
    }

    fn start_etcd(&self) -> Process {
        let clients = format!("http://{}", etcd::CLIENTS);
        let peers = "http://127.0.0.1:2380";
        let mut process = self.run(
            "etcd",
            &[
                format!("--data-dir={}", self.file("etcd").display()),
                // What is lost with the machine's power is not worth anything.
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

    fn start_api_server(&self, api: &Api) -> Process {
        let file = |flag, name| format!("--{flag}={}", self.file(name).display());
        let mut process = self.run(
            "kube-apiserver",
            &[
                format!("--etcd-servers=http://{}", etcd::CLIENTS),
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
                // No kubelet, no tokens in pods.
                "--disable-admission-plugins=ServiceAccount".into(),
                // As in every cluster: kube-proxies ask for it.
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
    within(PATIENCE, what, || {
        assert!(process.ended().is_none(), "{what} ended:\n{}", process.last_words());
        is_ready()
    });
}
