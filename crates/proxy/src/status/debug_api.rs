//! The server's side of the debug API, for the subcommands of this program. Only clients on this node are served: the responses
//! reveal more about the cluster than metrics do, and take time of the family workers.

use std::sync::Arc;

use anyhow::Context as _;
use http::StatusCode;
use model::address::Family;
use serde::Serialize;

use crate::connections::{ConnectionCounter, ConnectionsPage};
use crate::debug_api::findings::Findings;
use crate::debug_api::packet_query::PacketQuery;
use crate::debug_api::{CONNECTIONS, EXPLAIN, PREFIX, VERIFY};
use crate::family::{Families, FamilyHandle};
use crate::http::response::{JSON, nosniff, plain, response};
use crate::http::{Local, Reply, ServerRequest, ServerResponse};

/// What the debug API reads.
#[derive(Clone, Copy, Debug)]
pub struct DebugContext<'a> {
    pub node_name: &'a str,
    pub mode: &'static str,
    pub families: &'a Families,
    pub connection_counter: &'a Arc<ConnectionCounter>,
}

/// The reply of the debug API; `None` if the request is not for it.
pub fn reply(request: &ServerRequest, context: DebugContext<'_>) -> Option<Reply> {
    let path = request.uri().path().strip_prefix(PREFIX)?.strip_prefix('/')?;
    if request.extensions().get::<Local>().is_none() {
        let refusal = "only served to clients on this node that use its address or localhost, and no proxy\n";
        let refusal = plain(StatusCode::FORBIDDEN, refusal);
        return Some(Reply::Now(refusal));
    }
    match path {
        CONNECTIONS => Some(connections(context)),
        EXPLAIN => Some(explain(request.uri().query().unwrap_or_default(), context.families)),
        VERIFY => Some(compare(context.families)),
        _ => None,
    }
}

/// The number of new connections.
fn connections(DebugContext { node_name, mode, connection_counter, .. }: DebugContext<'_>) -> Reply {
    if mode == "iptables" {
        let refusal = "new connections are counted in nftables and ipvs mode, and this is iptables mode\n";
        return Reply::Now(plain(StatusCode::NOT_IMPLEMENTED, refusal));
    }
    let (node_name, connection_counter) = (node_name.to_owned(), connection_counter.clone());
    long(move || {
        let count = connection_counter.count();
        let mut all = Vec::new();
        for family in count.families.keys() {
            let counted = count.of(*family).with_context(|| format!("counting {family} connections"))?;
            all.extend(counted.iter().cloned().map(|one| (one, *family == Family::V6)));
        }
        let page = ConnectionsPage::new(&node_name, mode, all);
        Ok(ConnectionsPage { counted_at: count.at, good_for: count.good_for(), ..page })
    })
}

/// What would happen to a packet.
fn explain(query: &str, families: &Families) -> Reply {
    let query = match PacketQuery::from_url_query(query) {
        Ok(query) => query,
        Err(error) => return Reply::Now(plain(StatusCode::BAD_REQUEST, format!("{error:#}\n"))),
    };
    let family = Family::of(query.destination.ip());
    let Some(worker) = families.get(&family).cloned() else {
        return Reply::Now(plain(StatusCode::BAD_REQUEST, format!("this proxy does not serve {family}\n")));
    };
    long(move || worker.explain(query))
}

/// How the kernel differs from the desired state. Workers only return the desired state: comparing would delay their syncs.
fn compare(families: &Families) -> Reply {
    let families = families.clone();
    long(move || families.values().map(findings).collect::<anyhow::Result<Vec<_>>>())
}

/// A sync may run between reading the desired and the actual state, so only differences that persist are returned.
fn findings(worker: &FamilyHandle) -> anyhow::Result<Findings> {
    let compare = || Findings::of(worker.family(), worker.desired()?);
    let mut found = compare()?;
    for _ in 0..2 {
        if found.differences.is_empty() {
            break;
        }
        let before = std::mem::replace(&mut found, compare()?);
        found.retain_found_in(&before);
    }
    Ok(found)
}

fn long<T: Serialize>(work: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> Reply {
    Reply::Long(Box::new(move || {
        let json = work().and_then(|found| Ok(serde_json::to_vec(&found)?));
        match json {
            Ok(json) => nosniff(response(StatusCode::OK, JSON, json)),
            Err(error) => unavailable(&error),
        }
    }))
}

fn unavailable(error: &anyhow::Error) -> ServerResponse {
    plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}\n"))
}
