//! One test's share of the cluster: a node with pods and clients, and an API namespace.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::api::ApiClient;
use crate::cluster::audit::{self, AuditEntry};
use crate::cluster::control_plane::ControlPlane;
use crate::cluster::kubeconfig;
use crate::cluster::objects;
use crate::cluster::proxy::{Mode, Proxy, binary, flags};
use testkit::lab::{ClientPlace, Lab, Place, TARGET};
use testkit::probe::{Answer, probe_here};
use testkit::wait::{USUAL_TIMEOUT, holds_within};

/// Generous: the machine runs a control plane, too.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Deletes its node, its namespace and the objects in it when dropped.
#[derive(Debug)]
pub struct TestCluster {
    control_plane: MutexGuard<'static, Option<ControlPlane>>,
    pub lab: Lab,
    pub node: String,
    /// The node's address on the network that connects it to the control plane.
    pub lan_ip: IpAddr,
    namespace: String,
    folder: TempDir,
    kube_proxy: PathBuf,
}

impl TestCluster {
    /// `supervisor` is this crate's `control-plane` binary; kube-proxy is expected beside it.
    pub fn new(supervisor: &Path) -> Self {
        let cluster = Self::without_node(supervisor);
        cluster.api().create("/api/v1/nodes", &objects::node(&cluster.node));
        cluster
    }

    /// A cluster whose Node object does not exist yet.
    pub fn without_node(supervisor: &Path) -> Self {
        let mut control_plane = ControlPlane::lock(supervisor);
        let lab = Lab::new();
        let running = control_plane.as_mut().unwrap();
        let lan_ip = running.join(&lab.network.node);
        // Inside the control plane's folder, which is removed even if this process is killed.
        let folder = TempDir::new_in(&running.folder).unwrap();
        let name = folder.path().file_name().unwrap().to_string_lossy();
        // As unique as the folder's name, and valid for the API.
        let name = format!("e2e-{}", name.trim_start_matches('.').to_lowercase());
        running.api.create("/api/v1/namespaces", &json!({"metadata": {"name": name}}));
        let kube_proxy = binary(supervisor);
        Self { control_plane, lab, node: name.clone(), lan_ip, namespace: name, folder, kube_proxy }
    }

    pub fn control_plane(&self) -> &ControlPlane {
        self.control_plane.as_ref().unwrap()
    }

    pub fn control_plane_mut(&mut self) -> &mut ControlPlane {
        self.control_plane.as_mut().unwrap()
    }

    pub fn api(&self) -> &ApiClient {
        &self.control_plane().api
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn node_path(&self) -> String {
        format!("/api/v1/nodes/{}", self.node)
    }

    /// A second node, of which only the pods exist.
    pub fn other_node(&self) -> String {
        format!("{}-other", self.node)
    }

    pub fn services(&self) -> String {
        format!("/api/v1/namespaces/{}/services", self.namespace)
    }

    pub fn service(&self, name: &str) -> String {
        format!("{}/{name}", self.services())
    }

    pub fn slices(&self) -> String {
        format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", self.namespace)
    }

    /// The path of the slice that [`objects::slice`] makes.
    pub fn slice(&self, service: &str, family: Family) -> String {
        format!("{}/{}", self.slices(), objects::slice_name(service, family))
    }

    pub fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }

    /// The key of a slice in etcd.
    pub fn slice_key(&self, name: &str) -> String {
        format!("/registry/endpointslices/{}/{name}", self.namespace)
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Creates a Service with endpoints at `places` in both families.
    pub fn create_service(&self, name: &str, places: &[Place]) -> Value {
        let service = self.api().create(&self.services(), &objects::service(name));
        for family in Family::BOTH {
            self.api().create(&self.slices(), &slice_at(name, family, places));
        }
        service
    }

    /// Replaces the endpoints of a Service.
    pub fn move_endpoints(&self, name: &str, places: &[Place]) {
        for family in Family::BOTH {
            self.api().replace(&self.slice(name, family), &slice_at(name, family, places));
        }
    }

    /// Writes a kubeconfig file for `user` and the API server's address `server`.
    pub fn kubeconfig(&self, server: SocketAddr, user: &Value) -> PathBuf {
        let path = self.folder().join("kubeconfig");
        kubeconfig::write(&path, &server.to_string(), &self.control_plane().folder, user)
    }

    /// The user `system:kube-proxy`, by its client certificate.
    pub fn proxy_user(&self) -> Value {
        kubeconfig::certificate_user(&self.control_plane().folder, "kube-proxy")
    }

    /// Starts kube-proxy on the node.
    pub fn proxy(&self, mode: Mode) -> Proxy {
        self.proxy_with(mode, &[])
    }

    pub fn proxy_with(&self, mode: Mode, more: &[&str]) -> Proxy {
        let kubeconfig = self.kubeconfig(self.control_plane().address(), &self.proxy_user());
        self.proxy_as(mode, &kubeconfig, more)
    }

    pub fn proxy_as(&self, mode: Mode, kubeconfig: &Path, more: &[&str]) -> Proxy {
        let mut flags = flags(mode, &self.node, kubeconfig);
        flags.extend(more.iter().map(|flag| String::from(*flag)));
        self.proxy_with_flags(&flags)
    }

    /// Starts kube-proxy with `programs` at the front of its `PATH`.
    pub fn proxy_with_path(&self, programs: &Path, mode: Mode, more: &[&str]) -> Proxy {
        let kubeconfig = self.kubeconfig(self.control_plane().address(), &self.proxy_user());
        let path = format!("PATH={}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut words = vec![path, self.kube_proxy.display().to_string()];
        words.extend(flags(mode, &self.node, &kubeconfig));
        words.extend(more.iter().map(|flag| String::from(*flag)));
        Proxy::start(Path::new("env"), &self.lab.network.node, &words, &self.log())
    }

    /// Starts kube-proxy with `flags` only.
    pub fn proxy_with_flags(&self, flags: &[String]) -> Proxy {
        Proxy::start(&self.kube_proxy, &self.lab.network.node, flags, &self.log())
    }

    /// The binary under test.
    pub fn kube_proxy(&self) -> &Path {
        &self.kube_proxy
    }

    pub fn log(&self) -> PathBuf {
        self.folder().join("kube-proxy.log")
    }

    /// The API server's audit log of requests from the node.
    pub fn audit(&self) -> Vec<AuditEntry> {
        audit::read(&self.control_plane().folder.join("audit.log"), self.lan_ip)
    }

    pub fn probe(&self, from: ClientPlace, protocol: Protocol, to: SocketAddr) -> Answer {
        let source = from.source(Family::of(to.ip()), 0);
        self.lab.namespace(from).enter(|| probe_here(source, protocol, to, ANSWER_TIMEOUT))
    }

    /// Waits until the cluster IPs of `service` lead to all of `places` and to nothing else.
    pub fn wait_until_served(&self, service: &Value, places: &[Place]) {
        for family in Family::BOTH {
            self.wait_until_reached(ClientPlace::Pod, cluster_ip(service, family), places);
        }
    }

    /// Waits until probes of `to` are answered by all of `places` and by nothing else.
    pub fn wait_until_reached(&self, from: ClientPlace, to: SocketAddr, places: &[Place]) {
        let family = Family::of(to.ip());
        let desired: Vec<_> = places.iter().map(|place| SocketAddr::new(place.ip(family), TARGET)).collect();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut seen = Vec::new();
            let all_and_no_other = || {
                seen = (0..8 * desired.len()).map(|_| self.probe(from, protocol, to)).collect();
                let is_from = |answer: &Answer, desired: &SocketAddr| matches!(answer, Answer::From { endpoint, .. } if endpoint == desired);
                seen.iter().all(|answer| desired.iter().any(|desired| is_from(answer, desired)))
                    && desired.iter().all(|desired| seen.iter().any(|answer| is_from(answer, desired)))
            };
            let reached = holds_within(USUAL_TIMEOUT, all_and_no_other);
            assert!(reached, "{from:?} to {to}/{protocol}: expected all of {desired:?}, got {seen:?}");
        }
    }
}

fn slice_at(service: &str, family: Family, places: &[Place]) -> Value {
    let endpoints: Vec<_> = places.iter().map(|place| objects::endpoint(place.ip(family))).collect();
    objects::slice(service, family, &endpoints)
}

/// Port 80 of the cluster IP that the API server assigned.
pub fn cluster_ip(service: &Value, family: Family) -> SocketAddr {
    let ips = service["spec"]["clusterIPs"].as_array().unwrap();
    let ips = ips.iter().map(|ip| ip.as_str().unwrap().parse::<IpAddr>().unwrap());
    let ip = ips.into_iter().find(|ip| Family::of(*ip) == family);
    SocketAddr::new(ip.unwrap_or_else(|| panic!("no cluster IP of {family} in {service}")), 80)
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        // The test may have panicked while the API server was down, and the next one needs it.
        self.control_plane_mut().start_api_server();
        let collections = [self.services(), self.slices(), format!("{}?gracePeriodSeconds=0", self.pods())];
        let nodes = [self.node_path(), format!("/api/v1/nodes/{}", self.other_node())];
        let namespace = [format!("/api/v1/namespaces/{}", self.namespace)];
        for path in collections.into_iter().chain(nodes).chain(namespace) {
            // Fails for what is gone already.
            let _ = self.api().try_delete(&path);
        }
    }
}
