//! Whether this node should get traffic: asked by load balancers, kubelets and people.

pub mod node;
pub mod service;
