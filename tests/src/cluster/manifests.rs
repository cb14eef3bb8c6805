//! YAML manifests, and objects that are applied to the API server.

use std::path::Path;

use serde_json::Value;

use crate::cluster::api::{ApiClient, ApplyMode};

/// The objects of a YAML stream.
pub fn parse(text: &str) -> Vec<Value> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

pub fn read(path: &Path) -> Vec<Value> {
    parse(&std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The first object of a kind.
pub fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {objects:?}"))
}

/// The API path of an object.
pub fn path(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("in {object}")).to_owned();
    let (group, plural) = match text(&object["kind"]).as_str() {
        "ClusterRoleBinding" => ("apis", "clusterrolebindings"),
        "ConfigMap" => ("api", "configmaps"),
        "CustomResourceDefinition" => ("apis", "customresourcedefinitions"),
        "DaemonSet" => ("apis", "daemonsets"),
        "PrometheusRule" => ("apis", "prometheusrules"),
        "Service" => ("api", "services"),
        "ServiceAccount" => ("api", "serviceaccounts"),
        "ServiceMonitor" => ("apis", "servicemonitors"),
        kind => panic!("unsupported kind {kind}"),
    };
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"]
        .as_str()
        .map(|namespace| format!("namespaces/{namespace}/"))
        .unwrap_or_default();
    format!("/{group}/{}/{namespace}{plural}/{}", text(&object["apiVersion"]), text(&metadata["name"]))
}

/// Objects that are deleted when this is dropped.
#[derive(Debug)]
pub struct AppliedObjects<'a> {
    api: &'a ApiClient,
    paths: Vec<String>,
}

impl<'a> AppliedObjects<'a> {
    pub fn new(api: &'a ApiClient) -> Self {
        Self { api, paths: Vec::new() }
    }

    /// Creates an object that another field manager owns.
    pub fn create(&mut self, object: &Value) {
        let path = path(object);
        let (collection, _) = path.rsplit_once('/').unwrap();
        self.api.create(collection, object);
        self.paths.push(path);
    }

    /// Applies an object, and returns it as persisted.
    pub fn apply(&mut self, object: &Value) -> Value {
        let path = path(object);
        let applied = apply(self.api, object, ApplyMode::Persist);
        self.paths.push(path);
        applied.unwrap_or_else(|error| panic!("{error}\n{object:#}"))
    }

    pub fn apply_all(&mut self, objects: &[Value]) {
        for object in objects {
            self.apply(object);
        }
    }
}

impl Drop for AppliedObjects<'_> {
    fn drop(&mut self) {
        for path in &self.paths {
            // Fails for an object that was applied twice.
            let _ = self.api.try_delete(path);
        }
    }
}

pub fn apply(api: &ApiClient, object: &Value, mode: ApplyMode) -> Result<Value, kube::Error> {
    api.apply(&path(object), object, mode)
}
