//! Any process may compare the table with the desired one, while another process owns it.

use super::*;
use kernel::inspection::DesiredState;
use plan::difference::DifferenceKind;
use plan::served::KernelComparison;

fn all(family: Family) -> Changes {
    all_with(family, "affinity=10800")
}

fn all_with(family: Family, fields: &str) -> Changes {
    let routings = vec![
        service_with(family, "a", 1, &[1, 2, 3], fields),
        service_with(family, "b", 2, &[], fields),
        service_with(family, "c", 3, &[1], fields),
    ];
    everything(family, routings)
}

/// What another process with the same objects finds.
fn compare_in_another_process(family: Family, changes: Changes) -> KernelComparison {
    let Changes { routings, service_cidrs, .. } = changes;
    let service_cidrs = service_cidrs.unwrap();
    compare(TableSnapshot::new(program_settings(family), routings, service_cidrs, node_port_ips(family)))
}

fn compare(desired: TableSnapshot) -> KernelComparison {
    TableInspection::open(desired).unwrap().compare_all().unwrap()
}

fn texts(comparison: &KernelComparison) -> Vec<String> {
    let text = |(difference, service): (&_, Option<ServicePortName>)| match service {
        Some(service) => format!("{difference} ({service})"),
        None => format!("{difference}"),
    };
    comparison.with_owners().map(text).collect()
}

#[test]
fn there_are_no_differences_after_a_sync() {
    for family in Family::BOTH {
        in_fresh_netns(move || {
            let mut table = open(family);
            table.sync(all(family)).unwrap();
            // After these syncs, slots are not in the order of addresses.
            table.sync(change(vec![service(family, "a", 1, &[2, 3])])).unwrap();
            table.sync(change(vec![service(family, "a", 1, &[1, 2, 3])])).unwrap();
            let before = generation();
            let comparison = compare(snapshot(&table));
            assert_eq!(texts(&comparison), [""; 0]);
            assert!(comparison.objects > 100, "{}", comparison.objects);
            let mut inspection = DesiredState::Nftables(Box::new(snapshot(&table))).open().unwrap();
            for part in inspection.parts() {
                assert_eq!(inspection.compare(part).unwrap(), [], "{part}");
            }
            assert_eq!(texts(&compare_in_another_process(family, all(family))), [""; 0]);
            assert_eq!(generation(), before, "nothing was written");
        });
    }
}

#[test]
fn a_replaced_endpoint_is_the_only_difference() {
    in_fresh_netns(|| {
        let family = Family::V4;
        let mut table = open(family);
        table.sync(all(family)).unwrap();
        let mut edited = all(family);
        edited.routings[0] = service(family, "a", 1, &[1, 2, 4]);
        let found = compare_in_another_process(family, edited);
        let changes = found.changes();
        let [change] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(change.service.as_ref().unwrap().to_string(), "ns/a:http");
        let facts = change.facts.iter().map(|fact| format!("{} {}", fact.kind, fact.text));
        let facts: Vec<String> = facts.collect();
        assert_eq!(facts, ["unexpected endpoint 10.244.1.3:8080", "missing endpoint 10.244.1.4:8080"]);
        let text = texts(&found).join("\n");
        assert!(
            text.contains("missing: element endpoints { 0x00000002 . 5 : 10.244.1.4 . 8080 } (ns/a:http)"),
            "{text}"
        );
    });
}

#[test]
fn differences_name_the_object() {
    for (damage, want) in [
        (
            "delete element ip kube-proxy cluster-ips { 10.96.1.1 }",
            &["missing: element cluster-ips { 10.96.1.1 } (ns/a:http)"][..],
        ),
        (
            "add element ip kube-proxy cluster-ips { 10.96.9.9 }",
            &["unexpected: element cluster-ips { 10.96.9.9 }"],
        ),
        (
            "delete element ip kube-proxy allowed-sources { 10.51.1.1 . tcp . 80 . 192.0.2.0/24 }",
            &["missing: element allowed-sources { 10.51.1.1 . tcp . 80 . 192.0.2.0/24 } (ns/a:http)"],
        ),
        (
            "flush set ip kube-proxy service-cidrs",
            &["missing: element service-cidrs { 10.96.0.0-10.112.255.255 }"],
        ),
        ("flush set ip kube-proxy nodeport-ips", &["missing: element nodeport-ips { 192.0.2.1 }"]),
        ("insert rule ip kube-proxy services drop", &["unexpected: rule services handle "]),
        (
            "flush chain ip kube-proxy firewall-check",
            &[
                "missing: rule firewall-check ip daddr . meta l4proto . th dport @firewalled ip daddr . meta l4proto . th dport . ip saddr != @allowed-sources drop",
            ],
        ),
        ("delete chain ip kube-proxy nat-postrouting-learn", &["missing: chain nat-postrouting-learn"]),
        // Entries of clients are not compared.
        ("add element ip kube-proxy affinity { 0x00000002 . 192.0.2.9 : tcp . 10.244.1.1 . 8080 }", &[]),
        // Has no effect, since no rule leads there.
        ("add chain ip kube-proxy mine", &[]),
    ] {
        in_fresh_netns(move || {
            let mut table = shared_table(Family::V4);
            table.sync(all(Family::V4)).unwrap();
            run(&format!("nft {damage}"));
            let found = texts(&compare(snapshot(&table)));
            assert_eq!(found.len(), want.len(), "{damage}: {found:?}");
            for (found, want) in found.iter().zip(want) {
                assert!(found.starts_with(want), "{damage}: {found}");
            }
        });
    }
}

#[test]
fn without_a_table_the_table_and_all_its_elements_are_missing() {
    in_fresh_netns(|| {
        let found = compare_in_another_process(Family::V4, all(Family::V4));
        let first = &found.differences[0];
        assert!(first.to_string().starts_with("missing: table ip kube-proxy ("), "{first}");
        let mut table = open(Family::V4);
        let outcome = table.sync(all(Family::V4)).unwrap();
        let elements = found.with_owners().filter(|(_, service)| service.is_some()).count();
        assert_eq!(elements, outcome.added, "every element has an owner");
        assert!(found.differences.iter().all(|it| it.kind == DifferenceKind::Missing));
    });
}

#[test]
fn a_new_timeout_needs_two_chains() {
    in_fresh_netns(|| {
        let mut table = open(Family::V4);
        table.sync(all(Family::V4)).unwrap();
        let mut edited = all(Family::V4);
        edited.routings[2] = service_with(Family::V4, "c", 3, &[1], "affinity=60");
        let text = texts(&compare_in_another_process(Family::V4, edited)).join("\n");
        for line in [
            "missing: chain learn-60 (ns/c:http)\n",
            "missing: chain nodeport-learn-60 (ns/c:http)\n",
            "missing: element affinity-timeouts { 0x0000003c : goto learn-60 } (ns/c:http)",
            "unexpected: element sticky { 10.96.3.1 . tcp . 80 : 0x00000006 . 0x00000006 . 0x00002a30 } (ns/c:http)",
            "missing: element sticky { 10.96.3.1 . tcp . 80 : 0x00000006 . 0x00000006 . 0x0000003c } (ns/c:http)",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    });
}

#[test]
fn objects_of_affinity_are_unexpected_without_it() {
    in_fresh_netns(|| {
        let mut table = open(Family::V4);
        table.sync(all(Family::V4)).unwrap();
        let found = compare_in_another_process(Family::V4, all_with(Family::V4, "")).differences;
        assert!(!found.is_empty());
        // Without affinity, the frontends have other first chains.
        for it in found.iter().filter(|it| !it.text().contains("lists {")) {
            let parts = [
                "chain learn-10800",
                "chain nodeport-learn-10800",
                "sticky {",
                "sticky-endpoints {",
                "-timeouts {",
            ];
            let is_of_affinity = parts.iter().any(|part| it.text().contains(part));
            assert!(it.kind == DifferenceKind::Unexpected && is_of_affinity, "{it}");
        }
    });
}

#[test]
fn a_service_without_endpoints_has_no_objects_of_affinity() {
    in_fresh_netns(|| {
        let mut table = open(Family::V4);
        let without_endpoints = || everything(Family::V4, vec![service(Family::V4, "a", 1, &[])]);
        table.sync(without_endpoints()).unwrap();
        assert_eq!(texts(&compare(snapshot(&table))), [""; 0]);
        assert_eq!(texts(&compare_in_another_process(Family::V4, without_endpoints())), [""; 0]);
    });
}
