//! A real cluster for tests: upstream's etcd, API server and controller manager, and a node made of namespaces.
//!
//! ```text
//!   ┌ control plane ────────────────┐
//!   │ etcd, API server,             │
//!   │ controller manager     relay  │
//!   └── lan0 198.18.4.1 ────────────┘
//!        │
//!        └── lan 198.18.4.10 ── node, pods and clients of testkit::lab
//!                                 └─ kube-proxy
//! ```

pub mod api;
pub mod audit;
pub mod control_plane;
pub mod etcd;
pub mod http;
pub mod kubeconfig;
pub mod kubelet;
pub mod manifests;
pub mod objects;
pub mod pods;
pub mod proxy;
pub mod relay;
pub mod test_cluster;
