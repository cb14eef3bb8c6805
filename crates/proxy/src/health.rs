//! Health checks: whether this node should get traffic, for load balancers, kubelets and operators.

pub mod node;
pub mod service;
