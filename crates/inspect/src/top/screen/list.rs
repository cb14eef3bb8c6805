//! The list of service ports, one per line.

use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::canvas::{Canvas, cut_top, put};
use super::{BAR, CHART, FAINT, STRONG};
use crate::top::meter::Row;
use crate::top::state::{Sort, TopView};
use crate::top::text::{bar, rate, shorten, total};

/// The optional columns that fit, besides the name.
#[derive(Clone, Copy, Debug)]
struct Columns {
    width: usize,
    protocol: bool,
    frontend: bool,
    bar: bool,
    rate: bool,
    total: bool,
    endpoints: bool,
}

const PROTOCOL: usize = 9;
const FRONTEND: usize = 26;
const RATE: usize = 9;
const BAR_WIDTH: usize = 20;
const TOTAL: usize = 10;
const ENDPOINTS: usize = 10;

impl Columns {
    fn new(width: u16) -> Self {
        Self {
            width: width.into(),
            rate: width >= 20,
            total: width >= 34,
            protocol: width >= 44,
            endpoints: width >= 56,
            frontend: width >= 106,
            bar: width >= 132,
        }
    }

    /// The width of the name column.
    fn name(self) -> usize {
        let taken = [
            (self.protocol, PROTOCOL),
            (self.frontend, FRONTEND),
            (self.rate, RATE),
            (self.bar, BAR_WIDTH + 2),
            (self.total, TOTAL),
            (self.endpoints, ENDPOINTS),
        ];
        let taken: usize = taken.iter().filter(|(has, _)| *has).map(|(_, width)| width).sum();
        self.width.saturating_sub(taken + 2)
    }

    fn line(self, [name, protocol, frontend, rate, bar, total, endpoints]: [&str; 7]) -> String {
        let width = self.name();
        let mut line = format!(" {name:<width$}");
        if self.protocol {
            line += &format!("  {protocol:<7}");
        }
        if self.frontend {
            line += &format!("{:<FRONTEND$}", shorten(frontend, FRONTEND - 2));
        }
        if self.rate {
            line += &format!("{rate:>RATE$}");
        }
        if self.bar {
            line += &format!("  {bar:<BAR_WIDTH$}");
        }
        if self.total {
            line += &format!("{total:>TOTAL$}");
        }
        if self.endpoints {
            line += &format!("{endpoints:>ENDPOINTS$}");
        }
        line
    }
}

pub fn draw(state: &mut TopView, mut area: Rect, canvas: &mut Canvas<'_>) {
    let columns = Columns::new(area.width);
    let titles = cut_top(&mut area, 1);
    let rows = state.rows();
    let position = state.position(&rows);
    if rows.is_empty() {
        put(canvas, area, 1, &empty_text(state), FAINT);
    }
    let page = usize::from(area.height);
    // Scrolls no more than needed to keep the selected row visible.
    let last_first = rows.len().saturating_sub(page);
    let first = state.first.min(last_first).min(position).max((position + 1).saturating_sub(page));
    let shown = (rows.len() > page).then(|| format!("{}-{} of {}", first + 1, first + page, rows.len()));
    put(canvas, titles, 0, &title(state, columns, shown), STRONG);
    let busiest = rows.iter().filter_map(|row| row.flow.rate).fold(0.0, f64::max);
    for (line, (number, row)) in (0..area.height).zip(rows.iter().enumerate().skip(first)) {
        let text = columns.line(fields(row, columns, busiest).each_ref().map(String::as_str));
        let style = match (number == position, row.flow.rate.unwrap_or_default() > 0.0) {
            (true, _) => BAR,
            (false, true) => Style::new(),
            (false, false) => FAINT,
        };
        let place = Rect { y: area.y + line, height: 1, ..area };
        canvas.0.set_style(place, style);
        put(canvas, place, 0, &text, style);
        colour_bar(canvas, place);
    }
    (state.first, state.page) = (first, page);
}

/// `shown` is the range of visible rows, if not all are.
fn title(state: &TopView, columns: Columns, shown: Option<String>) -> String {
    let mark = if state.reversed { '▴' } else { '▾' };
    let marked = |sort: Sort, title: &str| {
        if state.sort == sort { format!("{title}{mark}") } else { title.to_owned() }
    };
    let name = format!("{}  {}", marked(Sort::Name, "SERVICE PORT"), shown.unwrap_or_default());
    let name: String = name.chars().take(columns.name()).collect();
    let (rate, total) = (marked(Sort::Rate, "NEW/S"), marked(Sort::Total, "TOTAL"));
    columns.line([&name, "PROTO", "FRONTEND", &rate, "", &total, "ENDPOINTS"])
}

fn fields(row: &Row, columns: Columns, busiest: f64) -> [String; 7] {
    let frontend = match &row.frontends[..] {
        [] => String::new(),
        [one] => one.address.clone(),
        [first, others @ ..] => format!("{} +{}", first.address, others.len()),
    };
    let part = row.flow.rate.filter(|_| busiest > 0.0).map_or(0.0, |rate| rate / busiest);
    [
        shorten(&row.name.to_string(), columns.name()),
        row.name.protocol.clone(),
        frontend,
        rate(row.flow.rate),
        bar(part, BAR_WIDTH),
        total(row.flow.total),
        row.endpoints.len().to_string(),
    ]
}

fn empty_text(state: &TopView) -> String {
    if state.search.is_empty() {
        "  No service port has endpoints on this node.".to_owned()
    } else {
        format!("  No name or address contains \"{}\".", state.search)
    }
}

/// Colours the block characters of a line: only bars have any.
pub fn colour_bar(canvas: &mut Canvas<'_>, line: Rect) {
    for position in line.positions() {
        if let Some(cell) = canvas.0.cell_mut(position)
            && cell.symbol().starts_with(|symbol| ('\u{2588}'..='\u{258f}').contains(&symbol))
            && !cell.modifier.contains(Modifier::REVERSED)
        {
            cell.set_style(CHART);
        }
    }
}
