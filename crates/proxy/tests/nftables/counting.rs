use super::*;

#[test]
fn connections_are_counted_while_another_connection_owns_the_table() {
    for family in Family::BOTH {
        in_fresh_netns(move || {
            let mut table = open(family);
            let routings = ["b", "a"].into_iter().zip(1..).map(|(it, n)| service(family, it, n, &[1, 2]));
            let first = table.plan.steps(everything(family, routings.collect()));
            assert!(first.is_none());
            assert_eq!(
                connections(family, &table.counter_owners()).unwrap(),
                [],
                "no sync has created the table"
            );
            table.sync(Changes::default()).unwrap();

            let counted = connections(family, &table.counter_owners()).unwrap();
            assert!(counted.iter().all(|it| it.count == 0), "{counted:?}");
            for service in ["a", "b"] {
                let its: Vec<_> = counted.iter().filter(|it| it.service == name(service)).collect();
                let frontends = its.iter().filter(|it| it.endpoint.is_none()).count();
                assert!(
                    frontends == 4 && its.len() > 4,
                    "a cluster IP, two external addresses and a node port, and their endpoints: {its:?}"
                );
            }
            let _not_committed = table.plan.steps(change(vec![(name("b"), None)]));
            let counted = connections(family, &table.counter_owners()).unwrap();
            assert!(!counted.is_empty() && counted.iter().all(|it| it.service == name("a")), "{counted:?}");
        });
    }
}
