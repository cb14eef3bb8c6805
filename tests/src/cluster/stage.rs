//! What one test has of the cluster for its own: a node, an API namespace, and the people on the node's network.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::api::Api;
use crate::cluster::audit::{self, Entry};
use crate::cluster::control_plane::ControlPlane;
use crate::cluster::kubeconfig;
use crate::cluster::objects;
use crate::cluster::proxy::{Mode, Proxy, binary, flags};
use crate::matrix::eventually;
use testkit::lab::{Lab, Place, TARGET, Who};
use testkit::talk::{Answer, ask_here};

/// How long an answer may take on a machine that also runs a control plane.
const PATIENCE: Duration = Duration::from_secs(2);

/// Removed when dropped, with everything in it.
#[derive(Debug)]
pub struct Stage {
    plane: MutexGuard<'static, Option<ControlPlane>>,
    pub lab: Lab,
    pub node: String,
    /// The node's address on the network between it and the control plane.
    pub lan_ip: IpAddr,
    space: String,
    folder: TempDir,
    kube_proxy: PathBuf,
}

impl Stage {
    /// With a Node object. `supervisor` is the program `control-plane` of this crate; kube-proxy is expected beside it.
    pub fn new(supervisor: &Path) -> Self {
        let stage = Self::without_node(supervisor);
        stage.api().create("/api/v1/nodes", &objects::node(&stage.node));
        stage
    }

    /// The same before its node has announced itself.
    pub fn without_node(supervisor: &Path) -> Self {
        let mut plane = ControlPlane::alone(supervisor);
        let lab = Lab::new();
        let running = plane.as_mut().unwrap();
        let lan_ip = running.join(&lab.network.node);
        // In there it goes away with the control plane, even if we are killed.
        let folder = TempDir::new_in(&running.folder).unwrap();
        let name = folder.path().file_name().unwrap().to_string_lossy();
        // As random as the folder's, and a name the API accepts.
        let name = format!("e2e-{}", name.trim_start_matches('.').to_lowercase());
        running.api.create("/api/v1/namespaces", &json!({"metadata": {"name": name}}));
        let kube_proxy = binary(supervisor);
        Self { plane, lab, node: name.clone(), lan_ip, space: name, folder, kube_proxy }
    }

    pub fn plane(&self) -> &ControlPlane {
        self.plane.as_ref().unwrap()
    }

    pub fn plane_mut(&mut self) -> &mut ControlPlane {
        self.plane.as_mut().unwrap()
    }

    pub fn api(&self) -> &Api {
        &self.plane().api
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn node_path(&self) -> String {
        format!("/api/v1/nodes/{}", self.node)
    }

    /// Another node of the cluster, of which nothing but pods is seen.
    pub fn other_node(&self) -> String {
        format!("{}-other", self.node)
    }

    pub fn services(&self) -> String {
        format!("/api/v1/namespaces/{}/services", self.space)
    }

    pub fn service(&self, name: &str) -> String {
        format!("{}/{name}", self.services())
    }

    pub fn slices(&self) -> String {
        format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", self.space)
    }

    /// The slice that [`objects::slice`] makes.
    pub fn slice(&self, service: &str, family: Family) -> String {
        format!("{}/{}", self.slices(), objects::slice_name(service, family))
    }

    pub fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.space)
    }

    /// Where etcd keeps a slice.
    pub fn slice_key(&self, name: &str) -> String {
        format!("/registry/endpointslices/{}/{name}", self.space)
    }

    pub fn space(&self) -> &str {
        &self.space
    }

    /// A service whose endpoints are at these places, in both families.
    pub fn serve(&self, name: &str, places: &[Place]) -> Value {
        let service = self.api().create(&self.services(), &objects::service(name));
        for family in Family::BOTH {
            self.api().create(&self.slices(), &slice_at(name, family, places));
        }
        service
    }

    /// From here on the service's endpoints are at these places.
    pub fn move_to(&self, name: &str, places: &[Place]) {
        for family in Family::BOTH {
            self.api().replace(&self.slice(name, family), &slice_at(name, family, places));
        }
    }

    /// A kubeconfig file for somebody who finds the API server at this address.
    pub fn kubeconfig(&self, server: SocketAddr, user: &Value) -> PathBuf {
        let path = self.folder().join("kubeconfig");
        kubeconfig::write(&path, &server.to_string(), &self.plane().folder, user)
    }

    pub fn certified_proxy(&self) -> Value {
        kubeconfig::certified(&self.plane().folder, "kube-proxy")
    }

    /// Starts kube-proxy on the node.
    pub fn proxy(&self, mode: Mode) -> Proxy {
        self.proxy_with(mode, &[])
    }

    pub fn proxy_with(&self, mode: Mode, more: &[&str]) -> Proxy {
        let kubeconfig = self.kubeconfig(self.plane().address(), &self.certified_proxy());
        self.proxy_as(mode, &kubeconfig, more)
    }

    pub fn proxy_as(&self, mode: Mode, kubeconfig: &Path, more: &[&str]) -> Proxy {
        let mut flags = flags(mode, &self.node, kubeconfig);
        flags.extend(more.iter().map(|flag| String::from(*flag)));
        self.proxy_told(&flags)
    }

    /// Starts it where the programs in this folder are found before others of their names.
    pub fn proxy_among(&self, programs: &Path, mode: Mode, more: &[&str]) -> Proxy {
        let kubeconfig = self.kubeconfig(self.plane().address(), &self.certified_proxy());
        let path = format!("PATH={}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut words = vec![path, self.kube_proxy.display().to_string()];
        words.extend(flags(mode, &self.node, &kubeconfig));
        words.extend(more.iter().map(|flag| String::from(*flag)));
        Proxy::start(Path::new("env"), &self.lab.network.node, &words, &self.log())
    }

    /// Starts it with these flags and no others.
    pub fn proxy_told(&self, flags: &[String]) -> Proxy {
        Proxy::start(&self.kube_proxy, &self.lab.network.node, flags, &self.log())
    }

    /// The program that [`Self::proxy`] starts.
    pub fn kube_proxy(&self) -> &Path {
        &self.kube_proxy
    }

    pub fn log(&self) -> PathBuf {
        self.folder().join("kube-proxy.log")
    }

    /// What the node asked of the API server so far.
    pub fn audit(&self) -> Vec<Entry> {
        audit::read(&self.plane().folder.join("audit.log"), self.lan_ip)
    }

    pub fn ask(&self, who: Who, protocol: Protocol, to: SocketAddr) -> Answer {
        let source = who.source(Family::of(to.ip()), 0);
        self.lab.namespace(who).enter(|| ask_here(source, protocol, to, PATIENCE))
    }

    /// Waits until a pod that asks for the cluster IPs of a service is answered by every one of these places, and nobody else.
    pub fn serves(&self, service: &Value, places: &[Place]) {
        for family in Family::BOTH {
            self.reaches(Who::Pod, cluster_ip(service, family), places);
        }
    }

    /// Waits until every one of these places answers, and nobody else does.
    pub fn reaches(&self, who: Who, to: SocketAddr, places: &[Place]) {
        let family = Family::of(to.ip());
        let wanted: Vec<_> = places.iter().map(|place| SocketAddr::new(place.ip(family), TARGET)).collect();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut seen = Vec::new();
            let all_and_no_other = || {
                seen = (0..8 * wanted.len()).map(|_| self.ask(who, protocol, to)).collect();
                let from = |answer: &Answer, wanted: &SocketAddr| matches!(answer, Answer::From { endpoint, .. } if endpoint == wanted);
                seen.iter().all(|answer| wanted.iter().any(|wanted| from(answer, wanted)))
                    && wanted.iter().all(|wanted| seen.iter().any(|answer| from(answer, wanted)))
            };
            let reached = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                eventually("the right endpoints", all_and_no_other);
            }));
            if reached.is_err() {
                panic!("{who:?} to {to}/{protocol}: wanted all of {wanted:?}, got {seen:?}");
            }
        }
    }
}

fn slice_at(service: &str, family: Family, places: &[Place]) -> Value {
    let endpoints: Vec<_> = places.iter().map(|place| objects::endpoint(place.ip(family))).collect();
    objects::slice(service, family, &endpoints)
}

/// The cluster IP that the API server gave a service.
pub fn cluster_ip(service: &Value, family: Family) -> SocketAddr {
    let ips = service["spec"]["clusterIPs"].as_array().unwrap();
    let ips = ips.iter().map(|ip| ip.as_str().unwrap().parse::<IpAddr>().unwrap());
    let ip = ips.into_iter().find(|ip| Family::of(*ip) == family);
    SocketAddr::new(ip.unwrap_or_else(|| panic!("no cluster IP of {family} in {service}")), 80)
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A test may have failed while it was down, and the next one wants it.
        self.plane_mut().start_api_server();
        let collections = [self.services(), self.slices(), format!("{}?gracePeriodSeconds=0", self.pods())];
        let nodes = [self.node_path(), format!("/api/v1/nodes/{}", self.other_node())];
        let space = [format!("/api/v1/namespaces/{}", self.space)];
        for path in collections.into_iter().chain(nodes).chain(space) {
            // What is gone already need not be removed.
            let _ = self.api().try_delete(&path);
        }
    }
}
