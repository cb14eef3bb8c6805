//! The audit finds drift that no monitor reports: legacy iptables notifies of no change, and the canary chain stays when one rule goes.
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
fn the_audit_finds_a_deleted_rule_and_has_it_repaired() {
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
            "after the repair there is no difference"
        );
    }
}
