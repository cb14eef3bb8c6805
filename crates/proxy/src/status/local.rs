//! What the subcommands of this program ask a running proxy. Answered only to who is on this node: it tells more about
//! the cluster than metrics do, and takes the families' time.

use http::StatusCode;

use crate::http::answer::plain;
use crate::http::{Local, Reply, Request};
use crate::inspect::running::PREFIX;
use crate::source::Lines;

/// Nothing if it is not one of these questions.
pub fn find(request: &Request, lines: &Lines) -> Option<Reply> {
    let question = request.uri().path().strip_prefix(PREFIX)?.strip_prefix('/')?;
    if request.extensions().get::<Local>().is_none() {
        let refusal = plain(StatusCode::FORBIDDEN, "only answered to who asks from this node\n");
        return Some(Reply::Now(refusal));
    }
    let _ = lines;
    match question {
        _ => None,
    }
}
