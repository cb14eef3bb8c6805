//! What `--profiling` opens: the verbosity, and the place where Go keeps its profiles.
//!
//! There are no profiles here. Those of Go come from its runtime; ours would need signal handlers and symbols that the
//! binary does not carry, and `perf` does better from outside. The page says so rather than pretend.

use http::header::{HeaderName, LOCATION};
use http::{Method, StatusCode};
use settings::go::parse_level;
use settings::logs::Logs;

use crate::http::answer::{HTML, answer, nosniff, plain, with_header};
use crate::http::{Answer, Request};

const PPROF: &str = "/debug/pprof/";
const FLAGS: &str = "/debug/flags/";

pub fn find(request: &Request, logs: &Logs) -> Option<Answer> {
    let path = request.uri().path();
    match path {
        "/debug/pprof" => {
            let page = format!("<a href=\"{PPROF}\">Found</a>.\n\n");
            Some(with_header(answer(StatusCode::FOUND, HTML, page), LOCATION, PPROF))
        }
        PPROF => Some(nosniff(answer(StatusCode::OK, HTML, profiles_page()))),
        "/debug/flags/v" => Some(verbosity(request, logs)),
        "/debug/flags" => Some(answer(StatusCode::OK, HTML, FLAGS_PAGE)),
        _ if path.starts_with(FLAGS) => Some(answer(StatusCode::OK, HTML, FLAGS_PAGE)),
        _ if path.starts_with(PPROF) => {
            let unknown = plain(StatusCode::NOT_FOUND, "Unknown profile\n");
            Some(with_header(unknown, HeaderName::from_static("x-go-pprof"), "1"))
        }
        _ => None,
    }
}

fn profiles_page() -> String {
    let pid = std::process::id();
    format!(
        "<html>\n<head>\n<title>{PPROF}</title>\n</head>\n<body>\n{PPROF}\n<br>\n\
         <p>This build takes no profiles of itself. From the node: <code>perf record -g -p {pid} -- sleep 30</code></p>\n\
         </body>\n</html>\n"
    )
}

/// Byte for byte what upstream shows.
const FLAGS_PAGE: &str = "<html>
<head>
<title>/debug/flags/</title>
</head>
<body>
/debug/flags/<br>
<br>
flags:<br>
<table>
<tr>v<br>
</table>
<br>
full flags configurable<br>
</body>
</html>
";

fn verbosity(request: &Request, logs: &Logs) -> Answer {
    let (status, words) = match change_verbosity(request, logs) {
        Ok(words) => (StatusCode::OK, words),
        Err(refusal) => refusal,
    };
    nosniff(answer(status, "text/plain", words + "\n"))
}

fn change_verbosity(request: &Request, logs: &Logs) -> Result<String, (StatusCode, String)> {
    if request.method() != Method::PUT {
        return Err((StatusCode::NOT_ACCEPTABLE, "unsupported http method".to_owned()));
    }
    let text = String::from_utf8_lossy(request.body());
    let level = parse_level(&text).map_err(|error| (StatusCode::BAD_REQUEST, error))?;
    logs.set_verbosity(level);
    Ok(format!("successfully set klog.logging.verbosity to {level}"))
}
