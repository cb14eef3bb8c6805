//! The ipvs mode: virtual and real servers, the addresses that make them local, and around them the program of the
//! nftables mode without its translation.
//!
//! ```text
//!   Routing ──▶ virtual servers with their real servers   IPVS chooses the endpoint
//!           ──▶ addresses of `kube-ipvs0`                 so that packets to them are delivered to IPVS
//!           ──▶ elements of our nftables table            masquerading, hairpin, source ranges, the filter of host ports
//! ```
//!
//! `desired` renders all of it from the desired table, which decides the frontends. `plan` combines it with what is known of the
//! kernel, and `changes` has the steps in their order; `termination` deletes real servers when their connections have ended. `compare` lists what
//! differs in the kernel.

pub mod changes;
pub mod compare;
pub mod desired;
pub mod plan;
pub mod servers;
pub mod termination;
pub mod text;
