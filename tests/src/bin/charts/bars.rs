//! Horizontal bar charts as SVG, readable on light and dark pages: no background, and text in a medium grey.

use std::fmt::Write as _;

pub struct Chart {
    pub title: &'static str,
    /// Lines below the bars.
    pub notes: Vec<String>,
    pub groups: Vec<Group>,
}

pub struct Group {
    pub title: String,
    pub bars: Vec<Bar>,
}

pub struct Bar {
    pub label: String,
    pub value: f64,
    /// A thin line over the bar marks this range.
    pub spread: Option<(f64, f64)>,
    /// The formatted value.
    pub shown: String,
    pub colour: Colour,
}

#[derive(Clone, Copy)]
pub enum Colour {
    Ours,
    Other,
}

impl Bar {
    /// The largest value that is drawn.
    fn end(&self) -> f64 {
        self.spread.map_or(self.value, |(_, high)| high.max(self.value))
    }
}

impl Colour {
    fn hex(self) -> &'static str {
        match self {
            Self::Ours => "#0d9488",
            Self::Other => "#94a3b8",
        }
    }
}

const WIDTH: f64 = 760.0;
/// Room for the labels to the left of the bars.
const LEFT: f64 = 170.0;
/// Room for the value to the right of the longest bar.
const RIGHT: f64 = 150.0;
const BAR: f64 = 22.0;
const GAP: f64 = 6.0;
/// Keeps the smallest value visible.
const MIN_BAR: f64 = 2.0;

impl Chart {
    pub fn svg(&self) -> String {
        let most = self.groups.iter().flat_map(|group| &group.bars).map(Bar::end).fold(0.0, f64::max);
        let scale = (WIDTH - LEFT - RIGHT) / most;
        let mut body = String::new();
        let mut y = 28.0;
        text(&mut body, 0.0, 18.0, "title", self.title);
        for group in &self.groups {
            y += 24.0;
            text(&mut body, 0.0, y, "group", &group.title);
            y += 10.0;
            for bar in &group.bars {
                let width = (bar.value * scale).max(MIN_BAR);
                let (middle, colour) = (y + BAR / 2.0 + 5.0, bar.colour.hex());
                text(&mut body, 0.0, middle, "label", &bar.label);
                _ = writeln!(
                    body,
                    r#"<rect x="{LEFT}" y="{y}" width="{width:.1}" height="{BAR}" rx="3" fill="{colour}"/>"#
                );
                if let Some((low, high)) = bar.spread {
                    let (x, width, y) = (LEFT + low * scale, (high - low) * scale, y + BAR / 2.0 - 1.0);
                    _ = writeln!(
                        body,
                        r##"<rect x="{x:.1}" y="{y}" width="{width:.1}" height="2" fill="#475569"/>"##
                    );
                }
                let end = (bar.end() * scale).max(MIN_BAR);
                text(&mut body, LEFT + end + 8.0, middle, "value", &bar.shown);
                y += BAR + GAP;
            }
        }
        for note in &self.notes {
            y += 20.0;
            text(&mut body, 0.0, y, "note", note);
        }
        let height = y + 10.0;
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{title}">
<style>
text {{ font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #768390; font-size: 14px }}
.title {{ font-size: 17px; font-weight: 600 }}
.group {{ font-size: 13px; font-weight: 600 }}
.value {{ font-weight: 600 }}
.note {{ font-size: 12px }}
</style>
{body}</svg>
"#,
            title = escape(self.title),
        )
    }
}

fn text(body: &mut String, x: f64, y: f64, class: &str, words: &str) {
    _ = writeln!(body, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{}</text>"#, escape(words));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
