//! The audit finds drift that no monitor reports: legacy iptables and IPVS notify of no change, and the canary chain stays when one rule
//! goes.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

use model::address::Family;
use testkit::lab::{Address, TARGET};
use testkit::lab_proxy::LabProxy;
use testkit::manifests::{A, B, web};
use testkit::network::of;
use testkit::wait::within;

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// A look takes milliseconds, more on a busy or an emulated machine, and is followed by a rest of two hundred times that.
fn eventually(what: &str, so: impl FnMut() -> bool) {
    within(Duration::from_secs(300), what, so);
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

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_drift_is_named_by_verify_and_repaired_by_the_audit() {
    for family in Family::BOTH {
        let (ip, length) = (Address::ClusterIp.ip(family), of(family, [32, 128]));
        let [service, real] = [(ip, 80), (A.place.ip(family), TARGET)].map(SocketAddr::from);
        let damages = [
            (format!("ipvsadm -D -t {service}"), format!("-A -t {service} -s rr")),
            (format!("ipvsadm -d -u {service} -r {real}"), format!("-a -u {service} -r {real} -m -w 1")),
            (
                format!("ip address delete {ip}/{length} dev kube-ipvs0"),
                format!("address {ip} dev kube-ipvs0"),
            ),
        ];

        let mut proxy = LabProxy::stopped(KUBE_PROXY, "ipvs", family, &["--audit-interval=0"]);
        start(&mut proxy);
        for (damage, missing) in &damages {
            eventually(damage, || {
                run(&proxy, damage);
                let (code, text) = verify(&proxy);
                code == 2 && text.contains(&format!("  missing {missing}"))
            });
        }
        drop(proxy);

        let mut proxy = LabProxy::stopped(KUBE_PROXY, "ipvs", family, &["--audit-interval=50ms"]);
        start(&mut proxy);
        eventually("the audit finds it", || {
            damages.iter().for_each(|(damage, _)| _ = run(&proxy, damage));
            // Leaves an emulated processor to the audit.
            std::thread::sleep(Duration::from_secs(1));
            proxy.log().contains("The kernel does not hold what it should")
        });
        eventually("the kernel holds everything again", || verify(&proxy).0 == 0);
        eventually("a word about it", || proxy.log().contains("Repaired rules"));
    }
}

/// Starts the proxy, and waits until the kernel holds what it should.
fn start(proxy: &mut LabProxy) {
    proxy.apply(web(&[A, B]));
    proxy.start();
    eventually("the first sync", || verify(proxy).0 == 0);
}

/// The exit code and the output of `kube-proxy verify`, which queries the running proxy.
fn verify(proxy: &LabProxy) -> (i32, String) {
    let output = run(proxy, &format!("{KUBE_PROXY} verify"));
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text.into_owned())
}

/// Runs a command on the node. It may fail, since tests repeat damage: the proxy reads the kernel back once more when it begins to listen
/// for foreign writers.
fn run(proxy: &LabProxy, command: &str) -> Output {
    let mut words = command.split(' ');
    let program = words.next().unwrap();
    proxy.lab.network.node.enter(|| Command::new(program).args(words).output()).unwrap()
}
