//! The ipvs mode: virtual and real servers, the addresses that make them local, and around them the program of the
//! nftables mode without its translation.
//!
//! ```text
//!   Routing ──▶ virtual servers with their real servers   IPVS chooses the endpoint
//!           ──▶ addresses of `kube-ipvs0`                 so that packets to them are delivered to IPVS
//!           ──▶ elements of our nftables table            masquerading, hairpin, source ranges, the filter of host ports
//! ```

pub mod servers;
