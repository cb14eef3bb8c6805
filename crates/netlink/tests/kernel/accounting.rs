//! Creates and reads counters.

use std::io;

use netlink::accounting::{AccountingCounter, AccountingSocket};
use netlink::testing::in_fresh_netns;

// Upstream's TestRunner_Add, TestRunner_Get and TestRunner_Ensure, with the real kernel.
#[test]
fn a_counter_is_created_once_and_found_again() {
    in_fresh_netns(|| {
        let Ok(mut connection) = AccountingSocket::open() else { return };
        assert_eq!(connection.get("hits").unwrap(), None);
        connection.ensure("hits").unwrap();
        let counter = connection.get("hits").unwrap().unwrap();
        assert_eq!(counter, AccountingCounter { name: "hits".into(), packets: 0, bytes: 0 });
        connection.ensure("hits").unwrap();
    });
}

#[test]
fn names_that_the_kernel_would_truncate_are_rejected() {
    in_fresh_netns(|| {
        let Ok(mut connection) = AccountingSocket::open() else { return };
        for name in ["", &"x".repeat(32)] {
            assert_eq!(connection.ensure(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
        connection.ensure(&"x".repeat(31)).unwrap();
    });
}
