//! What the subcommands of this program ask a running proxy. Answered only to who is on this node: it tells more about
//! the cluster than metrics do, and takes the families' time.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::StatusCode;
use kernel::difference::Wanted;
use model::address::Family;

use crate::family::Message;
use crate::http::answer::{JSON, answer, plain};
use crate::http::{Local, Reply, Request};
use crate::inspect::findings::Findings;
use crate::inspect::running::PREFIX;
use crate::inspect::verify;
use crate::source::Lines;

/// Nothing if it is not one of these questions.
pub fn find(request: &Request, lines: &Lines) -> Option<Reply> {
    let question = request.uri().path().strip_prefix(PREFIX)?.strip_prefix('/')?;
    if request.extensions().get::<Local>().is_none() {
        let refusal = plain(StatusCode::FORBIDDEN, "only answered to who asks from this node\n");
        return Some(Reply::Now(refusal));
    }
    match question {
        verify::PATH => Some(compare(lines)),
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
