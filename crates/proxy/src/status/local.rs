//! What the subcommands of this program ask a running proxy. Answered only to who is on this node: it tells more about
//! the cluster than metrics do, and takes the families' time.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use http::StatusCode;
use model::address::Family;

use crate::family::Message;
use crate::http::answer::{JSON, answer, plain};
use crate::http::{Answer, Local, Reply, Request};
use crate::inspect::explain::question::Question;
use crate::inspect::running::PREFIX;
use crate::source::Lines;

/// For a family that is busy with a pass.
const PATIENCE: Duration = Duration::from_secs(20);

/// Nothing if it is not one of these questions.
pub fn find(request: &Request, lines: &Lines) -> Option<Reply> {
    let question = request.uri().path().strip_prefix(PREFIX)?.strip_prefix('/')?;
    if request.extensions().get::<Local>().is_none() {
        let refusal = plain(StatusCode::FORBIDDEN, "only answered to who asks from this node\n");
        return Some(Reply::Now(refusal));
    }
    match question {
        "explain" => Some(explain(request.uri().query().unwrap_or_default(), lines)),
        _ => None,
    }
}

fn explain(query: &str, lines: &Lines) -> Reply {
    let question = match Question::from_query(query) {
        Ok(question) => question,
        Err(error) => return Reply::Now(plain(StatusCode::BAD_REQUEST, format!("{error:#}\n"))),
    };
    let family = Family::of(question.destination.ip());
    let Some(line) = lines.get(&family).cloned() else {
        return Reply::Now(plain(StatusCode::BAD_REQUEST, format!("this proxy does not serve {family}\n")));
    };
    Reply::Later(Box::new(move || {
        let (sender, answer) = sync_channel(1);
        if line.try_send(Message::Explain(Box::new(question), sender)).is_err() {
            return busy();
        }
        match answer.recv_timeout(PATIENCE) {
            Ok(Ok(explanation)) => json(&explanation),
            Ok(Err(why)) => plain(StatusCode::BAD_REQUEST, format!("{why}\n")),
            Err(_) => busy(),
        }
    }))
}

fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(json) => answer(StatusCode::OK, JSON, json),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn busy() -> Answer {
    plain(StatusCode::SERVICE_UNAVAILABLE, "the proxy is too busy to answer: ask again in a moment\n")
}
