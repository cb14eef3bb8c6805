//! While one call in ten fails, reads return the truth or an error, commits are atomic, and the first attempt after the last
//! fault succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netlink::Family::Ipv4;
use netlink::faults::{Fault, Faults};
use netlink::nftables::{Batch, CommitError, Element, Field, Monitor, Notification, Set, Table, Value};
use netlink::testing::{in_fresh_netns, run};
use netlink::{accounting, conntrack, nftables, route};
use rustix::io::Errno;

const SEEDS: u64 = 400;
const RATE: usize = 100;
const TABLE: &str = "t";
const SET: &str = "s";

/// Calls `attempt`, which returns whether it succeeded, with the faults of many seeds. Prints the seed if it panics.
fn for_each_seed(seeds: u64, mut attempt: impl FnMut(&mut Faults) -> bool) {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}", self.0);
            }
        }
    }
    let mut injected = BTreeMap::new();
    let mut successes = 0;
    for seed in 0..seeds {
        let seed = Seed(seed);
        let mut faults = Faults::new(seed.0, RATE, &Fault::ALL);
        successes += usize::from(attempt(&mut faults));
        for (fault, count) in faults.injected() {
            *injected.entry(*fault).or_insert(0) += count;
        }
    }
    assert!(injected.len() > 5, "few kinds of faults were injected: {injected:?}");
    assert!(successes > 10, "almost nothing succeeds: {successes} of {seeds}");
}

fn marks(numbers: impl IntoIterator<Item = u32>) -> Vec<Element<'static>> {
    numbers.into_iter().map(|number| Element::new(number.to_be_bytes())).collect()
}

fn set_of(numbers: impl IntoIterator<Item = u32>) -> nftables::NftablesSocket {
    let mut batch = Batch::new(Ipv4, TABLE);
    batch.add_table(&Table::default());
    batch.add_set(&Set::new(SET, &[Field::Mark]));
    batch.add_elements(SET, marks(numbers));
    let mut connection = nftables::NftablesSocket::open().unwrap();
    connection.commit(&batch).unwrap();
    connection
}

fn number(key: &[u8]) -> u32 {
    u32::from_be_bytes(key.try_into().unwrap())
}

fn held(connection: &mut nftables::NftablesSocket) -> std::io::Result<BTreeSet<u32>> {
    let elements = connection.elements(Ipv4, TABLE, SET, |element| number(element.key))?;
    let count = elements.len();
    let set: BTreeSet<u32> = elements.into_iter().collect();
    assert_eq!(set.len(), count, "duplicate elements");
    Ok(set)
}

#[test]
fn a_dump_of_elements_is_complete_or_an_error() {
    in_fresh_netns(|| {
        // Enough for several datagrams.
        let all: BTreeSet<u32> = (0..3_000).collect();
        let mut connection = set_of(all.clone());
        for_each_seed(SEEDS, |faults| {
            let read = faults.during(|| held(&mut connection));
            if let Ok(read) = &read {
                assert_eq!(read.len(), all.len());
            }
            assert_eq!(held(&mut connection).expect("the first attempt without faults").len(), all.len());
            read.is_ok()
        });
    });
}

#[test]
fn a_lookup_by_key_is_correct_or_an_error() {
    in_fresh_netns(|| {
        let mut connection = set_of((0..200).filter(|number| number % 3 != 0));
        let mut ask = |faults: Option<&mut Faults>| {
            let keys = || (0..200_u32).map(|number| Value::from(number.to_be_bytes()));
            let mut ask = || connection.elements_at(Ipv4, TABLE, SET, keys(), |element| number(element.key));
            let found = match faults {
                Some(faults) => faults.during(ask),
                None => ask(),
            };
            let found = found.ok()?;
            for (at, found) in (0..).zip(&found) {
                assert_eq!(*found, (at % 3 != 0).then_some(at));
            }
            assert_eq!(found.len(), 200);
            Some(())
        };
        let mut quick = 0;
        for seed in 0..SEEDS {
            // Seventy requests: hardly any sequence of them is without a fault.
            let mut faults = Faults::new(seed, RATE / 20, &Fault::ALL);
            quick += usize::from(ask(Some(&mut faults)).is_some());
            ask(None).expect("the first attempt without faults");
        }
        assert!(quick > 10, "{quick} of {SEEDS}");
    });
}

#[test]
fn commits_are_atomic_and_success_means_committed() {
    in_fresh_netns(|| {
        let mut connection = set_of([]);
        let mut now = BTreeSet::new();
        let mut lost_answers = 0;
        for_each_seed(SEEDS, |faults| {
            let after: BTreeSet<u32> = if now.is_empty() { (0..100).collect() } else { BTreeSet::new() };
            let mut batch = Batch::new(Ipv4, TABLE);
            batch.delete_elements(SET, marks(now.difference(&after).copied()));
            batch.add_elements(SET, marks(after.difference(&now).copied()));
            // A rejected batch is an error, even if the answer is lost.
            let mut refused = Batch::new(Ipv4, TABLE);
            refused.add_elements(SET, marks(0..50));
            refused.delete_elements(SET, marks(1_000..1_050));
            faults.during(|| connection.commit(&refused)).expect_err("a missing element cannot be deleted");
            assert_eq!(held(&mut connection).unwrap(), now);

            let committed = faults.during(|| connection.commit(&batch));
            let held = held(&mut connection).expect("the first attempt without faults");
            assert!(held == now || held == after, "a partial commit");
            match &committed {
                Ok(()) => assert_eq!(held, after),
                Err(_) => lost_answers += usize::from(held == after),
            }
            now = held;
            committed.is_ok()
        });
        assert!(lost_answers > 0, "no answer to a commit was lost");
    });
}

#[test]
fn a_rejection_for_another_generation_is_stale_whatever_message_it_names() {
    in_fresh_netns(|| {
        let mut connection = set_of([]);
        let mut batch = Batch::new(Ipv4, TABLE);
        (0..20).for_each(|mark| batch.add_elements(SET, marks([mark])));
        for seed in 0..40 {
            let mut faults = Faults::new(seed, 1_000, &[Fault::Stale]);
            let error = faults.during(|| connection.commit(&batch)).unwrap_err();
            assert!(matches!(error, CommitError::Stale), "seed {seed}: {error:?}");
        }
        assert_eq!(held(&mut connection).unwrap(), BTreeSet::new());
    });
}

#[test]
fn every_commit_of_other_sockets_is_reported_or_lost() {
    in_fresh_netns(|| {
        let mut connection = set_of([]);
        let mut monitor = Monitor::open().unwrap();
        let mut number = 0;
        for_each_seed(SEEDS, |faults| {
            number += 1;
            let mut batch = Batch::new(Ipv4, TABLE);
            batch.add_elements(SET, marks([number]));
            connection.commit(&batch).unwrap();
            let mut was_seen = false;
            while !was_seen {
                let mut see = |event: Notification<'_>| {
                    was_seen |= matches!(event, Notification::Committed { .. } | Notification::Lost);
                };
                match faults.during(|| monitor.receive_within(Duration::from_secs(60), &mut see)) {
                    Ok(some) => assert!(some, "nothing within a minute"),
                    Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::NOMEM.raw_os_error())),
                }
            }
            // The remaining events of a commit of which some were lost.
            while monitor.receive_within(Duration::ZERO, |_| {}).unwrap() {}
            true
        });
    });
}

#[test]
fn a_spurious_wakeup_does_not_end_a_wait() {
    in_fresh_netns(|| {
        let mut monitor = Monitor::open().unwrap();
        let committer = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            set_of([1]);
        });
        let mut faults = Faults::new(1, 500, &[Fault::Woken, Fault::Interrupted]);
        let some = faults.during(|| monitor.receive_within(Duration::from_secs(60), |_| {})).unwrap();
        assert!(some, "the wait ended too early");
        committer.join().unwrap();
    });
}

#[test]
fn a_dump_of_addresses_is_complete_or_an_error() {
    in_fresh_netns(|| {
        run("ip link set lo up");
        (1..200).for_each(|host| _ = run(&format!("ip address add 192.0.2.{host}/32 dev lo")));
        let mut connection = route::RouteSocket::open().unwrap();
        let all = connection.addresses().unwrap();
        for_each_seed(SEEDS, |faults| {
            let read = faults.during(|| connection.addresses());
            if let Ok(read) = &read {
                assert_eq!(read.len(), all.len());
            }
            assert_eq!(connection.addresses().expect("the first attempt without faults"), all);
            read.is_ok()
        });
    });
}

#[test]
fn a_dump_of_flows_is_complete_and_deleted_flows_are_gone() {
    const UDP: u8 = 17;
    const ALL: conntrack::Filter =
        conntrack::Filter { protocol: UDP, destination: None, only_attempts: false };
    in_fresh_netns(|| {
        let flow = |port| {
            let at = |ip: [u8; 4], port| SocketAddr::new(IpAddr::from(ip), port);
            conntrack::Flow::untranslated(conntrack::Tuple {
                protocol: UDP,
                source: at([192, 0, 2, 1], port),
                destination: at([192, 0, 2, 2], 53),
            })
        };
        let mut connection = conntrack::ConntrackSocket::open().unwrap();
        let ports: BTreeSet<u16> = (1_000..1_600).collect();
        let make = |connection: &mut conntrack::ConntrackSocket| {
            connection.make(Ipv4, &ports.iter().map(|port| flow(*port)).collect::<Vec<_>>())
        };
        fn list(connection: &mut conntrack::ConntrackSocket) -> std::io::Result<BTreeSet<u16>> {
            let mut found = BTreeSet::new();
            let see = |flow: &conntrack::Flow| {
                found.insert(flow.original.source.port());
                false
            };
            connection.flows(Ipv4, ALL, see)?;
            Ok(found)
        }
        make(&mut connection).unwrap();
        // The kernel walks its whole table for each dump.
        for_each_seed(SEEDS / 8, |faults| {
            let listed = faults.during(|| list(&mut connection));
            if let Ok(listed) = &listed {
                assert_eq!(*listed, ports);
            }
            let some = connection
                .flows(Ipv4, ALL, |flow| flow.original.source.port() % 200 == 0)
                .expect("the first attempt without faults");
            assert_eq!(some.len(), 3);
            let ended = faults.during(|| connection.end(Ipv4, &some));
            let left = list(&mut connection).unwrap();
            assert!(
                ports.iter().all(|port| port % 200 == 0 || left.contains(port)),
                "other flows were deleted"
            );
            let left_of_some = left.iter().filter(|port| **port % 200 == 0).count();
            if let Ok(ended) = &ended {
                assert_eq!((*ended, left_of_some), (3, 0));
            }
            assert_eq!(connection.end(Ipv4, &some).expect("the first attempt without faults"), 3);
            assert_eq!(list(&mut connection).unwrap().len(), ports.len() - 3);
            connection.make(Ipv4, &[1_000, 1_200, 1_400].map(flow)).unwrap();
            listed.is_ok() && ended.is_ok()
        });
    });
}

#[test]
fn a_created_counter_exists() {
    in_fresh_netns(|| {
        let Ok(mut connection) = accounting::AccountingSocket::open() else { return };
        let mut number = 0;
        for_each_seed(SEEDS, |faults| {
            number += 1;
            let name = format!("counter-{number}");
            let ensured = faults.during(|| connection.ensure(&name));
            let found = connection.get(&name).expect("the first attempt without faults");
            assert!(ensured.is_err() || found.is_some());
            connection.ensure(&name).unwrap();
            ensured.is_ok()
        });
    });
}
