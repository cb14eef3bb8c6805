//! ipset: the names of sets, and destroying sets. What `ipset list -name` and `ipset destroy` do.

use std::io;

use rustix::io::Errno;

use crate::message::Message;
use crate::socket::{NetlinkProtocol, Request, Socket, is};

// include/uapi/linux/netfilter/nfnetlink.h
const NFNL_SUBSYS_IPSET: u8 = 6;
// include/uapi/linux/netfilter/ipset/ip_set.h
const IPSET_CMD_DESTROY: u8 = 3;
const IPSET_CMD_LIST: u8 = 7;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_FLAGS: u16 = 6;
const IPSET_FLAG_LIST_SETNAME: u32 = 1 << 1;
const IPSET_ERR_BUSY: i32 = 4100;
/// The oldest version, which every kernel accepts for these two commands.
const IPSET_PROTOCOL_MIN: u8 = 6;
/// `struct nfgenmsg`: the `ipset` command sends `AF_INET` for sets of any family.
const FIXED: [u8; 4] = [2, 0, 0, 0];

const fn kind(message: u8) -> u16 {
    u16::from_be_bytes([NFNL_SUBSYS_IPSET, message])
}

/// Lists and destroys the sets of one network namespace.
#[derive(Debug)]
pub struct IpsetSocket {
    socket: Socket,
}

impl IpsetSocket {
    /// Belongs to the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(NetlinkProtocol::Netfilter)? })
    }

    /// The names of all sets, in the kernel's order. Loads the kernel's module if needed; none if there is no such module.
    pub fn names(&mut self) -> io::Result<Vec<String>> {
        let request = Request { kind: kind(IPSET_CMD_LIST), flags: 0, fixed: &FIXED };
        let listed = self.socket.dump(
            request,
            |m| {
                m.u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
                m.be32(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_SETNAME);
            },
            name_from_wire,
        );
        match listed {
            // The kernel has no such subsystem.
            Err(error) if is(&error, Errno::INVAL) || is(&error, Errno::OPNOTSUPP) => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// Destroys sets, and returns the results in their order. [`io::ErrorKind::ResourceBusy`] if a rule uses the set.
    pub fn destroy(&mut self, names: &[&str]) -> io::Result<Vec<io::Result<()>>> {
        let request = Request { kind: kind(IPSET_CMD_DESTROY), flags: 0, fixed: &FIXED };
        let results = self.socket.ask_each(
            names,
            |_| request,
            |name, m| {
                m.u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
                m.string(IPSET_ATTR_SETNAME, name);
            },
        )?;
        let explain = |error: io::Error| match error.raw_os_error() {
            Some(IPSET_ERR_BUSY) => io::Error::new(io::ErrorKind::ResourceBusy, "a rule uses the set"),
            _ => error,
        };
        Ok(results.into_iter().map(|result| result.map_err(explain)).collect())
    }
}

/// `None` unless the message is a set.
fn name_from_wire(message: &Message<'_>) -> Option<String> {
    if message.header.kind != kind(IPSET_CMD_LIST) {
        return None;
    }
    Some(message.attributes(FIXED.len()).find(IPSET_ATTR_SETNAME)?.str()?.to_owned())
}

/// Runs every decoder of this module over one message; see [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn decode_all(message: &Message<'_>) {
    let _ = name_from_wire(message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Messages;

    #[test]
    fn names_of_sets_are_decoded() {
        // An answer of Linux 6.12.
        let answer = include_bytes!("../../../fuzz/corpus/netlink-ipvs/set-names");
        let names: Vec<String> =
            Messages::new(answer).filter_map(|message| name_from_wire(&message)).collect();
        if cfg!(target_endian = "little") {
            assert_eq!(names, ["KUBE-CLUSTER-IP", "KUBE-6-IPVS-IPS"]);
        }
    }
}
