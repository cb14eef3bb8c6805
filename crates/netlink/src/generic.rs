//! Generic netlink: each subsystem has a name, and a number that the kernel assigns, which is the kind of its messages.

use std::io;

use crate::message::Message;
use crate::socket::{Request, Socket};

// include/uapi/linux/genetlink.h
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: [u8; FIXED] = fixed(3);
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const VERSION: u8 = 1;

/// The size of `struct genlmsghdr`.
pub(crate) const FIXED: usize = 4;

/// The fixed part of a message: the command and the version of its subsystem, which is 1 for all that we use.
pub(crate) const fn fixed(command: u8) -> [u8; FIXED] {
    [command, VERSION, 0, 0]
}

/// The kind of the messages of a subsystem. The kernel loads its module if needed. `ENOENT` if the kernel does not have it.
pub(crate) fn resolve(socket: &mut Socket, name: &str) -> io::Result<u16> {
    let request = Request { kind: GENL_ID_CTRL, flags: 0, fixed: &CTRL_CMD_GETFAMILY };
    let found = socket.ask(request, |m| m.string(CTRL_ATTR_FAMILY_NAME, name), family_id)?;
    found.first().copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

pub(crate) fn family_id(message: &Message<'_>) -> Option<u16> {
    message.attributes(FIXED).find(CTRL_ATTR_FAMILY_ID)?.ne16()
}
