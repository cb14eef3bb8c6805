//! The text format of Prometheus, byte for byte as Go's library writes it.

use std::fmt::Write as _;

use settings::go::double_text;

/// What a metric is, apart from its value.
#[derive(Clone, Copy, Debug)]
pub struct About {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricType,
    /// Shown at the beginning of the help text, if there is one.
    pub stability: Option<Stability>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    Alpha,
    Beta,
    Stable,
}

impl MetricType {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Stability {
    pub fn name(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Stable => "STABLE",
        }
    }
}

/// One metric with its samples.
#[derive(Debug)]
pub struct Entry {
    about: About,
    samples: String,
}

impl Entry {
    pub fn new(about: About) -> Self {
        Self { about, samples: String::new() }
    }

    /// Adds a sample. Labels must be sorted by name.
    pub fn sample<'a>(&mut self, labels: impl IntoIterator<Item = (&'a str, &'a str)>, value: f64) {
        self.part("", labels, value);
    }

    /// Adds one of the samples of a histogram.
    pub fn part<'a>(
        &mut self,
        suffix: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        value: f64,
    ) {
        let out = &mut self.samples;
        out.push_str(self.about.name);
        out.push_str(suffix);
        let mut separator = '{';
        for (name, value) in labels {
            out.push(separator);
            out.push_str(name);
            out.push_str("=\"");
            escape(value, true, out);
            out.push('"');
            separator = ',';
        }
        if separator == ',' {
            out.push('}');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(out, " {}", double_text(value));
    }
}

/// The whole page, sorted by name, without metrics that have no sample. Entries with the same name are merged.
pub fn page(mut entries: Vec<Entry>) -> String {
    entries.retain(|entry| !entry.samples.is_empty());
    entries.sort_by_key(|entry| entry.about.name);
    let mut out = String::new();
    for same in entries.chunk_by(|a, b| a.about.name == b.about.name) {
        same.iter().take(1).for_each(|first| write_head(first.about, &mut out));
        same.iter().for_each(|entry| out.push_str(&entry.samples));
    }
    out
}

fn write_head(about: About, out: &mut String) {
    let About { name, help, kind, stability } = about;
    let _ = write!(out, "# HELP {name} ");
    if let Some(stability) = stability {
        let _ = write!(out, "[{}] ", stability.name());
    }
    escape(help, false, out);
    let _ = writeln!(out, "\n# TYPE {name} {}", kind.name());
}

fn escape(text: &str, is_quoted: bool, out: &mut String) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if is_quoted => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(name: &'static str, help: &'static str, stability: Option<Stability>) -> About {
        About { name, help, kind: MetricType::Gauge, stability }
    }

    #[test]
    fn a_page_is_sorted_and_leaves_out_metrics_without_samples() {
        let mut last = Entry::new(about("z", "Last.", None));
        last.sample([], 262_144.0);
        let mut first = Entry::new(about("a", "A \"back\\slash\"\nand a line", Some(Stability::Beta)));
        first.sample([("x", "1"), ("y", "a\"b\\c\nd")], 1_794_789_169.930_002);
        first.sample([("x", "2")], f64::INFINITY);
        let mut more = Entry::new(about("z", "Last.", None));
        more.sample([("x", "")], 0.0);
        let absent = Entry::new(about("m", "Never set.", None));
        let want = r#"# HELP a [BETA] A "back\\slash"\nand a line
# TYPE a gauge
a{x="1",y="a\"b\\c\nd"} 1.794789169930002e+09
a{x="2"} +Inf
# HELP z Last.
# TYPE z gauge
z 262144
z{x=""} 0
"#;
        assert_eq!(page(vec![last, more, first, absent]), want);
    }
}
