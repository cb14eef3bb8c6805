//! Objects as files have them: YAML goes in, and each is applied where its kind lives.

use std::path::Path;

use serde_json::Value;

use crate::cluster::api::{Api, Refusal, Trial};

/// All objects of a stream of YAML documents.
pub fn parse(text: &str) -> Vec<Value> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

pub fn read(path: &Path) -> Vec<Value> {
    parse(&std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The first object of a kind and, where that matters, of a name.
pub fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {objects:?}"))
}

/// Where the API server has an object.
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
        kind => panic!("where do objects of kind {kind} live?"),
    };
    let metadata = &object["metadata"];
    let space =
        metadata["namespace"].as_str().map(|space| format!("namespaces/{space}/")).unwrap_or_default();
    format!("/{group}/{}/{space}{plural}/{}", text(&object["apiVersion"]), text(&metadata["name"]))
}

/// Objects that are there until this is dropped.
#[derive(Debug)]
pub struct Applied<'a> {
    api: &'a Api,
    paths: Vec<String>,
}

impl<'a> Applied<'a> {
    pub fn new(api: &'a Api) -> Self {
        Self { api, paths: Vec::new() }
    }

    /// Makes an object as somebody else who has come before would have.
    pub fn create(&mut self, object: &Value) {
        let path = path(object);
        let (collection, _) = path.rsplit_once('/').unwrap();
        self.api.create(collection, object);
        self.paths.push(path);
    }

    /// Applies an object, and returns what has become of it.
    pub fn apply(&mut self, object: &Value) -> Value {
        let path = path(object);
        let applied = apply(self.api, object, Trial::ForReal);
        self.paths.push(path);
        applied.unwrap_or_else(|error| panic!("{error}\n{object:#}"))
    }

    pub fn apply_all(&mut self, objects: &[Value]) {
        for object in objects {
            self.apply(object);
        }
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        for path in &self.paths {
            // What was applied twice is gone already.
            let _ = self.api.try_delete(path);
        }
    }
}

pub fn apply(api: &Api, object: &Value, trial: Trial) -> Result<Value, Refusal> {
    api.apply(&path(object), object, trial)
}
