//! Named packet counters that rules update: what the `nfacct` command manages.

use std::io;

use rustix::io::Errno;

use crate::message::{Message, NLM_F_CREATE};
use crate::socket::{NetlinkProtocol, Request, Socket, is};

// include/uapi/linux/netfilter/nfnetlink.h
const NFNL_SUBSYS_ACCT: u8 = 7;
// include/uapi/linux/netfilter/nfnetlink_acct.h
const NFNL_MSG_ACCT_NEW: u8 = 0;
const NFNL_MSG_ACCT_GET: u8 = 1;
const NFACCT_NAME: u16 = 1;
const NFACCT_PKTS: u16 = 2;
const NFACCT_BYTES: u16 = 3;
const NAME_MAX: usize = 31;
/// `struct nfgenmsg`: the family is netlink itself, `AF_NETLINK`.
const FIXED: [u8; 4] = [16, 0, 0, 0];

const fn kind(message: u8) -> u16 {
    u16::from_be_bytes([NFNL_SUBSYS_ACCT, message])
}

/// The state of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountingCounter {
    pub name: String,
    pub packets: u64,
    pub bytes: u64,
}

impl AccountingCounter {
    /// `None` unless the message is a complete counter.
    fn from_wire(message: &Message<'_>) -> Option<Self> {
        let attributes = message.attributes(FIXED.len());
        Some(Self {
            name: attributes.find(NFACCT_NAME)?.str()?.to_owned(),
            packets: attributes.find(NFACCT_PKTS)?.be64()?,
            bytes: attributes.find(NFACCT_BYTES)?.be64()?,
        })
    }
}

/// Reads and creates the counters of one network namespace.
#[derive(Debug)]
pub struct AccountingSocket {
    socket: Socket,
}

impl AccountingSocket {
    /// Belongs to the network namespace of the calling thread. Fails if the kernel has no support for such counters.
    pub fn open() -> io::Result<Self> {
        let mut socket = Self { socket: Socket::open(NetlinkProtocol::Netfilter)? };
        socket.get("any")?;
        Ok(socket)
    }

    /// `None` if there is no counter of that name.
    pub fn get(&mut self, name: &str) -> io::Result<Option<AccountingCounter>> {
        let request = Request { kind: kind(NFNL_MSG_ACCT_GET), flags: 0, fixed: &FIXED };
        check_name(name)?;
        match self.socket.ask(request, |m| m.string(NFACCT_NAME, name), AccountingCounter::from_wire) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if is(&error, Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates the counter if it does not exist.
    pub fn ensure(&mut self, name: &str) -> io::Result<()> {
        if self.get(name)?.is_some() {
            return Ok(());
        }
        let request = Request { kind: kind(NFNL_MSG_ACCT_NEW), flags: NLM_F_CREATE, fixed: &FIXED };
        let added = self.socket.ask(request, |m| m.string(NFACCT_NAME, name), |_| None::<()>);
        match added {
            // Another program has created it in the meantime.
            Err(error) if is(&error, Errno::BUSY) || is(&error, Errno::EXIST) => Ok(()),
            added => added.map(drop),
        }
    }
}

/// The kernel would truncate a longer name, and with it address another counter.
fn check_name(name: &str) -> io::Result<()> {
    if (1..=NAME_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("counter name {name:?} is not 1 to {NAME_MAX} bytes"),
    ))
}

/// Runs every decoder of this module over one message; see [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn decode_all(message: &Message<'_>) {
    let _ = AccountingCounter::from_wire(message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::message::{Header, Messages};

    // Upstream's TestDecode.
    #[test]
    fn a_counter_needs_all_its_attributes_and_ignores_others() {
        let decode = |body: fn(&mut Buffer)| {
            let mut buffer = Buffer::new();
            buffer.message(Header { kind: kind(0), flags: 0, sequence: 0, port: 0 }, &FIXED, body);
            AccountingCounter::from_wire(&Messages::new(buffer.as_bytes()).next().unwrap())
        };
        let whole = decode(|m| {
            m.be32(7, 1);
            m.be64(NFACCT_BYTES, 600);
            m.string(NFACCT_NAME, "hits");
            m.be64(NFACCT_PKTS, 6);
        });
        assert_eq!(whole, Some(AccountingCounter { name: "hits".into(), packets: 6, bytes: 600 }));
        assert_eq!(decode(|m| m.string(NFACCT_NAME, "hits")), None);
        let short = decode(|m| {
            m.string(NFACCT_NAME, "hits");
            m.be32(NFACCT_PKTS, 6);
            m.be64(NFACCT_BYTES, 600);
        });
        assert_eq!(short, None);
    }
}
