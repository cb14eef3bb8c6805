use super::*;

#[test]
fn connections_are_counted_beside_the_one_that_has_the_table() {
    for family in Family::BOTH {
        in_fresh_netns(move || {
            let mut table = Table::open(settings(family)).unwrap();
            let routings =
                ["b", "a"].into_iter().zip(1..).map(|(it, n)| (name(it), Some(routing(family, n, &[1, 2]))));
            table.plan.accept(routings.collect());
            assert_eq!(connections(family, &table.owners()).unwrap(), [], "no pass has made the table");
            table.sync(node_data(family)).unwrap();
            assert_eq!(table.owners().len(), 8, "a cluster IP, two others and a node port each");

            let counted = connections(family, &table.owners()).unwrap();
            assert!(counted.iter().all(|it| it.count == 0), "{counted:?}");
            for service in ["a", "b"] {
                let its: Vec<_> = counted.iter().filter(|it| it.service == name(service)).collect();
                let frontends = its.iter().filter(|it| it.endpoint.is_none()).count();
                assert!(frontends == 4 && its.len() > 4, "{its:?}");
            }
            let mut owners = table.owners();
            owners.retain(|(_, owner)| *owner == name("a"));
            let counted = connections(family, &owners).unwrap();
            assert!(!counted.is_empty() && counted.iter().all(|it| it.service == name("a")), "{counted:?}");
        });
    }
}
