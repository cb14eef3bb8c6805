use model::names::{Port, Protocol};

use super::*;

fn virtual_at(last: u8) -> VirtualAddress {
    let port = Port::from_api(80).unwrap();
    VirtualAddress { ip: [10, 96, 0, last].into(), protocol: Protocol::Tcp, port }
}

fn real(last: u8) -> RealServer {
    RealServer { ip: [10, 1, 0, last].into(), port: Port::from_api(80).unwrap() }
}

fn active(active: u32) -> ActualReal {
    ActualReal { active, ..ActualReal::default() }
}

#[test]
fn a_real_server_that_is_gone_already_leaves_the_list() {
    let (now, at) = (Instant::now(), virtual_at(1));
    let mut list = Termination::default();
    list.replace(at, [real(1), real(2)].into());
    assert_eq!(list.due(now), [at]);
    assert_eq!(list.settle(now, &[(at, [(real(1), active(3))].into())].into()), []);
    assert_eq!(list.of(&at).collect::<Vec<_>>(), [real(1)]);
}

#[test]
fn what_could_not_be_read_is_checked_again_in_a_minute() {
    let (now, at) = (Instant::now(), virtual_at(1));
    let mut list = Termination::default();
    list.replace(at, [real(1)].into());
    assert_eq!(list.settle(now, &RealCounts::new()), []);
    assert_eq!((list.due(now), list.next_check(now)), (vec![], Some(now + CHECK_INTERVAL)));
    assert_eq!(list.due(now + CHECK_INTERVAL), [at]);
}

#[test]
fn each_real_server_has_its_own_minute() {
    let (now, at) = (Instant::now(), virtual_at(1));
    let half = CHECK_INTERVAL / 2;
    let mut list = Termination::default();
    list.replace(at, [real(1)].into());
    let found = |first, second| {
        RealCounts::from([(at, [(real(1), active(first)), (real(2), active(second))].into())])
    };
    assert_eq!(list.settle(now, &found(1, 1)), []);
    list.replace(at, [real(1), real(2)].into());
    assert_eq!(list.settle(now + half, &found(0, 1)), [], "the first one is not due");
    assert_eq!(list.settle(now + 2 * half, &found(0, 0)), [ServerStep::DeleteReal(at, real(1))]);
    assert_eq!(list.settle(now + 3 * half, &found(0, 0)), [ServerStep::DeleteReal(at, real(2))]);
    assert_eq!(list, Termination::default());
}
