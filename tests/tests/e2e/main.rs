//! kube-proxy against a real API server. `make e2e` runs these tests as root with the binaries of a control plane.

mod api_server;
mod bad_input;
mod balance;
mod encodings;
mod ending;
mod health;
mod limits;
mod metrics;
mod node;
mod pace;
mod packaging;
mod requests;
mod rolling;
mod services;
mod tools;
mod upstream;

use std::path::Path;

use tests::cluster::test_cluster::TestCluster;

/// Makes a test for each mode from each function.
macro_rules! in_each_mode {
    ($($name:ident),+ $(,)?) => {
        mod nftables {
            $(
                #[test]
                #[ignore = "needs a control plane: make e2e"]
                fn $name() {
                    super::$name(tests::cluster::proxy::Mode::Nftables);
                }
            )+
        }
        mod iptables {
            $(
                #[test]
                #[ignore = "needs a control plane: make e2e"]
                fn $name() {
                    super::$name(tests::cluster::proxy::Mode::Iptables);
                }
            )+
        }
    };
}
use in_each_mode;

const SUPERVISOR: &str = env!("CARGO_BIN_EXE_control-plane");

fn cluster() -> TestCluster {
    TestCluster::new(Path::new(SUPERVISOR))
}

fn cluster_without_node() -> TestCluster {
    TestCluster::without_node(Path::new(SUPERVISOR))
}
