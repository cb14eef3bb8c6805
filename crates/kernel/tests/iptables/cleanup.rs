//! Nothing of ours stays, and everything of others does.

use std::sync::Arc;

use kernel::iptables::{Programs, remove_through};
use model::address::Family;
use netlink::testing::in_fresh_netns;

use crate::commands::{Commands, VARIANTS, iptables};
use crate::machine::Machine;
use crate::options::Options;
use crate::saved::Saved;

/// Rules of others, of the kubelet, and of releases long gone.
const OTHERS: &str = "*nat
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

fn machine(commands: &Commands, family: Family) -> Machine<'_> {
    let options = if family == Family::V4 { Options::default() } else { Options::v6() };
    Machine::new(commands, options)
}

// Upstream's TestCleanupLeftovers.
#[test]
fn what_we_wrote_goes_and_what_others_wrote_stays() {
    for variant in VARIANTS {
        for family in Family::BOTH {
            in_fresh_netns(move || {
                let commands = Commands::of(variant);
                commands.restore(family, OTHERS);
                let before = Saved::read(&commands, family);
                let mut machine = machine(&commands, family);
                if family == Family::V4 {
                    machine.hear(
                        "service ns/a 10.96.0.1 p:80@30080 LoadBalancer lb-ips=203.0.113.1 ranges=10.0.0.0/8",
                    );
                    machine.hear("slice ns/a of a p:80 10.244.1.1@node-1");
                }
                machine.sync();
                let canary = format!("{} -t mangle -N KUBE-PROXY-CANARY", iptables(family));
                commands.run(&canary);
                remove_through(commands.programs(), family).unwrap();
                let mut after = Saved::read(&commands, family);
                // The rule in the kubelet's chain is the same as the kubelet's own.
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
fn what_releases_long_gone_left_goes_too() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            commands.restore(Family::V4, FORMER);
            remove_through(commands.programs(), Family::V4).unwrap();
            assert_eq!(Saved::read(&commands, Family::V4), Saved::default());
        });
    }
}

#[test]
fn where_there_is_nothing_nothing_happens() {
    let nowhere = tempfile::tempdir().unwrap();
    remove_through(Arc::new(Programs::of(nowhere.path())), Family::V4).expect("no iptables, no leftovers");
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            commands.rewrite("iptables-restore", "exit 9");
            remove_through(commands.programs(), Family::V4).expect("nothing was restored");
        });
    }
}

#[test]
fn what_cannot_be_removed_is_told_and_the_rest_goes() {
    in_fresh_netns(|| {
        let commands = Commands::of(VARIANTS[0]);
        machine(&commands, Family::V4).sync();
        commands
            .rewrite("iptables-restore", "case \"$*\" in *'-T nat'*) echo no nat today >&2; exit 3;; esac");
        let errors = remove_through(commands.programs(), Family::V4).unwrap_err().to_string();
        assert!(errors.contains("no nat today") && !errors.contains(';'), "{errors}");
        let after = Saved::read(&commands, Family::V4);
        assert!(after.of("nat", "KUBE-SERVICES").is_some() && after.of("filter", "KUBE-SERVICES").is_none());
    });
}
