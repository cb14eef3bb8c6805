//! The API as tests use it: JSON goes in and comes out, and a call returns when it is done.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use http_body_util::BodyExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use testkit::namespace::Namespace;

/// A client in a namespace of its own.
#[derive(Debug)]
pub struct Api {
    runtime: Runtime,
    client: Client,
}

/// `kube` tells nothing about it.
#[derive(Clone)]
struct Client(kube::Client);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// Whether something is to be done, or only judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    DryRun,
    ForReal,
}

/// What the API server said no to, or why it said nothing.
pub type Refusal = kube::Error;

impl Api {
    /// Speaks as whom the kubeconfig says, from this namespace.
    pub fn open(namespace: &Namespace, kubeconfig: &Path) -> Self {
        let namespace = namespace.clone();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(move || namespace.move_in())
            .enable_all()
            .build()
            .unwrap();
        let file = Kubeconfig::read_from(kubeconfig).unwrap();
        let connect = async move {
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            Client(kube::Client::try_from(config.unwrap()).unwrap())
        };
        let client = runtime.block_on(runtime.spawn(connect)).unwrap();
        Self { runtime, client }
    }

    pub fn get(&self, path: &str) -> Value {
        self.call("GET", path, "application/json", &Value::Null)
    }

    /// Makes an object in the collection that the path names.
    pub fn create(&self, path: &str, object: &Value) -> Value {
        self.call("POST", path, "application/json", object)
    }

    /// The same for objects that the API server may not like.
    pub fn try_create(&self, path: &str, object: &Value) -> Result<Value, Refusal> {
        self.try_call("POST", path, "application/json", object)
    }

    pub fn replace(&self, path: &str, object: &Value) -> Value {
        self.call("PUT", path, "application/json", object)
    }

    /// The same while the API server may be away.
    pub fn try_replace(&self, path: &str, object: &Value) -> Result<Value, Refusal> {
        self.try_call("PUT", path, "application/json", object)
    }

    /// Changes some fields. `null` removes one.
    pub fn patch(&self, path: &str, fields: &Value) -> Value {
        self.call("PATCH", path, "application/merge-patch+json", fields)
    }

    /// The same while the API server may be away.
    pub fn try_patch(&self, path: &str, fields: &Value) -> Result<Value, Refusal> {
        self.try_call("PATCH", path, "application/merge-patch+json", fields)
    }

    /// Applies an object as `kubectl apply --server-side --force-conflicts` does, and nothing that its schema does not know.
    pub fn apply(&self, path: &str, object: &Value, trial: Trial) -> Result<Value, Refusal> {
        let dry = match trial {
            Trial::DryRun => "&dryRun=All",
            Trial::ForReal => "",
        };
        let options = format!("fieldManager=packaging&force=true&fieldValidation=Strict{dry}");
        self.try_call("PATCH", &format!("{path}?{options}"), "application/apply-patch+yaml", object)
    }

    pub fn delete(&self, path: &str) {
        self.call("DELETE", path, "application/json", &Value::Null);
    }

    /// The same for what may be gone already.
    pub fn try_delete(&self, path: &str) -> Result<Value, Refusal> {
        self.try_call("DELETE", path, "application/json", &Value::Null)
    }

    /// Many at a time, yet not more than the API server takes at a time.
    pub fn create_all(&self, objects: impl IntoIterator<Item = (String, Value)>) {
        const AT_A_TIME: usize = 100;
        let mut calls = VecDeque::new();
        for (path, object) in objects {
            let call = send(self.client.clone(), "POST", path, "application/json", object);
            calls.push_back(self.runtime.spawn(call));
            if calls.len() == AT_A_TIME {
                self.finish(calls.pop_front());
            }
        }
        calls.into_iter().for_each(|call| self.finish(Some(call)));
    }

    fn finish(&self, call: Option<JoinHandle<Result<Value, Refusal>>>) {
        if let Some(call) = call {
            self.runtime.block_on(call).unwrap().unwrap();
        }
    }

    /// Tells when each change to a collection arrives, from now on.
    pub fn arrivals(&self, path: &str) -> Receiver<Instant> {
        let version = self.get(path)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let uri = format!("{path}?watch=true&resourceVersion={version}");
        let request = http::Request::get(uri).body(kube::client::Body::empty()).unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        let client = self.client.clone();
        self.runtime.spawn(async move {
            let mut body = client.0.send(request).await.unwrap().into_body();
            while let Some(Ok(frame)) = body.frame().await {
                let arrived = Instant::now();
                // One line is one change.
                let bytes = frame.into_data().unwrap_or_default();
                for _ in bytes.iter().filter(|byte| **byte == b'\n') {
                    // Nobody may be listening any more.
                    let _ = send.send(arrived);
                }
            }
        });
        receive
    }

    pub fn is_ready(&self) -> bool {
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        let client = self.client.clone();
        let asked = self.runtime.spawn(async move { client.0.request_text(request).await });
        self.runtime.block_on(asked).unwrap().is_ok()
    }

    fn call(&self, verb: &'static str, path: &str, content: &'static str, body: &Value) -> Value {
        self.try_call(verb, path, content, body)
            .unwrap_or_else(|error| panic!("{verb} {path}: {error}\n{body}"))
    }

    fn try_call(
        &self,
        verb: &'static str,
        path: &str,
        content: &'static str,
        body: &Value,
    ) -> Result<Value, Refusal> {
        let call = send(self.client.clone(), verb, path.into(), content, body.clone());
        // Sockets belong to the namespace of the thread that makes them: not the caller's.
        self.runtime.block_on(self.runtime.spawn(call)).unwrap()
    }
}

async fn send(
    client: Client,
    verb: &'static str,
    path: String,
    content: &'static str,
    body: Value,
) -> Result<Value, Refusal> {
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(&body).unwrap() };
    let request = http::Request::builder().method(verb).uri(path).header("content-type", content);
    client.0.request(request.body(body).unwrap()).await
}
