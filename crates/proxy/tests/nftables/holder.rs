use kernel::holder::Holder;

use super::*;

#[test]
fn the_holder_of_a_netfilter_port_is_its_process() {
    in_fresh_netns(|| {
        // Only the first socket of a process can have the process id as its port.
        let [a, b] = [(); 2].map(|()| NftablesSocket::open().unwrap());
        for port in [a.port(), b.port()] {
            assert_eq!(Holder::of_netfilter_port(port).unwrap().pid, std::process::id(), "{port}");
        }
        drop(a);
        assert!(Holder::of_netfilter_port(b.port()).is_some());
        assert_eq!(Holder::of_netfilter_port(0x7fff_1234), None);
    });
}
