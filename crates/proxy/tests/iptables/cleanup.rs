//! Cleanup removes all of our rules, and none of other programs.

use std::sync::Arc;

use kernel::iptables::{Programs, remove_through};
use model::address::Family;
use netlink::testing::in_fresh_netns;
use plan::iptables::cleanup::Leftovers;

use crate::commands::{Commands, VARIANTS, iptables};
use crate::machine::Machine;
use crate::options::Options;
use crate::saved::Saved;

/// Rules of a CNI plugin, of kubelet, and of an operator.
const FOREIGN: &str = "*nat
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
:CNI-X - [0:0]
-A PREROUTING -j CNI-X
-A CNI-X -p tcp --dport 1234 -j ACCEPT
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
*filter
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A FORWARD -i eth7 -j ACCEPT
COMMIT
";

/// Rules of old releases.
const FORMER: &str = "*nat
:KUBE-XLB-7OZUAIGE4YF4IZGV - [0:0]
:KUBE-SVC-7OZUAIGE4YF4IZGV - [0:0]
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -j KUBE-XLB-7OZUAIGE4YF4IZGV
-A KUBE-XLB-7OZUAIGE4YF4IZGV -j KUBE-SVC-7OZUAIGE4YF4IZGV
COMMIT
*filter
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
COMMIT
";

/// Rules of upstream's ipvs mode, without those that need an ipset or a module.
const IPVS: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-SERVICES -j KUBE-NODE-PORT
-A KUBE-SERVICES -j KUBE-LOAD-BALANCER
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -j KUBE-MARK-MASQ
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT
-A FORWARD -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A OUTPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-OUT-FILTER
-A KUBE-PROXY-FIREWALL -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
COMMIT
";

fn machine(commands: &Commands, family: Family) -> Machine<'_> {
    let options = if family == Family::V4 { Options::default() } else { Options::v6() };
    Machine::new(commands, options)
}

// Upstream's TestCleanupLeftovers.
#[test]
fn cleanup_removes_our_rules_and_leaves_those_of_other_programs() {
    for variant in VARIANTS {
        for family in Family::BOTH {
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                commands.restore(family, FOREIGN);
                let before = Saved::read(&commands, family);
                let mut machine = machine(&commands, family);
                if family == Family::V4 {
                    machine.apply_lines(
                        "service ns/a 10.96.0.1 p:80@30080 LoadBalancer lb-ips=203.0.113.1 ranges=10.0.0.0/8",
                    );
                    machine.apply_lines("slice ns/a of a p:80 10.244.1.1@node-1");
                }
                machine.sync();
                let canary = format!("{} -t mangle -N KUBE-PROXY-CANARY", iptables(family));
                commands.run(&canary);
                remove_through(commands.programs(), family, Leftovers::All).unwrap();
                let mut after = Saved::read(&commands, family);
                // Our rule in kubelet's chain is the same as kubelet's own.
                after.forget("filter", "KUBE-FIREWALL");
                let mut before = before.clone();
                before.forget("filter", "KUBE-FIREWALL");
                after.assert_same(&before, &format!("{variant:?} {family}"));
                commands.run(&canary);
            });
        }
    }
}

#[test]
fn cleanup_removes_rules_of_old_releases() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            commands.restore(Family::V4, FORMER);
            remove_through(commands.programs(), Family::V4, Leftovers::All).unwrap();
            assert_eq!(Saved::read(&commands, Family::V4), Saved::default());
        });
    }
}

#[test]
fn cleanup_removes_rules_of_upstreams_ipvs_mode() {
    for variant in VARIANTS {
        for family in Family::BOTH {
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                commands.restore(family, FOREIGN);
                let before = Saved::read(&commands, family);
                commands.restore(family, IPVS);
                remove_through(commands.programs(), family, Leftovers::All).unwrap();
                Saved::read(&commands, family).assert_same(&before, &format!("{variant:?} {family}"));
            });
        }
    }
}

#[test]
fn cleanup_without_our_rules_changes_nothing() {
    let nowhere = tempfile::tempdir().unwrap();
    remove_through(Arc::new(Programs::of(nowhere.path())), Family::V4, Leftovers::All)
        .expect("there is no iptables, and so no rules");
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            commands.rewrite("iptables-restore", "exit 9");
            remove_through(commands.programs(), Family::V4, Leftovers::All).expect("nothing was restored");
        });
    }
}

#[test]
fn cleanup_goes_on_after_an_error_and_reports_it() {
    in_fresh_netns(|| {
        let commands = Commands::of(VARIANTS[0]);
        machine(&commands, Family::V4).sync();
        commands
            .rewrite("iptables-restore", "case \"$*\" in *'-T nat'*) echo no nat today >&2; exit 3;; esac");
        let errors = remove_through(commands.programs(), Family::V4, Leftovers::All).unwrap_err().to_string();
        assert!(errors.contains("no nat today") && !errors.contains(';'), "{errors}");
        let after = Saved::read(&commands, Family::V4);
        assert!(after.of("nat", "KUBE-SERVICES").is_some() && after.of("filter", "KUBE-SERVICES").is_none());
    });
}
