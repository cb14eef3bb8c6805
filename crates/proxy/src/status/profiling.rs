//! What `--profiling` enables: changing the verbosity, and the path of Go's profiles.
//!
//! There are no profiles. Those of Go come from its runtime; ours would need signal handlers, and symbols that the binary does not
//! contain, and `perf` does better from outside. The page says so.

use http::header::{HeaderName, LOCATION};
use http::{Method, StatusCode};
use settings::go::parse_level;
use settings::logs::Logs;

use crate::http::response::{HTML, nosniff, plain, response, with_header};
use crate::http::{ServerRequest, ServerResponse};

const PPROF: &str = "/debug/pprof/";
const FLAGS: &str = "/debug/flags/";

/// The page at the path of a request; `None` if there is none.
pub fn page(request: &ServerRequest, logs: &Logs) -> Option<ServerResponse> {
    let path = request.uri().path();
    match path {
        "/debug/pprof" => {
            let page = format!("<a href=\"{PPROF}\">Found</a>.\n\n");
            Some(with_header(response(StatusCode::FOUND, HTML, page), LOCATION, PPROF))
        }
        PPROF => Some(nosniff(response(StatusCode::OK, HTML, profiles_page()))),
        "/debug/flags/v" => Some(verbosity(request, logs)),
        "/debug/flags" => Some(response(StatusCode::OK, HTML, FLAGS_PAGE)),
        _ if path.starts_with(FLAGS) => Some(response(StatusCode::OK, HTML, FLAGS_PAGE)),
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

fn verbosity(request: &ServerRequest, logs: &Logs) -> ServerResponse {
    let (status, text) = match change_verbosity(request, logs) {
        Ok(text) => (StatusCode::OK, text),
        Err(refusal) => refusal,
    };
    nosniff(response(status, "text/plain", text + "\n"))
}

fn change_verbosity(request: &ServerRequest, logs: &Logs) -> Result<String, (StatusCode, String)> {
    if request.method() != Method::PUT {
        return Err((StatusCode::NOT_ACCEPTABLE, "unsupported http method".to_owned()));
    }
    let text = String::from_utf8_lossy(request.body());
    let level = parse_level(&text).map_err(|error| (StatusCode::BAD_REQUEST, error))?;
    logs.set_verbosity(level);
    Ok(format!("successfully set klog.logging.verbosity to {level}"))
}
