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

            let counted = connections(family, &table.owners()).unwrap();
            assert!(counted.iter().all(|it| it.count == 0), "{counted:?}");
            for service in ["a", "b"] {
                let its: Vec<_> = counted.iter().filter(|it| it.service == name(service)).collect();
                let frontends = its.iter().filter(|it| it.endpoint.is_none()).count();
                assert!(
                    frontends == 4 && its.len() > 4,
                    "a cluster IP, two others and a node port, and their endpoints: {its:?}"
                );
            }
            table.plan.accept(vec![(name("b"), None)]);
            let counted = connections(family, &table.owners()).unwrap();
            assert!(!counted.is_empty() && counted.iter().all(|it| it.service == name("a")), "{counted:?}");
        });
    }
}
