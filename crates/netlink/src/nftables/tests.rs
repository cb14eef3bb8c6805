//! Compares encodings with those of `nft`, states laws, and runs against the real kernel in network namespaces.

mod events;
mod golden;
mod kernel;
mod laws;
mod packets;
mod program;
mod reading;
mod refusals;

use crate::Family::{self, Ipv4, Ipv6};
use crate::nftables::{Batch, Connection, Set, Table};

const FAMILIES: [Family; 2] = [Ipv4, Ipv6];

#[track_caller]
fn commit(batch: &Batch) {
    Connection::open().unwrap().commit(batch).unwrap();
}

/// A connection to a table with these sets.
fn table_with(sets: &[Set<'_>]) -> Connection {
    let mut batch = Batch::new(Ipv4, program::TABLE);
    batch.add_table(&Table::default());
    for set in sets {
        batch.add_set(set);
    }
    let mut connection = Connection::open().unwrap();
    connection.commit(&batch).unwrap();
    connection
}
