//! `/healthz` at the metrics port: succeeds if the process responds, and counts the checks.

use http::StatusCode;
use settings::go::quote;

use crate::http::ServerResponse;
use crate::http::response::plain;
use crate::metrics::kinds::{CounterVec, GaugeVec, Metric as _};
use crate::metrics::process::ProcessMetrics;
use crate::metrics::text::{self, Stability};

const PING: &str = "ping";

/// The only check always succeeds.
#[derive(Debug)]
pub struct Healthz {
    last: GaugeVec<2>,
    all: CounterVec<3>,
}

impl Default for Healthz {
    fn default() -> Self {
        Self {
            last: GaugeVec::new(
                Stability::Stable,
                "kubernetes_healthcheck",
                ["name", "type"],
                "This metric records the result of a single healthcheck.",
            ),
            all: CounterVec::new(
                Stability::Stable,
                "kubernetes_healthchecks_total",
                ["name", "status", "type"],
                "This metric records the results of all healthcheck.",
            ),
        }
    }
}

impl Healthz {
    pub fn response(&self, query: &str) -> ServerResponse {
        let parameters = || query.split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
        let mut excluded: Vec<_> =
            parameters().filter(|(name, _)| *name == "exclude").map(|(_, check)| check).collect();
        excluded.sort_unstable();
        excluded.dedup();
        let is_excluded = excluded.contains(&PING);
        if !is_excluded {
            self.last.set([PING, "healthz"], 1.0);
            self.all.increment([PING, "success", "healthz"]);
        }
        if !parameters().any(|(name, _)| name == "verbose") {
            return plain(StatusCode::OK, "ok");
        }
        let result = if is_excluded { "[+]ping excluded: ok\n" } else { "[+]ping ok\n" };
        let unknown: Vec<_> =
            excluded.iter().filter(|check| **check != PING).map(|check| quote(check)).collect();
        let warning = if unknown.is_empty() {
            String::new()
        } else {
            format!("warn: some health checks cannot be excluded: no matches for {}\n", unknown.join(","))
        };
        plain(StatusCode::OK, format!("{result}{warning}healthz check passed\n"))
    }

    /// `/metrics/slis`.
    pub fn page(&self) -> String {
        let mut entries = vec![self.last.entry(), self.all.entry()];
        entries.extend(ProcessMetrics::current().start_time_entry());
        text::page(entries)
    }

    pub fn clear(&self) {
        self.last.clear();
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_gets_the_response_of_upstream() {
        let healthz = Healthz::default();
        for (query, want) in [
            ("", "ok"),
            ("exclude=ping", "ok"),
            ("exclude=foo", "ok"),
            ("verbose", "[+]ping ok\nhealthz check passed\n"),
            ("exclude=ping&verbose=1", "[+]ping excluded: ok\nhealthz check passed\n"),
            (
                "exclude=foo&verbose",
                "[+]ping ok\nwarn: some health checks cannot be excluded: no matches for \"foo\"\nhealthz check passed\n",
            ),
        ] {
            assert_eq!(healthz.response(query).body(), want, "{query}");
        }
        let page = healthz.page();
        assert!(page.contains("\nkubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"), "{page}");
        let all = "\nkubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 4\n";
        assert!(page.contains(all), "{page}");
        healthz.clear();
        assert!(healthz.page().starts_with("# HELP process_start_time_seconds [ALPHA] "));
    }
}
