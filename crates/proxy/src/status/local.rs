//! What the subcommands of this program ask a running proxy. Answered only to who is on this node: it tells more about
//! the cluster than metrics do, and takes the families' time.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::StatusCode;
use kernel::difference::Wanted;
use model::address::Family;

use crate::connections::{self, Page};
use crate::family::Message;
use crate::http::answer::{JSON, answer, nosniff, plain};
use crate::http::{Answer, Local, Reply, Request};
use crate::inspect::findings::Findings;
use crate::inspect::running::PREFIX;
use crate::inspect::verify;
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
        verify::PATH => Some(compare(here.lines)),
        "connections" => Some(connections(here)),
        _ => None,
    }
}

/// For a family to come to its inbox, be it in the middle of a storm.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the kernel holds otherwise than it should. The families only say what that is: to look is not their time.
fn compare(lines: &Lines) -> Reply {
    let lines = lines.clone();
    Reply::Later(Box::new(move || match findings(&lines) {
        Ok(json) => answer(StatusCode::OK, JSON, json),
        Err(error) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}\n")),
    }))
}

fn findings(lines: &Lines) -> anyhow::Result<String> {
    let mut all = Vec::new();
    for (family, line) in lines {
        let look = || Findings::of(*family, wanted(*family, line)?);
        let mut found = look()?;
        // A pass may have come between: what is wrong stays so.
        for _ in 0..2 {
            if found.differences.is_empty() {
                break;
            }
            let before = std::mem::replace(&mut found, look()?);
            found.differences.retain(|it| before.differences.contains(it));
        }
        all.push(found);
    }
    Ok(serde_json::to_string(&all)?)
}

fn wanted(family: Family, line: &SyncSender<Message>) -> anyhow::Result<Wanted> {
    let (reply, wanted) = sync_channel(1);
    line.try_send(Message::Compare(reply)).map_err(|_| anyhow!("{family} is too busy to answer"))?;
    wanted.recv_timeout(PATIENCE).with_context(|| format!("{family} has not begun to write rules"))
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
