//! Every row of the packet matrix, in every mode.

use kernel::iptables::Variant;
use tests::cases;
use tests::chains::IptablesNode;
use tests::matrix::{Case, Mode, StartProxy, Subject, prove};
use tests::node::NftablesNode;
use tests::servers::IpvsNode;

#[test]
fn nftables_gives_packets_the_fate_that_the_matrix_says() {
    check(Mode::Nftables, &|namespace, family, options| {
        Box::new(NftablesNode::new(namespace, family, options))
    });
}

#[test]
fn iptables_over_nft_gives_packets_the_fate_that_the_matrix_says() {
    check(Mode::Iptables, &|namespace, family, options| {
        Box::new(IptablesNode::new(namespace, family, options, Variant::Nft))
    });
}

#[test]
fn legacy_iptables_gives_packets_the_fate_that_the_matrix_says() {
    check(Mode::Iptables, &|namespace, family, options| {
        Box::new(IptablesNode::new(namespace, family, options, Variant::Legacy))
    });
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_gives_packets_the_fate_that_the_matrix_says() {
    check(Mode::Ipvs, &|namespace, family, options| Box::new(IpvsNode::new(namespace, family, options)));
}

fn check(mode: Mode, start: StartProxy<'_>) {
    let mut cases = cases::of(mode);
    // Only a few of them: parts of names, separated by `|`.
    if let Ok(names) = std::env::var("CASE") {
        cases.retain(|case| names.split('|').any(|name| case.name.contains(name)));
    }
    let surprises = prove(&cases, Subject { mode, start });
    let probes: usize = cases.iter().map(Case::probes).sum();
    let (cases, count) = (cases.len(), surprises.len());
    println!("{cases} cases, {probes} probes");
    assert!(surprises.is_empty(), "{count} surprises in {cases} cases:\n{}", surprises.join("\n"));
}
