//! Every row of the packet matrix.

use tests::cases;
use tests::matrix::{Case, prove};
use tests::node::Node;

#[test]
fn packets_meet_the_fate_that_the_matrix_says() {
    let mut cases = cases::all();
    cases.extend(cases::node_ports_not_on_loopback());
    // To look at a few of them more closely.
    if let Ok(wanted) = std::env::var("CASE") {
        cases.retain(|case| case.name.contains(&wanted));
    }
    let surprises =
        prove(&cases, &|namespace, family, options| Box::new(Node::new(namespace, family, options)));
    let probes: usize = cases.iter().map(Case::probes).sum();
    let (cases, count) = (cases.len(), surprises.len());
    println!("{cases} cases, {} probes", probes * 2);
    assert!(surprises.is_empty(), "{count} surprises in {cases} cases:\n{}", surprises.join("\n"));
}
