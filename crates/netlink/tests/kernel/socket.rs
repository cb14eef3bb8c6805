//! Requests, and datagrams that are no answer.

use std::time::Duration;

use netlink::buffer::Buffer;
use netlink::message::Header;
use netlink::socket::{NetlinkProtocol, Request, Socket};
use netlink::testing::in_fresh_netns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;

const RTM_GETLINK: u16 = 18;

#[test]
fn a_rejected_request_returns_the_kernels_error() {
    in_fresh_netns(|| {
        let mut socket = Socket::open(NetlinkProtocol::Route).unwrap();
        let mut link = |index: i32| {
            let mut fixed = [0; 16];
            fixed[4..8].copy_from_slice(&index.to_ne_bytes());
            let request = Request { kind: RTM_GETLINK, flags: 0, fixed: &fixed };
            socket.ask(request, |_| {}, |_| Some(()))
        };
        assert_eq!(link(99).unwrap_err().raw_os_error(), Some(Errno::NODEV.raw_os_error()));
        assert_eq!(link(1).unwrap().len(), 1, "the loopback");
    });
}

#[test]
fn without_a_request_there_is_nothing_to_receive() {
    in_fresh_netns(|| {
        let mut socket = Socket::open(NetlinkProtocol::Netfilter).unwrap();
        assert!(socket.receive_within(Duration::ZERO).unwrap().is_none());
        assert!(socket.receive_within(Duration::from_millis(1)).unwrap().is_none());
    });
}

#[test]
fn datagrams_from_other_processes_are_skipped() {
    in_fresh_netns(|| {
        let mut victim = Socket::open(NetlinkProtocol::Route).unwrap();
        let other = Socket::open(NetlinkProtocol::Route).unwrap();
        let mut forged = Buffer::new();
        forged.message(Header { kind: 16, flags: 0, sequence: 0, port: 0 }, &[0; 16], |_| {});
        let to = SocketAddrNetlink::new(victim.port(), 0);
        rustix::net::sendto(&other, forged.as_bytes(), rustix::net::SendFlags::empty(), &to).unwrap();
        let deadline = Timespec { tv_sec: 10, tv_nsec: 0 };
        let mut waiting = [PollFd::new(&victim, PollFlags::IN)];
        assert_eq!(poll(&mut waiting, Some(&deadline)).unwrap(), 1, "the datagram arrived");
        assert!(victim.receive_within(Duration::ZERO).unwrap().is_none());
    });
}
