//! Constant changes: Services without clients are created, changed and deleted, and endpoints of those with clients change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use model::address::Family;
use serde_json::{Value, json};
use testkit::lab::Place;
use testkit::network::of;
use testkit::wait::within;
use tests::cluster::api::ApiClient;
use tests::cluster::objects;
use tests::cluster::test_cluster::TestCluster;

use crate::random::SeededRandom;
use crate::services::{self, NAMES, PLACES};

/// The number of Services besides the stable ones.
const SERVICES: usize = 40;
/// Makes up to 40 changes a second.
const PAUSE: Duration = Duration::from_millis(25);
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct Churn {
    /// A separate client, so that the test can restart the API server meanwhile.
    api: ApiClient,
    services: String,
    slices: String,
    node: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: SeededRandom,
    changes: BTreeMap<&'static str, usize>,
    /// Calls that the API server did not answer, or refused.
    errors: usize,
}

impl Churn {
    pub fn new(cluster: &TestCluster, seed: u64) -> Self {
        let plane = cluster.control_plane();
        let state = State { random: SeededRandom::new(seed), changes: BTreeMap::new(), errors: 0 };
        Self {
            api: ApiClient::open(&plane.namespace, &plane.folder.join("admin.kubeconfig")),
            services: cluster.services(),
            slices: cluster.slices(),
            node: cluster.node.clone(),
            state: Mutex::new(state),
        }
    }

    pub fn run_until(&self, is_over: impl Fn() -> bool) {
        let mut state = self.state.lock().unwrap();
        while !is_over() {
            let (what, outcome) = self.change(&mut state.random);
            let pause = match outcome {
                Ok(_) => {
                    *state.changes.entry(what).or_default() += 1;
                    PAUSE
                }
                // The object does not exist, or exists already.
                Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => PAUSE,
                Err(_) => {
                    state.errors += 1;
                    PAUSE_AFTER_ERROR
                }
            };
            std::thread::sleep(pause);
        }
    }

    fn change(&self, random: &mut SeededRandom) -> (&'static str, Result<Value, kube::Error>) {
        let name = format!("churn-{}", random.below(SERVICES));
        match random.below(10) {
            0..3 => ("services created", self.create(&name, random)),
            3..5 => {
                let fields = json!({"spec": spec(random)});
                ("services changed", self.api.try_patch(&self.service(&name), &fields))
            }
            5..8 => {
                let family = random.one_of(&Family::BOTH);
                let path = format!("{}/{}", self.slices, objects::slice_name(&name, family));
                let slice = objects::slice(&name, family, &endpoints(family, &self.node, random));
                ("slices changed", self.api.try_replace(&path, &slice))
            }
            8 => {
                let (name, family) = (random.one_of(&NAMES), random.one_of(&Family::BOTH));
                let others = PLACES[1..].iter().filter(|_| random.below(2) == 0);
                let places: Vec<Place> = PLACES[..1].iter().chain(others).copied().collect();
                let path = format!("{}/{}", self.slices, objects::slice_name(name, family));
                let slice = services::slice(name, family, &places);
                ("slices of services in use changed", self.api.try_replace(&path, &slice))
            }
            _ => ("services deleted", self.delete(&name)),
        }
    }

    fn create(&self, name: &str, random: &mut SeededRandom) -> Result<Value, kube::Error> {
        let service = objects::with(objects::service(name), json!({"spec": spec(random)}));
        let service = self.api.try_create(&self.services, &service)?;
        for family in Family::BOTH {
            let slice = objects::slice(name, family, &endpoints(family, &self.node, random));
            self.api.try_create(&self.slices, &slice)?;
        }
        if service["spec"]["type"] == "LoadBalancer" {
            let host = 20 + random.below(100);
            let ingress = json!([{"ip": format!("203.0.113.{host}")}, {"ip": format!("2001:db8:5::{host}")}]);
            let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
            self.api.try_patch(&format!("{}/status", self.service(name)), &status)?;
        }
        Ok(service)
    }

    fn delete(&self, name: &str) -> Result<Value, kube::Error> {
        for family in Family::BOTH {
            let path = format!("{}/{}", self.slices, objects::slice_name(name, family));
            unless_gone(self.api.try_delete(&path))?;
        }
        self.api.try_delete(&self.service(name))
    }

    /// Deletes all Services but the stable ones, and gives those all of their endpoints.
    pub fn delete_all(&self) {
        for number in 0..SERVICES {
            within(Duration::from_secs(120), "the API server deletes a Service", || {
                unless_gone(self.delete(&format!("churn-{number}"))).is_ok()
            });
        }
        for (name, family) in NAMES.into_iter().flat_map(|name| Family::BOTH.map(|family| (name, family))) {
            let path = format!("{}/{}", self.slices, objects::slice_name(name, family));
            self.api.replace(&path, &services::slice(name, family, &PLACES));
        }
    }

    fn service(&self, name: &str) -> String {
        format!("{}/{name}", self.services)
    }
}

fn unless_gone(outcome: Result<Value, kube::Error>) -> Result<Value, kube::Error> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Value::Null),
        outcome => outcome,
    }
}

/// Types, policies, affinities and source ranges in any combination that the API accepts.
fn spec(random: &mut SeededRandom) -> Value {
    let kind = random.one_of(&["ClusterIP", "NodePort", "LoadBalancer"]);
    let mut spec = json!({
        "type": kind,
        "internalTrafficPolicy": random.one_of(&["Cluster", "Cluster", "Local"]),
        "externalTrafficPolicy": null,
        "healthCheckNodePort": null,
        "loadBalancerSourceRanges": null,
        "externalIPs": null,
        "sessionAffinity": "None",
        "sessionAffinityConfig": null,
    });
    if kind != "ClusterIP" {
        spec["externalTrafficPolicy"] = random.one_of(&["Cluster", "Local"]).into();
    }
    if kind == "LoadBalancer" && random.below(2) == 0 {
        spec["loadBalancerSourceRanges"] =
            json!([format!("198.18.{}.0/24", random.below(200)), "2001:db8:2::/64"]);
    }
    if random.below(4) == 0 {
        spec["externalIPs"] = json!([format!("203.0.113.{}", 130 + random.below(100))]);
    }
    if random.below(3) == 0 {
        spec["sessionAffinity"] = "ClientIP".into();
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 60 + random.below(10_000)}});
    }
    spec
}

/// Zero to nine endpoints in any state, on this node or without a node.
fn endpoints(family: Family, node: &str, random: &mut SeededRandom) -> Vec<Value> {
    let count = random.below(10);
    let endpoint = |number: usize| {
        let serving = random.below(4) > 0;
        let terminating = random.below(4) == 0;
        let conditions =
            json!({"ready": serving && !terminating, "serving": serving, "terminating": terminating});
        let ip =
            of(family, [format!("10.244.1.{}", 100 + number), format!("fd00:10:244:1::{}", 100 + number)]);
        let mut endpoint = json!({"addresses": [ip], "conditions": conditions});
        if random.below(2) == 0 {
            endpoint["nodeName"] = node.into();
        }
        endpoint
    };
    (0..count).map(endpoint).collect()
}

impl fmt::Display for Churn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock().unwrap();
        writeln!(f, "{:<55} {:>9}", "changes", "times")?;
        for (what, count) in &state.changes {
            writeln!(f, "{what:<55} {count:>9}")?;
        }
        writeln!(f, "{:<55} {:>9}", "calls that the API server did not answer or refused", state.errors)
    }
}
