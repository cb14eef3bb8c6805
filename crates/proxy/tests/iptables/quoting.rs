//! Names that no API server accepts do not become rules, and the real commands accept the text.

use kernel::iptables::RulesInspection;
use model::event::Event;
use netlink::testing::in_fresh_netns;

use crate::commands::{Commands, VARIANTS};
use crate::machine::{Machine, snapshot};
use crate::options::{DetectLocal, Options};

const NAMES: [&str; 7] = [
    "a\nCOMMIT\n*filter\n-A INPUT -j DROP\nCOMMIT\n*nat",
    "a\" -j ACCEPT -m comment --comment \"b",
    "a\\",
    "it's",
    "a\0b\tc\rd\x1b[31m",
    "é\u{85}\u{2028} -j",
    "",
];

const LINES: [&str; 2] = [
    "service ns/s 10.96.0.10 p:80@30080 LoadBalancer lb-ips=203.0.113.5 ranges=203.0.113.0/24 external-ips=198.51.100.1 external-policy=Local health=32100 affinity=60",
    "slice ns/s of s p:8080 10.244.1.5@node-1 10.244.2.6@node-2",
];

fn apply(machine: &mut Machine<'_>, at: usize, name: &str) {
    let service = format!("s{at}{name}");
    for line in LINES {
        let mut event = testkit::event(line);
        if let Event::ServiceApplied(object) = &mut event {
            object.metadata.name = service.as_str().into();
            object.spec.cluster_ip = format!("10.96.0.{}", at + 1);
            object.spec.ports[0].name = format!("p{name}");
            object.spec.ports[0].node_port = i64::try_from(30_000 + at).ok();
        } else if let Event::SliceApplied(object) = &mut event {
            object.metadata.name = service.as_str().into();
            object.metadata.labels.service_name = Some(service.clone());
            object.ports[0].name = Some(format!("p{name}"));
        }
        machine.apply(&event);
    }
}

#[test]
fn names_cannot_break_out_of_a_restore() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            // Names of interfaces may contain quotes and backslashes.
            let detect_local =
                DetectLocal { bridge_interface: Some("br\"\\0".into()), ..DetectLocal::default() };
            let mut machine = Machine::new(&commands, Options { detect_local, ..Options::default() });
            let long = "long ".repeat(3_000);
            for (at, name) in NAMES.into_iter().chain([&*long]).enumerate() {
                apply(&mut machine, at, name);
            }
            machine.sync();
            let filter = commands.run("iptables-save -t filter");
            assert!(!filter.contains("\n-A INPUT -j DROP"), "{variant:?}: {filter}");
            let nat = commands.run("iptables-save -t nat");
            for name in ["s0a?COMMIT?*filter?-A INPUT -j DROP?COMMIT?*nat", r"s2a\\:pa\\", r"s3it\'s:pit\'s"]
            {
                assert!(nat.contains(name), "{variant:?}: {name} is not in {nat}");
            }
        });
    }
}

#[test]
fn names_with_special_characters_are_read_back_as_written() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            let mut machine = Machine::new(&commands, Options::default());
            for (at, name) in NAMES.into_iter().enumerate() {
                apply(&mut machine, at, name);
            }
            machine.sync();
            let differences =
                RulesInspection::new(snapshot(&machine.rules)).compare_all().unwrap().differences;
            let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
            assert_eq!(differences, [""; 0], "{variant:?}");
        });
    }
}

#[test]
fn a_stale_chain_with_special_characters_in_its_name_is_removed() {
    for variant in VARIANTS {
        in_fresh_netns(move || {
            let commands = Commands::of(variant);
            commands.run("iptables -t nat -N KUBE-SVC-a\"b\\");
            let mut machine = Machine::new(&commands, Options::default());
            apply(&mut machine, 0, "");
            machine.sync();
            let nat = commands.run("iptables-save -t nat");
            assert!(!nat.contains("KUBE-SVC-a"), "{variant:?}: {nat}");
        });
    }
}
