//! What the subcommands of this program ask a running proxy. Answered only to who is on this node: it tells more about
//! the cluster than metrics do, and takes the families' time.

use std::sync::Arc;

use anyhow::Context as _;
use http::StatusCode;
use model::address::Family;
use serde::Serialize;

use crate::connections::{Census, Page};
use crate::debug_api::findings::Findings;
use crate::debug_api::question::Question;
use crate::debug_api::{PREFIX, VERIFY};
use crate::family::{Families, FamilyHandle};
use crate::http::answer::{JSON, answer, nosniff, plain};
use crate::http::{Answer, Local, Reply, Request};

/// Whom to ask, and about what.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    pub node_name: &'a str,
    pub mode: &'static str,
    pub families: &'a Families,
    pub census: &'a Arc<Census>,
}

/// Nothing if it is not one of these questions.
pub fn find(request: &Request, here: Here<'_>) -> Option<Reply> {
    let question = request.uri().path().strip_prefix(PREFIX)?.strip_prefix('/')?;
    if request.extensions().get::<Local>().is_none() {
        let refusal =
            "only answered to who asks from this node, by its address or as localhost and through no proxy\n";
        let refusal = plain(StatusCode::FORBIDDEN, refusal);
        return Some(Reply::Now(refusal));
    }
    match question {
        "connections" => Some(connections(here)),
        "explain" => Some(explain(request.uri().query().unwrap_or_default(), here.families)),
        VERIFY => Some(compare(here.families)),
        _ => None,
    }
}

/// How many new connections there were.
fn connections(Here { node_name, mode, census, .. }: Here<'_>) -> Reply {
    if mode != "nftables" {
        let refusal = format!("new connections are counted in nftables mode only, and this is {mode} mode\n");
        return Reply::Now(plain(StatusCode::NOT_IMPLEMENTED, refusal));
    }
    let (node_name, census) = (node_name.to_owned(), census.clone());
    long(move || {
        let count = census.count();
        let mut all = Vec::new();
        for family in count.families.keys() {
            let counted = count.of(*family).with_context(|| format!("counting {family} connections"))?;
            all.extend(counted.iter().cloned().map(|one| (one, *family == Family::V6)));
        }
        let page = Page::new(&node_name, mode, all);
        Ok(Page { counted_at: count.at, good_for: count.good_for(), ..page })
    })
}

/// What would happen to a packet.
fn explain(query: &str, families: &Families) -> Reply {
    let question = match Question::from_query(query) {
        Ok(question) => question,
        Err(error) => return Reply::Now(plain(StatusCode::BAD_REQUEST, format!("{error:#}\n"))),
    };
    let family = Family::of(question.destination.ip());
    let Some(worker) = families.get(&family).cloned() else {
        return Reply::Now(plain(StatusCode::BAD_REQUEST, format!("this proxy does not serve {family}\n")));
    };
    long(move || worker.explain(question))
}

/// What the kernel holds otherwise than it should. The workers only say what it should hold: they have no time to compare.
fn compare(families: &Families) -> Reply {
    let families = families.clone();
    long(move || families.values().map(findings).collect::<anyhow::Result<Vec<_>>>())
}

/// A sync may come between what is desired and what is found: a difference that is real stays.
fn findings(worker: &FamilyHandle) -> anyhow::Result<Findings> {
    let look = || Findings::of(worker.family(), worker.desired()?);
    let mut found = look()?;
    for _ in 0..2 {
        if found.differences.is_empty() {
            break;
        }
        let before = std::mem::replace(&mut found, look()?);
        found.keep_what_was_in(&before);
    }
    Ok(found)
}

fn long<T: Serialize>(work_out: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> Reply {
    Reply::Long(Box::new(move || {
        let json = work_out().and_then(|found| Ok(serde_json::to_vec(&found)?));
        match json {
            Ok(json) => nosniff(answer(StatusCode::OK, JSON, json)),
            Err(error) => trouble(&error),
        }
    }))
}

fn trouble(error: &anyhow::Error) -> Answer {
    plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}\n"))
}
