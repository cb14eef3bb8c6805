//! A blocking client of the API server that takes and returns JSON.

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

/// A client whose connections start in the namespace given to [`ApiClient::open`].
#[derive(Debug)]
pub struct ApiClient {
    runtime: Runtime,
    client: Client,
}

/// [`kube::Client`] does not implement `Debug`.
#[derive(Clone)]
struct Client(kube::Client);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// Whether the API server persists an object or only validates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyMode {
    DryRun,
    Persist,
}

impl ApiClient {
    /// Connects from `namespace`, as the user of the kubeconfig file.
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

    /// Creates an object in the collection `path`.
    pub fn create(&self, path: &str, object: &Value) -> Value {
        self.call("POST", path, "application/json", object)
    }

    /// Like [`Self::create`], for objects that the API server may refuse.
    pub fn try_create(&self, path: &str, object: &Value) -> Result<Value, kube::Error> {
        self.try_call("POST", path, "application/json", object)
    }

    pub fn replace(&self, path: &str, object: &Value) -> Value {
        self.call("PUT", path, "application/json", object)
    }

    /// Like [`Self::replace`], while the API server may be down.
    pub fn try_replace(&self, path: &str, object: &Value) -> Result<Value, kube::Error> {
        self.try_call("PUT", path, "application/json", object)
    }

    /// Merges `fields` into an object; `null` removes a field.
    pub fn patch(&self, path: &str, fields: &Value) -> Value {
        self.call("PATCH", path, "application/merge-patch+json", fields)
    }

    /// Like [`Self::patch`], while the API server may be down.
    pub fn try_patch(&self, path: &str, fields: &Value) -> Result<Value, kube::Error> {
        self.try_call("PATCH", path, "application/merge-patch+json", fields)
    }

    /// Applies an object as `kubectl apply --server-side --force-conflicts` does. Fields outside the schema are an error.
    pub fn apply(&self, path: &str, object: &Value, mode: ApplyMode) -> Result<Value, kube::Error> {
        let dry_run = match mode {
            ApplyMode::DryRun => "&dryRun=All",
            ApplyMode::Persist => "",
        };
        let options = format!("fieldManager=packaging&force=true&fieldValidation=Strict{dry_run}");
        self.try_call("PATCH", &format!("{path}?{options}"), "application/apply-patch+yaml", object)
    }

    pub fn delete(&self, path: &str) {
        self.call("DELETE", path, "application/json", &Value::Null);
    }

    /// Like [`Self::delete`], for objects that may be gone already.
    pub fn try_delete(&self, path: &str) -> Result<Value, kube::Error> {
        self.try_call("DELETE", path, "application/json", &Value::Null)
    }

    /// Creates objects concurrently, within the API server's limit of requests in flight.
    pub fn create_all(&self, objects: impl IntoIterator<Item = (String, Value)>) {
        const CONCURRENCY: usize = 100;
        let mut calls = VecDeque::new();
        for (path, object) in objects {
            let call = send(self.client.clone(), "POST", path, "application/json", object);
            calls.push_back(self.runtime.spawn(call));
            if calls.len() == CONCURRENCY {
                self.finish(calls.pop_front());
            }
        }
        calls.into_iter().for_each(|call| self.finish(Some(call)));
    }

    fn finish(&self, call: Option<JoinHandle<Result<Value, kube::Error>>>) {
        if let Some(call) = call {
            self.runtime.block_on(call).unwrap().unwrap();
        }
    }

    /// Watches a collection and sends the time at which each change arrives.
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
                // Each line is one watch event.
                let bytes = frame.into_data().unwrap_or_default();
                for _ in bytes.iter().filter(|byte| **byte == b'\n') {
                    // Fails once the receiver is dropped.
                    let _ = send.send(arrived);
                }
            }
        });
        receive
    }

    /// Sends all requests at the same time, each a path and what it accepts, and receives each answer until it contains `end`.
    pub fn receive_all(
        &self,
        requests: impl IntoIterator<Item = (String, &'static str)>,
        end: &'static [u8],
    ) {
        let receive = |(path, accept): (String, &'static str)| {
            let request = http::Request::get(path).header("accept", accept);
            let request = request.body(kube::client::Body::empty()).unwrap();
            let client = self.client.clone();
            self.runtime.spawn(async move {
                let mut body = client.0.send(request).await.unwrap().into_body();
                let mut tail = Vec::new();
                while let Some(frame) = body.frame().await {
                    tail.extend_from_slice(&frame.unwrap().into_data().unwrap_or_default());
                    if tail.windows(end.len()).any(|window| window == end) {
                        return;
                    }
                    tail.drain(..tail.len().saturating_sub(end.len()));
                }
                panic!("the answer ended early");
            })
        };
        let tasks: Vec<JoinHandle<()>> = requests.into_iter().map(receive).collect();
        tasks.into_iter().for_each(|task| self.runtime.block_on(task).unwrap());
    }

    pub fn is_ready(&self) -> bool {
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        let client = self.client.clone();
        let response = self.runtime.spawn(async move { client.0.request_text(request).await });
        self.runtime.block_on(response).unwrap().is_ok()
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
    ) -> Result<Value, kube::Error> {
        let call = send(self.client.clone(), verb, path.into(), content, body.clone());
        // Spawned, because a socket belongs to the namespace of the thread that opens it: the runtime's, not the caller's.
        self.runtime.block_on(self.runtime.spawn(call)).unwrap()
    }
}

async fn send(
    client: Client,
    verb: &'static str,
    path: String,
    content: &'static str,
    body: Value,
) -> Result<Value, kube::Error> {
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(&body).unwrap() };
    let request = http::Request::builder().method(verb).uri(path).header("content-type", content);
    client.0.request(request.body(body).unwrap()).await
}
