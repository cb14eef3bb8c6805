//! What nobody hears of is found by looking: the legacy iptables tells of no change, and one rule less makes no canary go.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use model::address::Family;
use testkit::lab_proxy::LabProxy;
use testkit::manifests::{A, B, web};
use testkit::network::of;
use testkit::wait::within;

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// A look takes milliseconds, more on a busy machine, and is followed by a rest of two hundred times that.
fn eventually(what: &str, so: impl FnMut() -> bool) {
    within(Duration::from_secs(180), what, so);
}

#[test]
fn a_rule_that_nobody_heard_go_is_missed_and_written_again() {
    for family in Family::BOTH {
        let proxy = LabProxy::legacy(KUBE_PROXY, family, &["--audit-interval=50ms"]);
        proxy.apply(web(&[A, B]));
        let [iptables, save] =
            [["iptables-legacy", "ip6tables-legacy"], ["iptables-legacy-save", "ip6tables-legacy-save"]]
                .map(|of_both| of(family, of_both));
        let node = &proxy.lab.network.node;
        let rules = || {
            node.run(&format!("{save} -t nat")).lines().filter(|line| line.contains("-j KUBE-SVC-")).count()
        };
        eventually("rules", || rules() > 0);
        let all = rules();
        node.run(&format!("{iptables} -t nat -D KUBE-SERVICES 1"));
        assert_eq!(rules(), all - 1);
        eventually("the rule again", || rules() == all);
        eventually("a word about it", || proxy.log().contains("Repaired rules"));
        let log = proxy.log();
        let found =
            log.lines().find(|line| line.contains("The kernel does not hold what it should")).unwrap();
        assert!(
            found.contains("missing: -t nat -A KUBE-SERVICES") && found.contains("differences=1"),
            "{found}"
        );
        let before = log.matches("The kernel does not hold").count();
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(
            proxy.log().matches("The kernel does not hold").count(),
            before,
            "once it is mended, all is well"
        );
    }
}
