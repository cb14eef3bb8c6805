//! What the subcommands of this program ask a running proxy. Answered only to who is on this node: it tells more about
//! the cluster than metrics do, and takes the families' time.

use http::StatusCode;
use model::address::Family;

use crate::connections::{self, Page};
use crate::http::answer::{JSON, answer, nosniff, plain};
use crate::http::{Answer, Local, Reply, Request};
use crate::inspect::running::PREFIX;
use crate::source::Lines;

/// Whom to ask, and about what.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    pub node_name: &'a str,
    pub mode: &'static str,
    pub lines: &'a Lines,
}

/// Nothing if it is not one of these questions.
pub fn find(request: &Request, here: Here<'_>) -> Option<Reply> {
    let question = request.uri().path().strip_prefix(PREFIX)?.strip_prefix('/')?;
    if request.extensions().get::<Local>().is_none() {
        let refusal = plain(StatusCode::FORBIDDEN, "only answered to who asks from this node\n");
        return Some(Reply::Now(refusal));
    }
    match question {
        "connections" => Some(connections(here)),
        _ => None,
    }
}

/// How many new connections there were.
fn connections(Here { node_name, mode, lines }: Here<'_>) -> Reply {
    if mode != "nftables" {
        let refusal = format!("new connections are counted in nftables mode only, and this is {mode} mode\n");
        return Reply::Now(plain(StatusCode::NOT_IMPLEMENTED, refusal));
    }
    let (node_name, lines) = (node_name.to_owned(), lines.clone());
    Reply::Later(Box::new(move || {
        let mut all = Vec::new();
        for (family, line) in &lines {
            match connections::count(line) {
                Ok(counted) => all.extend(counted.into_iter().map(|one| (one, *family == Family::V6))),
                Err(error) => return failure(&format!("counting {family} connections: {error}\n")),
            }
        }
        match serde_json::to_vec(&Page::new(&node_name, mode, all)) {
            Ok(page) => nosniff(answer(StatusCode::OK, JSON, page)),
            Err(error) => failure(&format!("writing what was counted: {error}\n")),
        }
    }))
}

fn failure(what: &str) -> Answer {
    plain(StatusCode::INTERNAL_SERVER_ERROR, what.to_owned())
}
