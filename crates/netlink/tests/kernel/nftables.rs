//! Programs, elements and notifications of nftables.

mod acceptance;
mod events;
mod packets;
mod program;
mod reading;
mod refusals;

use netlink::Family::{self, Ipv4, Ipv6};
use netlink::nftables::{Batch, NftablesSocket, Set, Table};

const FAMILIES: [Family; 2] = [Ipv4, Ipv6];

#[track_caller]
fn commit(batch: &Batch) {
    NftablesSocket::open().unwrap().commit(batch).unwrap();
}

/// A connection to a table with these sets.
fn table_with(sets: &[Set<'_>]) -> NftablesSocket {
    let mut batch = Batch::new(Ipv4, program::TABLE);
    batch.add_table(&Table::default());
    for set in sets {
        batch.add_set(set);
    }
    let mut connection = NftablesSocket::open().unwrap();
    connection.commit(&batch).unwrap();
    connection
}
