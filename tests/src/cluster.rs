//! A real cluster for tests: etcd, API server and controller manager of the reference, and a node of ours.
//!
//! ```text
//!   ┌ control plane ────────────────┐
//!   │ etcd, API server,             │
//!   │ controller manager     relay  │
//!   └── lan0 198.18.4.1 ────────────┘
//!        │
//!        └── lan 198.18.4.10 ── node, with its pods and clients as in the rest of this crate
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
pub mod stage;
