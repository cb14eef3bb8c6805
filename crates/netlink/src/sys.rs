//! The only `unsafe` code of the project: two system calls that `rustix` has no safe functions for.
#![allow(unsafe_code, reason = "socket options that rustix lacks, and unshare for tests; nowhere else")]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

unsafe extern "C" {
    fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
}

// include/linux/socket.h
const SOL_NETLINK: c_int = 270;

/// Enables a boolean option of a netlink socket.
pub(crate) fn enable_netlink_option(socket: impl AsFd, name: c_int) -> io::Result<()> {
    const LENGTH: u32 = 4;
    let on: [u8; LENGTH as usize] = 1_i32.to_ne_bytes();
    // SAFETY: `on` outlives the call and its size is the length we pass.
    let status = unsafe {
        setsockopt(socket.as_fd().as_raw_fd(), SOL_NETLINK, name, on.as_ptr().cast::<c_void>(), LENGTH)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves only the calling thread into a new network namespace.
#[cfg(feature = "testing")]
pub(crate) fn enter_new_network_namespace() -> io::Result<()> {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: NEWNET touches neither file descriptors nor memory maps.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}
