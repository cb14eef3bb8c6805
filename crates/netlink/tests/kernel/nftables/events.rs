//! Notifications of commits.

use std::time::Duration;

use netlink::Family::{Ipv4, Ipv6};
use netlink::nftables::*;
use netlink::testing::{in_fresh_netns, run};

use super::program::*;
use super::table_with;

#[derive(Debug, Default)]
struct Seen {
    events: Vec<String>,
    committed: Vec<(u32, String)>,
}

impl Seen {
    /// Everything up to and including the next commit.
    fn next_commit(monitor: &mut Monitor) -> Self {
        let mut seen = Self::default();
        while seen.committed.is_empty() {
            let more = monitor.receive_within(Duration::from_secs(10), |event| match event {
                Notification::Committed { generation, port } => {
                    seen.committed.push((port, generation.process))
                }
                Notification::Added { object, family, table, .. } => {
                    seen.events.push(format!("added {object:?} {family} {table}"));
                }
                Notification::Deleted { object, family, table, .. } => {
                    seen.events.push(format!("deleted {object:?} {family} {table}"));
                }
                Notification::Lost => panic!("events were lost"),
            });
            assert!(more.unwrap(), "no commit was reported: {seen:?}");
        }
        seen
    }
}

#[test]
fn commits_are_reported_with_the_port_of_their_socket() {
    in_fresh_netns(|| {
        let mut monitor = Monitor::open().unwrap();
        let mut connection = NftablesSocket::open().unwrap();
        let mut batch = Batch::new(Ipv6, TABLE);
        batch.add_table(&Table::default());
        batch.add_set(&Set::new("marks", &[Field::Mark]));
        batch.add_elements("marks", [Element::new([1, 2, 3, 4])]);
        connection.commit(&batch).unwrap();

        let seen = Seen::next_commit(&mut monitor);
        assert_eq!(
            seen.events,
            ["added Table ip6 kube-proxy", "added Set ip6 kube-proxy", "added Elements ip6 kube-proxy",]
        );
        assert_eq!(seen.committed[0].0, connection.port(), "our own commit");

        run("nft delete table ip6 kube-proxy");
        let seen = Seen::next_commit(&mut monitor);
        assert!(seen.events.contains(&"deleted Table ip6 kube-proxy".to_owned()), "{seen:?}");
        assert_ne!(seen.committed[0].0, connection.port(), "the commit of another process");
        assert_eq!(seen.committed[0].1, "nft");
        assert!(!monitor.receive_within(Duration::ZERO, |_| ()).unwrap(), "further events");
    });
}

#[test]
fn a_monitor_reports_lost_events() {
    in_fresh_netns(|| {
        let mut monitor = Monitor::open().unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&monitor, 0).unwrap(); // the least there is
        let mut connection = table_with(&[Set::new("s", &[Field::Mark])]);
        let mut batch = Batch::new(Ipv4, TABLE);
        batch.add_elements("s", (0..5_000_u32).map(|number| Element::new(number.to_ne_bytes())));
        connection.commit(&batch).unwrap();
        let mut lost = false;
        while monitor.receive_within(Duration::ZERO, |event| lost |= event == Notification::Lost).unwrap() {}
        assert!(lost);
    });
}
